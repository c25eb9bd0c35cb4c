// The real binary: a comparison that ends early keeps its finished rounds and is continued.
#include <gtest/gtest.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "common/base/deadline.h"
#include "common/base/file_descriptor.h"
#include "tests/experiments/psring_in_a_folder.h"
#include "tests/has.h"
#include "tests/random_moments.h"

namespace psring {
namespace {

namespace fs = std::filesystem;
using LongPlanTest = PsringInAFolder;

// 3 rounds of single, none and ring, in the folder run.
const std::string kRounds =
    "compare --data synthetic --model mlp-small --strategies ring --workers 2 --batch 32 --repeats 3 --steps "
    "4 --link none --out run ";
const std::string kOnlyRounds = kRounds + "--no_eval";
const std::string kComparison = kRounds + "--samples 640";  // then trainings of single and ring
constexpr char kResume[] = "compare --resume run";

class ResumeTest : public PsringInAFolder {
 protected:
  // Lines of runs.csv of one part.
  int Launches(const std::string& part) const {
    const std::string text = File("run/runs.csv");
    int count = 0;
    for (size_t at = 0; (at = text.find("," + part + ",", at)) != std::string::npos; ++at) ++count;
    return count;
  }
  // Starts the comparison, and sends it `signal` while the launch with this record folder runs.
  Outcome InterruptDuring(const std::string& arguments, const std::string& launch, int signal) {
    const pid_t psring = Start(Words(arguments));
    const fs::path records = Path("run/records/" + launch);
    EXPECT_TRUE(Eventually([&] { return fs::exists(records); })) << records;
    kill(psring, signal);
    Outcome outcome = Finish(psring);
    EXPECT_EQ(outcome.exit_code, 128 + signal) << outcome.out << outcome.err;
    return outcome;
  }
  void ExpectRoundsOfEachRow(size_t rounds) const {
    for (const auto& row : JsonFile("run/summary.json")) EXPECT_EQ(row["rounds"]["step_ms"].size(), rounds);
  }
  void ExpectOnlyTheSameRunToContinue();
};

TEST_F(ResumeTest, AnInterruptedComparisonReportsItsRoundsAndKeepsThemAndTrainings) {
  const Outcome first = InterruptDuring(kComparison, "cost-3", SIGINT);
  EXPECT_THAT(first.err, Has("interrupted (SIGINT); the results are those of 2 rounds"));
  EXPECT_THAT(first.out, Has("ring", "continue: psring compare --resume run"));
  EXPECT_FALSE(File("run/findings.txt").empty());
  EXPECT_FALSE(File("run/report.html").empty());
  const auto partial = JsonFile("run/summary.json");
  ASSERT_EQ(partial.size(), 3) << partial.dump(1);
  for (const auto& row : partial) EXPECT_EQ(row["rounds"]["step_ms"].size(), 2);
  EXPECT_EQ(JsonFile("run/manifest.json")["finished"], false);
  EXPECT_EQ(JsonFile("run/manifest.json")["ended"], "interrupted (SIGINT)");
  EXPECT_EQ(Launches("cost"), 2 * 3) << "only those of finished rounds";

  // Interrupted again, it keeps the trainings that have ended, too.
  const Outcome second = InterruptDuring(kResume, "accuracy-2/single-1", SIGTERM);
  EXPECT_THAT(second.out, testing::AllOf(Has("resumed after 2 rounds of 3"), Lacks("round 2/3")));
  EXPECT_EQ(Launches("accuracy"), 2);
  const auto trainings = JsonFile("run/manifest.json")["accuracy"]["trainings_done"];
  EXPECT_EQ(trainings.size(), 2) << trainings;
  Succeed(kResume);
  const auto whole = JsonFile("run/summary.json");
  ASSERT_EQ(whole.size(), 3);
  for (size_t i = 0; i < whole.size(); ++i) {
    ASSERT_EQ(whole[i]["rounds"]["step_ms"].size(), 3);
    for (size_t round = 0; round < 2; ++round)
      EXPECT_EQ(whole[i]["rounds"]["step_ms"][round], partial[i]["rounds"]["step_ms"][round]);
    if (whole[i]["figures"]["strategy"] == "none") continue;
    EXPECT_EQ(whole[i]["accuracy"]["trainings"], 3) << whole[i];
  }
  const auto manifest = JsonFile("run/manifest.json");
  EXPECT_EQ(manifest["finished"], true);
  EXPECT_EQ(manifest["cost"]["rounds_done"], 3);
  EXPECT_EQ(Launches("cost"), 3 * 3);
  EXPECT_EQ(Launches("accuracy"), 3 * 2);
  EXPECT_FALSE(JsonFile("run/trace.json")["traceEvents"].empty());

  EXPECT_THAT(Refused(kResume), Has("this comparison is finished, with 3 rounds"));
}

TEST_F(ResumeTest, AFailedRoundKeepsTheOthers) {
  const pid_t psring = Start(Words(kOnlyRounds));
  // Round 2 cannot write its records, because a file has the name of their folder.
  const fs::path in_the_way = Path("run/records/cost-2");
  EXPECT_TRUE(Eventually([&] { return fs::exists(Path("run/records/cost-1")); }));
  std::ofstream(in_the_way) << "x";
  const Outcome first = Finish(psring);
  EXPECT_EQ(first.exit_code, 2) << first.out << first.err;
  EXPECT_THAT(first.err, Has("cannot create run/records/cost-2", "the results are those of 1 round"));
  ExpectRoundsOfEachRow(1);
  fs::remove(in_the_way);
  Succeed(kResume);
  ExpectRoundsOfEachRow(3);
  // A report that was not finished is written again.
  const std::string page = File("run/report.html");
  std::ofstream(Path("run/report.html")) << page.substr(0, page.size() / 2);
  EXPECT_THAT(Succeed(kResume).out, Lacks("round 1/3"));
  EXPECT_THAT(File("run/report.html"), Has("</html>"));
}

TEST_F(ResumeTest, ASignalInTheFirstRoundSaysThatThereAreOnlyLogs) {
  const Outcome first = InterruptDuring(kOnlyRounds, "cost-1", SIGINT);
  EXPECT_EQ(first.err, "psring compare: interrupted (SIGINT); there are no results; the logs are in run\n");
  EXPECT_FALSE(fs::exists(Path("run/summary.csv")));
  EXPECT_TRUE(fs::exists(Path("run/records/cost-1")));
}

// The run is unfinished.
void ResumeTest::ExpectOnlyTheSameRunToContinue() {
  const auto refused = [&](const std::string& flags, const std::string& why) {
    EXPECT_THAT(Refused("compare --resume " + flags), OneLineWith(why));
  };
  refused("run --workers 3", "which have --workers 2; omit --workers 3");
  refused("run --wire bfloat16", "which have no --wire; omit --wire bfloat16");
  refused("/no/such/run", "there is no such folder");
  fs::create_directory(Path("empty"));
  refused("empty", "it has no manifest.json");
  std::ofstream(Path("empty/manifest.json"))
      << R"({"schema_version": 1, "verb": "train", "command_line": ["psring", "train"],)"
         R"( "working_directory": "/", "binaries": [{"path": "psring", "hash": "1"}]})";
  refused("empty", "psring train --resume");
  // The same flag again is no contradiction, and a dry run changes nothing.
  const std::string before = File("run/manifest.json");
  Succeed("compare --resume run --workers 2 --dry_run");
  EXPECT_EQ(File("run/manifest.json"), before);
  // As if it were from another machine.
  auto manifest = nlohmann::json::parse(before);
  manifest["machine"]["cores"] = 999;
  std::ofstream(Path("run/manifest.json")) << manifest.dump();
  refused("run", "machine: cores 999 then");
  std::ofstream(Path("run/manifest.json")) << before;
}

// Whatever a power cut has done to one file, the comparison continues, or says in one line that it cannot.
TEST_F(ResumeTest, OnlyTheSameRunIsContinuedAndADamagedFileCostsAtMostItsRounds) {
  InterruptDuring(kComparison, "accuracy-1/ring-2", SIGINT);
  ExpectOnlyTheSameRunToContinue();
  fs::rename(Path("run"), Path("interrupted"));
  AtRandomMoments(1, [&](std::mt19937& random) {
    fs::copy(Path("interrupted"), Path("run"), fs::copy_options::recursive);
    std::vector<fs::path> files;
    for (const auto& entry : fs::recursive_directory_iterator(Path("run"))) {
      if (entry.is_regular_file()) files.push_back(entry.path());
    }
    std::ranges::sort(files);
    const fs::path& file = files[random() % files.size()];
    const std::string whole = Slurp(file);
    const size_t kept = whole.empty() ? 0 : random() % whole.size();
    const char* const kinds[] = {"truncated", "zeros from there", "removed"};
    const size_t kind = random() % 3;
    std::printf("%s: %s at %zu of %zu bytes\n", file.c_str(), kinds[kind], kept, whole.size());
    fs::remove(file);
    if (kind < 2)
      std::ofstream(file) << whole.substr(0, kept) << std::string(kind * (whole.size() - kept), 0);
    const Outcome second = Run(Words(kResume));
    if (file.filename() == "manifest.json" && second.exit_code == 2) {
      EXPECT_THAT(second.err, IsOneLine());
      EXPECT_THAT(second.err,
                  testing::AnyOf(Has("start the comparison again"), Has("it has no manifest.json")));
    } else {
      EXPECT_EQ(second.exit_code, 0) << second.out << second.err;
      EXPECT_EQ(Launches("cost"), 3 * 3);
      EXPECT_EQ(Launches("accuracy"), 3 * 2);
      ExpectRoundsOfEachRow(3);
    }
    fs::remove_all(Path("run"));
  });
}

TEST_F(ResumeTest, ARunThatWasKilledWhileItPreparedSaysThatItCannotContinue) {
  fs::create_directories(Path("run"));
  std::ofstream(Path("run/manifest.json")).close();
  EXPECT_THAT(Refused(kResume), OneLineWith("it ended before its first round began"));
}

// The real binary before a comparison that takes long: it asks in a terminal, and needs --time_budget
// elsewhere.

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
