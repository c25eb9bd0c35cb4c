// The real binary before a comparison that takes long: it asks in a terminal, and needs --time_budget
// elsewhere.
#include <gtest/gtest.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "common/base/deadline.h"
#include "common/base/file_descriptor.h"
#include "tests/experiments/psring_in_a_folder.h"
#include "tests/has.h"

namespace psring {
namespace {

namespace fs = std::filesystem;

constexpr char kLong[] =
    "compare --data synthetic --model mlp-small --batch 8 --strategies ring --workers 2 --link none "
    "--no_eval --repeats 9 --steps 100000000 ";

// psring in the foreground of a terminal, in `folder`.
class InATerminal {
 public:
  InATerminal(const fs::path& folder, const std::string& arguments) {
    int terminal = -1;
    pid_ = forkpty(&terminal, nullptr, nullptr, nullptr);
    if (pid_ == 0) {
      if (chdir(folder.c_str()) != 0) _exit(126);
      std::vector<std::string> command = Command(PSRING_BINARY, arguments);
      std::vector<char*> argv;
      for (std::string& word : command) argv.push_back(word.data());
      argv.push_back(nullptr);
      execv(argv[0], argv.data());
      _exit(127);
    }
    terminal_ = FileDescriptor(terminal);
  }
  ~InATerminal() {
    if (pid_ > 0) kill(pid_, SIGKILL);
    ExitCode();
  }

  // Reads until the output contains `text`, or ends; false: it does not within a minute.
  bool Shows(const std::string& text) {
    const MonotonicTime deadline = MonotonicNow() + absl::Minutes(1);
    while (!absl::StrContains(output_, text) && MonotonicNow() < deadline) {
      pollfd event{.fd = terminal_.get(), .events = POLLIN};
      if (poll(&event, 1, 1000) <= 0) continue;
      char part[4096];
      const ssize_t count = read(terminal_.get(), part, sizeof(part));
      if (count <= 0) break;  // EIO: psring has ended
      output_.append(part, static_cast<size_t>(count));
    }
    return absl::StrContains(output_, text);
  }
  void Type(const std::string& text) {
    EXPECT_EQ(write(terminal_.get(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
  }
  void Signal(int signal) const { kill(pid_, signal); }
  // Waits for the end.
  int ExitCode() {
    if (pid_ <= 0) return exit_code_;
    Shows("a text that psring does not print, so this reads to the end");
    int status = 0;
    waitpid(pid_, &status, 0);
    pid_ = 0;
    return exit_code_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  const std::string& output() const { return output_; }

 private:
  pid_t pid_ = 0;
  int exit_code_ = -1;
  FileDescriptor terminal_;
  std::string output_;
};

using LongPlanTest = PsringInAFolder;

TEST_F(LongPlanTest, NeedsATimeBudgetWithoutATerminal) {
  EXPECT_THAT(Refused(kLong),
              OneLineWith("psring compare: this takes about ", "; to start it, add --time_budget "));
  EXPECT_TRUE(fs::is_empty(root_ / "work"));
}

TEST_F(LongPlanTest, ADryRunOnlyNotesIt) {
  const Outcome outcome = Succeed(absl::StrCat(kLong, "--dry_run"));
  EXPECT_EQ(outcome.err, "");
  EXPECT_THAT(outcome.out, Has("note:      this takes about "));
}

TEST_F(LongPlanTest, ATerminalIsAsked) {
  struct Case {
    const char *typed, *says;
    int exit_code;
  };
  const Case cases[] = {{"n\n", "psring compare: not started", 1},
                        {"\n", "psring compare: not started", 1},
                        {"\x04", "psring compare: not started", 1},  // end of input
                        {"\x03", "psring compare: interrupted (SIGINT); nothing was kept", 130}};  // Ctrl-C
  for (const auto& [typed, says, exit_code] : cases) {
    InATerminal psring(root_ / "work", kLong);
    ASSERT_TRUE(psring.Shows("[y/N] ")) << psring.output();
    EXPECT_THAT(psring.output(), Has("to start it, add --time_budget "));
    psring.Type(typed);
    EXPECT_EQ(psring.ExitCode(), exit_code) << psring.output();
    EXPECT_THAT(psring.output(), Has(says));
    EXPECT_TRUE(fs::is_empty(root_ / "work"));
  }
  InATerminal psring(root_ / "work", absl::StrCat(kLong, "--out run"));
  ASSERT_TRUE(psring.Shows("[y/N] ")) << psring.output();
  psring.Type("y\n");
  EXPECT_TRUE(Eventually([&] { return fs::exists(Path("run/records/cost-1")); })) << psring.output();
  psring.Signal(SIGINT);
  EXPECT_EQ(psring.ExitCode(), 128 + SIGINT) << psring.output();
  EXPECT_THAT(psring.output(), Has("interrupted (SIGINT); there are no results; the logs are in run"));
}

// The plan of 64 workers needs no 64 links.
TEST_F(LongPlanTest, ADryRunBuildsNoLinks) {
  const Outcome outcome = Succeed("compare --workers 64 --data synthetic --model mlp-small --dry_run");
  EXPECT_THAT(outcome.out,
              Has("1 Gbit/s links", "--dry_run does not measure whether this machine carries these links",
                  "ring x 64"));
  EXPECT_THAT(outcome.out, Lacks("Mbit/s on each link"));
}

}  // namespace
}  // namespace psring
