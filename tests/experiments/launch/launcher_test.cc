// The children are shell scripts that fail in the ways that trainers can.
#include "experiments/launch/launcher.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <optional>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "common/base/deadline.h"
#include "experiments/launch/interrupt.h"
#include "tests/eventually.h"
#include "tests/has.h"

namespace psring {
namespace {

using testing::EndsWith;
using testing::StartsWith;

ChildSpec Shell(const std::string& name, const std::string& script) {
  return {.name = name, .command = {"/bin/sh", "-c", script}};
}

LaunchSpec Spec(std::vector<ChildSpec> children) {
  return {.what = "fake x 2",
          .children = std::move(children),
          .deadline = absl::Seconds(20),
          .grace = absl::Milliseconds(300)};
}

// Whether this test has no child left, running or zombie.
bool NoChildIsLeft() { return waitpid(-1, nullptr, WNOHANG) == -1 && errno == ECHILD; }

class LauncherTest : public testing::Test {
 protected:
  LauncherTest() {
    signal(SIGINT, SIG_DFL);  // ignored in background jobs of scripts
    interrupt_.emplace();
  }
  void TearDown() override { EXPECT_TRUE(NoChildIsLeft()); }
  std::string FailureOf(const LaunchSpec& spec) const {
    return std::string(RunChildren(spec, *interrupt_).message());
  }
  std::optional<Interrupt> interrupt_;
};

TEST_F(LauncherTest, ReturnsOkWhenAllChildrenEndWith0) {
  EXPECT_TRUE(RunChildren(Spec({Shell("rank 0", "exit 0"), Shell("rank 1", "sleep 0.1")}), *interrupt_).ok());
}

TEST_F(LauncherTest, PassesLinesToTheCallback) {
  std::vector<std::string> lines;
  LaunchSpec spec = Spec({Shell("rank 0", "echo one; echo two; printf three"), Shell("rank 1", "echo ONE")});
  spec.on_line = [&](int child, const std::string& line) {
    if (child == 0) lines.push_back(line);
    return true;
  };
  EXPECT_TRUE(RunChildren(spec, *interrupt_).ok());
  EXPECT_EQ(lines, (std::vector<std::string>{"one", "two", "three"}));
}

TEST_F(LauncherTest, NoiseIsNotQuoted) {
  LaunchSpec spec =
      Spec({Shell("rank 0", "echo '----' >&2; echo 'out of luck' >&2; echo '----' >&2; exit 3")});
  spec.is_noise = [](const std::string& line) { return line == "----"; };
  EXPECT_THAT(FailureOf(spec), EndsWith("its last lines:\n  | out of luck"));
}

TEST_F(LauncherTest, ACrashEndsTheLaunchAndIsReportedWithItsLastLines) {
  const MonotonicTime begin = MonotonicNow();
  const absl::Status status = RunChildren(
      Spec({Shell("rank 0", "sleep 60"), Shell("rank 1", "echo before >&2; echo 'out of luck' >&2; exit 3")}),
      *interrupt_);
  EXPECT_EQ(status,
            absl::AbortedError(
                "fake x 2: rank 1 ended with exit code 3; its last lines:\n  | before\n  | out of luck"));
  EXPECT_LT(MonotonicNow() - begin, absl::Seconds(20));
}

TEST_F(LauncherTest, ASignalIsNamed) {
  const LaunchSpec spec = Spec({Shell("rank 0", "kill -SEGV $$"), Shell("rank 1", "sleep 60")});
  EXPECT_THAT(FailureOf(spec), StartsWith("fake x 2: rank 0 was killed by SIGSEGV"));
}

TEST_F(LauncherTest, RestartsAreCountedOverAllChildren) {
  LaunchSpec spec = Spec({Shell("server 0", "kill -KILL $$"), Shell("server 1", "kill -KILL $$")});
  for (ChildSpec& child : spec.children) child.may_return = true;
  spec.restarts = 3;
  int deaths = 0;
  spec.on_death = [&](int, const std::string&, bool again) { deaths += again ? 1 : 0; };
  EXPECT_THAT(RunChildren(spec, *interrupt_), Fails(absl::StatusCode::kAborted, "was killed by SIGKILL"));
  EXPECT_EQ(deaths, 3);
}

TEST_F(LauncherTest, NamesTheFirstFailure) {
  // Rank 0 fails because rank 1 did, as trainers do when a peer's connection breaks.
  const LaunchSpec spec = Spec(
      {Shell("rank 0", "trap 'echo peer lost; exit 1' TERM; sleep 60 & wait"), Shell("rank 1", "exit 7")});
  EXPECT_THAT(FailureOf(spec), StartsWith("fake x 2: rank 1 ended with exit code 7"));
}

TEST_F(LauncherTest, ATimeoutNamesTheMissingChildAndItsLastKnownState) {
  LaunchSpec spec = Spec({Shell("rank 0", "exit 0"), Shell("rank 1", "sleep 60")});
  spec.deadline = absl::Milliseconds(400);
  spec.last_known = [](int child) { return absl::StrCat("last seen at step ", 10 + child); };
  EXPECT_EQ(RunChildren(spec, *interrupt_),
            absl::DeadlineExceededError(
                "fake x 2: not done after 400ms; still waiting for rank 1 (last seen at step 11)"));
}

TEST_F(LauncherTest, NamesAServerThatDoesNotEnd) {
  LaunchSpec spec = Spec({Shell("rank 0", "sleep 0.1"), Shell("the server", "sleep 60")});
  spec.children[1].serves = true;
  spec.serving_after = absl::Milliseconds(300);
  const absl::Status status = RunChildren(spec, *interrupt_);
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(status.message()), EndsWith("still waiting for the server"));
}

TEST_F(LauncherTest, ADeathIsAFailureUnlessOthersRunHereOrElsewhere) {
  for (const bool elsewhere : {false, true}) {
    LaunchSpec spec = Spec({Shell("rank 0", "kill -KILL $$"), Shell("the server", "sleep 0.5")});
    spec.children[0].may_die = true;
    spec.children[1].serves = true;
    spec.serving_after = absl::ZeroDuration();  // the server serves others elsewhere
    spec.others_elsewhere = elsewhere;
    int deaths = 0;
    spec.on_death = [&](int, const std::string&, bool again) { deaths += again ? 0 : 1; };
    const absl::Status status = RunChildren(spec, *interrupt_);
    EXPECT_EQ(status.ok(), elsewhere) << status;
    EXPECT_EQ(deaths, elsewhere ? 1 : 0);
  }
}

TEST_F(LauncherTest, AServerMayEndALittleLater) {
  LaunchSpec spec = Spec({Shell("rank 0", "exit 0"), Shell("the server", "sleep 0.3")});
  spec.children[1].serves = true;
  EXPECT_TRUE(RunChildren(spec, *interrupt_).ok());
}

TEST_F(LauncherTest, AStoppedChildThatTheJobHasEndedWithoutIsKilled) {
  LaunchSpec spec = Spec({Shell("rank 0", "exit 0"), Shell("rank 1", "kill -STOP $$; sleep 100"),
                          Shell("the server", "echo without 1")});
  spec.children[2].serves = true;
  bool ended = false;
  int lost = -1;
  spec.on_line = [&](int, const std::string& line) { return ended = ended || line == "without 1"; };
  spec.is_lost = [&](int child) { return ended && child == 1; };
  spec.on_lost = [&](int child) { lost = child; };
  EXPECT_EQ(RunChildren(spec, *interrupt_), absl::OkStatus());
  EXPECT_EQ(lost, 1);
}

TEST_F(LauncherTest, AServerThatDiesAfterAllRanksIsNoFailureAndIsNotRestarted) {
  for (const bool several_nodes : {false, true}) {
    LaunchSpec spec = Spec({Shell("rank 0", "exit 0"), Shell("the server", "sleep 0.3; kill -KILL $$")});
    spec.children[1].serves = spec.children[1].may_return = true;
    spec.restarts = 1;
    spec.several_nodes = several_nodes;  // ranks on other nodes may still need it
    std::vector<bool> restarted;
    spec.on_death = [&](int, const std::string&, bool again) { restarted.push_back(again); };
    EXPECT_EQ(RunChildren(spec, *interrupt_).ok(), !several_nodes);
    EXPECT_EQ(restarted, std::vector<bool>{several_nodes});
  }
}

TEST_F(LauncherTest, AChildThatIgnoresSigtermIsKilled) {
  const MonotonicTime begin = MonotonicNow();
  const absl::Status status = RunChildren(
      Spec({Shell("rank 0", "trap '' TERM; while :; do sleep 0.05; done"), Shell("rank 1", "exit 1")}),
      *interrupt_);
  EXPECT_EQ(status.code(), absl::StatusCode::kAborted);
  EXPECT_LT(MonotonicNow() - begin, absl::Seconds(20));
}

TEST_F(LauncherTest, AnInterruptEndsEverything) {
  LaunchSpec spec = Spec({Shell("rank 0", "echo ready; sleep 60"), Shell("rank 1", "sleep 60")});
  spec.on_line = [](int, const std::string&) { return kill(getpid(), SIGINT) == 0; };
  const MonotonicTime begin = MonotonicNow();
  EXPECT_EQ(RunChildren(spec, *interrupt_), absl::CancelledError("interrupted (SIGINT)"));
  EXPECT_LT(MonotonicNow() - begin, absl::Seconds(20));
}

TEST_F(LauncherTest, AnInterruptDuringAnEarlierLaunchStopsTheNext) {
  kill(getpid(), SIGTERM);
  EXPECT_EQ(RunChildren(Spec({Shell("rank 0", "sleep 60")}), *interrupt_).code(),
            absl::StatusCode::kCancelled);
}

TEST_F(LauncherTest, ASignalThatAlsoEndsAChildIsAnInterrupt) {
  // Schedulers signal all processes of a job at once, so the launcher sees both in one turn.
  LaunchSpec spec = Spec({Shell("rank 0", "echo $$; exec sleep 60"), Shell("rank 1", "sleep 60")});
  pid_t child = 0;
  spec.on_line = [&](int, const std::string& line) { return (child = atoi(line.c_str())) > 1; };
  spec.check = [&] {
    siginfo_t ended;
    if (child > 1 && kill(child, SIGTERM) == 0 &&
        waitid(P_PID, static_cast<id_t>(child), &ended, WEXITED | WNOWAIT) == 0) {
      kill(getpid(), SIGTERM);
    }
    return absl::OkStatus();
  };
  EXPECT_EQ(RunChildren(spec, *interrupt_).message(), "interrupted (SIGTERM)");
}

TEST_F(LauncherTest, NamesAMissingBinary) {
  LaunchSpec spec = Spec({Shell("rank 0", "sleep 60"), {.name = "rank 1", .command = {"/no/such/trainer"}}});
  EXPECT_EQ(FailureOf(spec), "fake x 2: cannot start rank 1: /no/such/trainer: No such file or directory");
}

TEST_F(LauncherTest, TheEnvironmentIsOursPlusTheChilds) {
  setenv("PSRING_TEST_OURS", "ours", 1);
  setenv("RANK", "overwritten", 1);
  std::string said;
  LaunchSpec spec = Spec({Shell("rank 0", "echo $PSRING_TEST_OURS $RANK")});
  spec.children[0].environment = {"RANK=5"};
  spec.on_line = [&](int, const std::string& line) {
    said = line;
    return true;
  };
  EXPECT_TRUE(RunChildren(spec, *interrupt_).ok());
  EXPECT_EQ(said, "ours 5");
  unsetenv("RANK");
}

TEST_F(LauncherTest, UnhandledLinesAreLogged) {
  const std::string path = absl::StrCat(testing::TempDir(), "/psring-launcher-log-", getpid());
  LaunchSpec spec = Spec({Shell("rank 0", "echo progress; echo words; echo complaint >&2")});
  spec.children[0].log_path = path;
  spec.on_line = [](int, const std::string& line) { return line == "progress"; };
  EXPECT_TRUE(RunChildren(spec, *interrupt_).ok());
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  EXPECT_EQ(text.str().find("progress"), std::string::npos);
  EXPECT_NE(text.str().find("words\n"), std::string::npos);
  EXPECT_NE(text.str().find("complaint\n"), std::string::npos);
  unlink(path.c_str());
}

TEST_F(LauncherTest, ReturnsOutputOrTheLastLineOfAFailure) {
  EXPECT_EQ(*RunForOutput({"/bin/sh", "-c", "echo a; echo b"}, absl::Seconds(5), *interrupt_), "a\nb\n");
  const auto failed =
      RunForOutput({"/bin/sh", "-c", "echo noise >&2; echo 'trainer: no such file' >&2; exit 2"},
                   absl::Seconds(5), *interrupt_);
  EXPECT_EQ(failed.status().message(), "trainer: no such file");
}

TEST_F(LauncherTest, NothingSurvivesTheDeathOfTheLauncher) {
  int fds[2];
  ASSERT_EQ(pipe(fds), 0);
  const pid_t launcher = fork();
  if (launcher == 0) {
    close(fds[0]);
    LaunchSpec spec = Spec({Shell("rank 0", "trap '' TERM INT; echo $$; exec sleep 60")});
    spec.on_line = [&](int, const std::string& line) { return write(fds[1], line.data(), line.size()) > 0; };
    _exit(RunChildren(spec, *interrupt_).ok() ? 0 : 1);
  }
  close(fds[1]);
  char text[32] = {};
  ASSERT_GT(read(fds[0], text, sizeof(text) - 1), 0);
  const pid_t child = static_cast<pid_t>(atoi(text));
  ASSERT_GT(child, 1);
  kill(launcher, SIGKILL);
  waitpid(launcher, nullptr, 0);
  // Ended, or a zombie that its new parent has not reaped yet.
  const auto is_gone = [&] {
    std::ifstream stat(absl::StrCat("/proc/", child, "/stat"));
    std::string line;
    return !std::getline(stat, line) || line.find(") Z ") != std::string::npos;
  };
  EXPECT_TRUE(Eventually(is_gone, absl::Seconds(5)));
  close(fds[0]);
}

class InterruptTest : public testing::Test {
 protected:
  void SetUp() override { signal(SIGINT, SIG_DFL); }
  void TearDown() override {
    for (const int signal : {SIGINT, SIGTERM, SIGHUP}) ::signal(signal, SIG_DFL);
  }
  static bool Readable(const Interrupt& interrupt) {
    pollfd fd = {interrupt.fd(), POLLIN, 0};
    return poll(&fd, 1, 0) == 1;
  }
};

TEST_F(InterruptTest, ReportsTheFirstSignal) {
  const Interrupt interrupt;
  EXPECT_TRUE(interrupt.Check().ok());
  EXPECT_EQ(interrupt.signal(), 0);
  for (const int signal : {SIGTERM, SIGINT}) kill(getpid(), signal);
  EXPECT_TRUE(Readable(interrupt));
  EXPECT_EQ(interrupt.signal(), SIGTERM);
  EXPECT_EQ(interrupt.Check().message(), "interrupted (SIGTERM)");
}

TEST_F(InterruptTest, IgnoredSighupAndSigintStayIgnored) {
  for (const int ignored : {SIGHUP, SIGINT}) signal(ignored, SIG_IGN);
  {
    const Interrupt interrupt;
    for (const int ignored : {SIGHUP, SIGINT}) kill(getpid(), ignored);
    EXPECT_FALSE(Readable(interrupt));
    EXPECT_TRUE(interrupt.Check().ok());
    kill(getpid(), SIGTERM);
    EXPECT_EQ(interrupt.signal(), SIGTERM);
  }
  for (const int ignored : {SIGHUP, SIGINT}) EXPECT_EQ(signal(ignored, SIG_DFL), SIG_IGN);
}

}  // namespace

}  // namespace psring
