#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/file_descriptor.h"
#include "common/cli/command_line.h"
#include "common/text/translate.h"
#include "experiments/launch/launcher.h"
#include "experiments/launch/mpirun.h"
#include "experiments/launch/progress.h"
#include "experiments/launch/temporary_folder.h"
#include "tests/eventually.h"
#include "tests/has.h"
#include "tests/test_folder.h"

namespace psring {
namespace {

namespace fs = std::filesystem;

// What `draw` prints.
template <typename Draw>
std::string Shown(bool terminal, const Draw& draw) {
  testing::internal::CaptureStdout();
  {
    Display display(stdout, terminal);
    draw(display);
  }
  return testing::internal::GetCapturedStdout();
}

TEST(Progress, ReadsTheTrainersLines) {
  const auto event =
      ParseProgress(R"({"event":"step","rank":1,"step":12,"steps":25,"samples":1536,"loss":0.53})").value();
  EXPECT_EQ(event.event, "step");
  EXPECT_EQ(event.rank, 1);
  EXPECT_EQ(event.step, 12);
  EXPECT_EQ(event.steps, 25);
}

TEST(Progress, IgnoresOtherLines) {
  for (const char* line : {"", "hello", "{", "{}", "[1]", R"({"event":3})", R"({"step":3})"})
    EXPECT_FALSE(ParseProgress(line).has_value()) << line;
  EXPECT_EQ(ParseProgress(R"({"event":"step","loss":null,"step":"x"})")->step, 0);
}

TEST(Progress, TheBarShowsTheSlowestRank) {
  LaunchProgress progress(2);
  EXPECT_EQ(progress.Bar(), "[....................] starting");
  progress.Note({.event = "step", .rank = 0, .step = 20, .steps = 20, .loss = 0.25});
  progress.Note({.event = "step", .rank = 1, .step = 10, .steps = 20, .loss = 0.5});
  EXPECT_EQ(progress.Bar(), "[##########..........] 10/20 steps, loss 0.500");
}

TEST(Progress, DescribesARanksLastKnownState) {
  LaunchProgress progress(2);
  EXPECT_EQ(progress.LastKnown(1), "it never reported progress");
  progress.Note({.event = "start", .rank = 1});
  EXPECT_EQ(progress.LastKnown(1), "it started but did not become ready");
  EXPECT_FALSE(progress.HasStepped(1));
  progress.Note({.event = "step", .rank = 1, .step = 3, .steps = 9});
  EXPECT_EQ(progress.LastKnown(1), "last seen at step 3 of 9");
  EXPECT_TRUE(progress.HasStepped(1));
  EXPECT_FALSE(progress.HasStepped(7));
  progress.Note({.event = "step", .rank = 7, .step = 3, .steps = 9});  // ignored: no such rank
  EXPECT_EQ(progress.LastKnown(7), "");
  progress.Note({.event = "step", .rank = 0, .step = 1, .steps = 9});
  EXPECT_EQ(progress.LastKnownOfLast(0, 2), "rank 0: last seen at step 1 of 9");
  EXPECT_EQ(progress.LastKnownOfLast(1, 1), "rank 1: last seen at step 3 of 9");
  EXPECT_EQ(progress.LastKnownOfLast(2, 2), "");  // a server's number
}

TEST(Progress, EvaluationsShowTheirShareAndTheTimeLeft) {
  LaunchProgress progress(2);
  for (int rank = 0; rank < 2; ++rank) progress.Note({.event = "step", .rank = rank, .step = 4, .steps = 4});
  constexpr int64_t kSecond = 1'000'000'000;
  const auto evaluate = [&](int64_t done, int64_t now_ns) {
    const auto event = ParseProgress(
        absl::StrCat(R"({"event":"evaluating","rank":0,"evaluated":)", done, R"(,"to_evaluate":1000})"));
    progress.Note(event.value(), now_ns);
  };
  EXPECT_FALSE(progress.EvaluationLeftSeconds().has_value());
  evaluate(0, 5 * kSecond);
  EXPECT_EQ(progress.Bar(), "[####################] evaluating 0%");
  EXPECT_FALSE(progress.EvaluationLeftSeconds().has_value());
  evaluate(120, 7 * kSecond);
  EXPECT_EQ(progress.Bar(), "[####################] evaluating 12%");
  EXPECT_NEAR(progress.EvaluationLeftSeconds().value_or(0), 2 / .12 - 2, 1e-9);
  EXPECT_EQ(progress.LastKnown(0), "last seen in its evaluation");
  evaluate(1000, 20 * kSecond);
  EXPECT_FALSE(progress.EvaluationLeftSeconds().has_value());
}

// Evaluations of 20 s: `out` is what is shown after the first 2.
TEST(Progress, LongEvaluationsAreAnnouncedOnce) {
  for (const bool terminal : {true, false}) {
    LaunchProgress progress(1);
    const std::string out = Shown(terminal, [&](Display& display) {
      for (const int64_t done : {0, 100, 200}) {
        progress.Note({.event = "evaluating", .rank = 0, .evaluated = done, .to_evaluate = 1000},
                      done * 20'000'000);
        progress.Show("ring x 2", "samples", display);
      }
    });
    if (terminal) {
      EXPECT_NE(out.find("evaluating 0%"), std::string::npos) << out;
    } else {
      EXPECT_TRUE(absl::StartsWith(out, "evaluating 1000 samples, about 1")) << out;
      EXPECT_THAT(out, IsOneLine());
    }
  }
}

std::string ShownNotes(bool terminal) {
  return Shown(terminal, [](Display& display) {
    display.Redraw("half");
    display.SayPlain("plain");
    display.Say("done");
    display.NoteOnce("one");
    display.NoteOnce("one");
    const ScopedLanguage chinese(Language::kChinese);
    display.Note("two");
  });
}

constexpr char kNotes[] = "done\nnote:      one\n说明：     two\n";

TEST(Progress, RedrawsOneLineOnATerminal) {
  EXPECT_EQ(ShownNotes(true), absl::StrCat("\rhalf\033[K\r\033[K", kNotes));
}

TEST(Progress, StylesShowOnlyOnATerminalThatWantsThem) {
  const auto bold = [](bool terminal, const char* no_color, const char* kind) {
    setenv("NO_COLOR", no_color, 1);
    setenv("TERM", kind, 1);
    const std::string text =
        Shown(terminal, [](Display& display) { display.SayLines("a\033b", Style::kBold); });
    unsetenv("NO_COLOR");
    return text;
  };
  EXPECT_EQ(bold(true, "", "xterm"), "\033[1ma\\x1bb\033[0m\n") << "NO_COLOR counts only with a value";
  for (const std::string& plain :
       {bold(false, "", "xterm"), bold(true, "1", "xterm"), bold(true, "", "dumb")})
    EXPECT_EQ(plain, "a\\x1bb\n");
}

TEST(Progress, PrintsPlainLinesElsewhere) { EXPECT_EQ(ShownNotes(false), absl::StrCat("plain\n", kNotes)); }

TEST(Progress, TheRedrawnLineSaysHowMuchTimeIsLeftAndFitsIntoTheTerminal) {
  const auto drawn = [](double seconds, const std::string& line) {
    const std::string text = Shown(true, [&](Display& display) {
      display.ExpectEndIn(seconds);
      display.Redraw(line);
    });
    return text.substr(0, text.find("\033"));
  };
  EXPECT_EQ(drawn(300.5, "half"), "\rhalf, about 5 min left");
  EXPECT_TRUE(drawn(60.5, "half") == "\rhalf, about 60 s left" ||
              drawn(60.5, "half") == "\rhalf, about 59 s left");
  EXPECT_EQ(drawn(0.5, "half"), "\rhalf");
  const std::string long_line = drawn(300.5, std::string(500, 'x'));
  EXPECT_EQ(long_line.size(), OutputColumns());  // with the carriage return
  EXPECT_NE(long_line.find("xx, about 5 min left"), std::string::npos) << long_line;
}

TEST(TemporaryFolderTest, IsRemovedWithItsContents) {
  std::string path;
  {
    const auto folder = TemporaryFolder::Create();
    ASSERT_TRUE(folder.ok()) << folder.status();
    path = folder->path();
    std::ofstream(path + "/file") << "text";
    EXPECT_TRUE(fs::exists(path + "/file"));
  }
  EXPECT_FALSE(fs::exists(path));
}

// Another process that creates a folder, perhaps in a new PID namespace, and runs until it is killed.
class Owner {
 public:
  Owner(const std::string& base, bool in_own_namespace) {
    int ends[2];
    EXPECT_EQ(pipe(ends), 0);
    child_ = fork();
    if (child_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (in_own_namespace && unshare(CLONE_NEWPID) != 0) _exit(1);
      const pid_t owner = fork();
      if (owner != 0) _exit(owner < 0 || waitpid(owner, nullptr, 0) < 0);
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      const auto folder = TemporaryFolder::Create(base);
      if (!folder.ok()) _exit(1);
      std::ofstream(folder->path() + "/records") << "text";
      if (write(ends[1], folder->path().data(), folder->path().size()) < 0) _exit(1);
      close(ends[1]);
      while (true) pause();
    }
    close(ends[1]);
    char text[4096];
    const ssize_t bytes = read(ends[0], text, sizeof text);
    path_.assign(text, static_cast<size_t>(std::max<ssize_t>(0, bytes)));
    close(ends[0]);
  }
  ~Owner() { Kill(); }
  // Also the owner, whose parent it is.
  void Kill() {
    if (child_ <= 0) return;
    const FileDescriptor lock(open((path_ + "/.psring-lock").c_str(), O_RDWR | O_CLOEXEC));
    kill(child_, SIGKILL);
    EXPECT_EQ(waitpid(child_, nullptr, 0), child_);
    child_ = 0;
    // The owner ends a moment later, and its lock with it.
    struct flock held = {};
    EXPECT_TRUE(Eventually([&] {
      held = {};
      held.l_type = F_WRLCK;
      return !lock.valid() || (fcntl(lock.get(), F_OFD_GETLK, &held) == 0 && held.l_type == F_UNLCK);
    }));
  }
  const std::string& path() const { return path_; }  // empty: it could not create one

 private:
  pid_t child_ = 0;
  std::string path_;
};

TEST(TemporaryFolderTest, ThoseOfLiveProcessesStayAndThoseOfKilledOnesAreRemoved) {
  const auto outer = TemporaryFolder::Create();
  ASSERT_TRUE(outer.ok());
  Owner killed(outer->path(), false), alive(outer->path(), false);
  const auto own = TemporaryFolder::Create(outer->path()).value();
  killed.Kill();
  ASSERT_TRUE(fs::exists(killed.path()));
  ASSERT_TRUE(TemporaryFolder::Create(outer->path()).ok());
  EXPECT_FALSE(fs::exists(killed.path()));
  EXPECT_TRUE(fs::exists(alive.path() + "/records"));
  EXPECT_TRUE(fs::exists(own.path()));
}

// A container with the host's /tmp: its processes have numbers that mean others here, or none.
TEST(TemporaryFolderTest, ThoseOfAnotherPidNamespaceStay) {
  const auto outer = TemporaryFolder::Create();
  ASSERT_TRUE(outer.ok());
  Owner contained(outer->path(), true);
  if (contained.path().empty()) GTEST_SKIP() << "creating a PID namespace needs root";
  Owner outside(outer->path(), false);
  ASSERT_TRUE(TemporaryFolder::Create(outer->path()).ok());
  EXPECT_TRUE(fs::exists(contained.path() + "/records"));
  {
    const Owner other(outer->path(), true);  // removes nothing of ours
    EXPECT_TRUE(fs::exists(outside.path() + "/records"));
    EXPECT_TRUE(fs::exists(contained.path() + "/records"));
  }
  contained.Kill();
  ASSERT_TRUE(TemporaryFolder::Create(outer->path()).ok());
  EXPECT_TRUE(fs::exists(contained.path())) << "its namespace decides";
}

TEST(TemporaryFolderTest, DoubtfulFoldersStay) {
  const auto outer = TemporaryFolder::Create();
  ASSERT_TRUE(outer.ok());
  std::string own;  // this process's prefix
  {
    const auto folder = TemporaryFolder::Create(outer->path());
    ASSERT_TRUE(folder.ok());
    own = folder->path().substr(0, folder->path().size() - 6);
  }
  const pid_t ended = fork();
  if (ended == 0) _exit(0);
  ASSERT_EQ(waitpid(ended, nullptr, 0), ended);
  const std::string no_lock = own + "aaaaaa", link = own + "bbbbbb", lock_is_a_link = own + "cccccc",
                    of_another_host = outer->path() + "/psring-0123456789abcdef-dddddd",
                    of_an_earlier_version = absl::StrCat(outer->path(), "/psring-", ended, "-abcdef"),
                    of_others = absl::StrCat(outer->path(), "/other-", ended, "-abcdef");
  const std::vector<std::string> folders = {no_lock, lock_is_a_link, of_another_host, of_an_earlier_version,
                                            of_others};
  for (const std::string& path : folders) ASSERT_TRUE(fs::create_directory(path));
  fs::create_directory_symlink(of_others, link);
  std::ofstream(of_others + "/.psring-lock") << "";
  std::ofstream(of_another_host + "/.psring-lock") << "";
  fs::create_symlink(of_others + "/.psring-lock", lock_is_a_link + "/.psring-lock");
  ASSERT_TRUE(TemporaryFolder::Create(outer->path()).ok());
  for (const std::string& path : folders) EXPECT_TRUE(fs::exists(path)) << path;
  EXPECT_TRUE(fs::is_symlink(link));
}

TEST(TemporaryFolderTest, AnErrorNamesTheFolderTheReasonAndTheRemedy) {
  const char* const before = getenv("TMPDIR");
  const std::string saved = before == nullptr ? "" : before;
  setenv("TMPDIR", "/no/such/place", 1);
  EXPECT_EQ(TemporaryFolder::Create().status().message(),
            "cannot create a folder in /no/such/place (TMPDIR): No such file or directory; set TMPDIR to an "
            "existing folder that this user can write to");
  before == nullptr ? unsetenv("TMPDIR") : setenv("TMPDIR", saved.c_str(), 1);
  EXPECT_EQ(TemporaryFolder::Create("/proc", "use --transport tcp").status().message(),
            "cannot create a folder in /proc: No such file or directory; use --transport tcp");
}

// Tests use scripts that print an mpirun's version; one test starts the machine's own mpirun.

class MpirunTest : public testing::Test {
 protected:
  ~MpirunTest() override { setenv("PATH", path_.c_str(), 1); }
  // PATH then has only this mpirun.
  void Install(const std::string& says, const std::string& name = "mpirun") {
    const fs::path file = folder_ / name;
    std::ofstream(file) << "#!/bin/sh\necho '" << says << "'\n";
    chmod(file.c_str(), 0755);
    setenv("PATH", folder_.c_str(), 1);
  }
  void InstallMpich(const std::string& device) {
    Install(absl::StrCat("HYDRA build details:\n    Version:    4.0.2\n    Configure options: --with-device=",
                         device));
  }
  static MpirunCommand Found(const MpirunOptions& options) { return FindMpirun(options).value(); }
  static bool Sets(const MpirunCommand& command, const std::string& entry) {
    return std::count(command.environment.begin(), command.environment.end(), entry) == 1;
  }
  static std::string Line(const MpirunCommand& command) { return absl::StrJoin(command.prefix, " "); }

  const std::string path_ = getenv("PATH");
  const TestFolder made_;
  const fs::path folder_ = made_.path();
};

TEST_F(MpirunTest, StatesWhatToInstallIfMissing) {
  setenv("PATH", folder_.c_str(), 1);
  const absl::Status status = FindMpirun({.family = "Open MPI"}).status();
  EXPECT_THAT(status, Fails(absl::StatusCode::kNotFound, "openmpi-bin"));
  EXPECT_THAT(FindMpirun({.family = "MPICH"}).status().message(), Has("install mpich"));
}

TEST_F(MpirunTest, PrefersTheMpiOfTheBuild) {
  Install("mpirun (Open MPI) 4.1.4");
  EXPECT_EQ(FindMpirun({.family = "MPICH"}).status().message(),
            absl::StrCat(folder_.string(),
                         "/mpirun is Open MPI's, and there is no mpirun of MPICH, which this "
                         "build was made with; install mpich"));
  Install("HYDRA build details:\n    Version:    4.0.2", "mpiexec.mpich");
  EXPECT_EQ(*DescribeMpirun("MPICH"), absl::StrCat("MPICH 4.0.2, ", folder_.string(), "/mpiexec.mpich"));
  EXPECT_EQ(*DescribeMpirun("Open MPI"), absl::StrCat("Open MPI 4.1.4, ", folder_.string(), "/mpirun"));
}

TEST_F(MpirunTest, OpenMpiAllowsMoreRanksThanCoresAndDoesNotBind) {
  Install("mpirun (Open MPI) 4.1.4");
  const MpirunCommand command = Found({.ranks = 4, .family = ""});
  EXPECT_TRUE(absl::StartsWith(
      Line(command), absl::StrCat(folder_.string(), "/mpirun -n 4 --oversubscribe --bind-to none")));
  EXPECT_THAT(Line(command), Lacks(" pml "));
  EXPECT_TRUE(Sets(command, "OMPI_MCA_coll_tuned_use_dynamic_rules=1"));
  EXPECT_EQ(Sets(command, "OMPI_ALLOW_RUN_AS_ROOT=1"), geteuid() == 0);
}

TEST_F(MpirunTest, OpenMpiUsesOneTransport) {
  Install("mpirun (Open MPI) 4.1.4");
  const MpirunCommand shm = Found({.ranks = 2, .transport = "shm", .family = ""});
  EXPECT_THAT(Line(shm), Has("--mca pml ob1 --mca btl self,vader"));
  const MpirunCommand tcp = Found({.ranks = 2, .transport = "tcp", .family = ""});
  EXPECT_THAT(Line(tcp), Has("--mca pml ob1 --mca btl self,tcp --mca btl_tcp_if_include lo"));
}

TEST_F(MpirunTest, MpichsEnvironmentDependsOnItsNetwork) {
  InstallMpich("ch4:ucx");
  MpirunCommand command = Found({.ranks = 3, .transport = "tcp", .family = ""});
  EXPECT_EQ(Line(command), absl::StrCat(folder_.string(), "/mpirun -n 3"));
  EXPECT_TRUE(Sets(command, "MPIR_CVAR_NOLOCAL=1") && Sets(command, "UCX_TLS=tcp,self"));
  InstallMpich("ch4:ofi");
  command = Found({.ranks = 3, .transport = "tcp", .family = ""});
  EXPECT_TRUE(Sets(command, "MPIR_CVAR_NOLOCAL=1") && Sets(command, "FI_PROVIDER=tcp"));
  InstallMpich("something:else");
  EXPECT_TRUE(FindMpirun({.ranks = 3, .family = ""}).ok());
  EXPECT_EQ(FindMpirun({.ranks = 3, .transport = "tcp", .family = ""}).status().code(),
            absl::StatusCode::kUnimplemented);
}

TEST_F(MpirunTest, DescribesItInOneLine) {
  Install("mpirun (Open MPI) 4.1.4");
  EXPECT_EQ(*DescribeMpirun(""), absl::StrCat("Open MPI 4.1.4, ", folder_.string(), "/mpirun"));
  InstallMpich("ch4:ofi");
  EXPECT_EQ(*DescribeMpirun(""), absl::StrCat("MPICH 4.0.2, ", folder_.string(), "/mpirun"));
}

TEST_F(MpirunTest, RecognizesBoilerplate) {
  EXPECT_TRUE(IsMpirunBoilerplate("-----------------------------"));
  EXPECT_TRUE(IsMpirunBoilerplate("MPI_ABORT was invoked on rank 0 in communicator MPI_COMM_WORLD"));
  EXPECT_FALSE(IsMpirunBoilerplate(
      "mpirun noticed that process rank 1 with PID 0 on node vm exited on signal 9 (Killed)."));
  EXPECT_FALSE(IsMpirunBoilerplate("trainer: rank 1: no data"));
}

TEST_F(MpirunTest, RejectsOtherMpisAndBadOptionsInOneLine) {
  Install("mpirun of somebody else");
  EXPECT_EQ(FindMpirun({.family = ""}).status().code(), absl::StatusCode::kUnimplemented);
  Install("mpirun (Open MPI) 4.1.4");
  EXPECT_EQ(FindMpirun({.ranks = 0}).status().code(), absl::StatusCode::kInvalidArgument);
  const absl::Status status = FindMpirun({.ranks = 1, .transport = "pigeon"}).status();
  EXPECT_THAT(status, Fails(absl::StatusCode::kInvalidArgument, "auto, shm, tcp"));
}

TEST_F(MpirunTest, StartsTheRequestedRanks) {
  const absl::StatusOr<MpirunCommand> mpirun = FindMpirun({.ranks = 3});
  if (!mpirun.ok()) GTEST_SKIP() << mpirun.status().message();
  Interrupt interrupt;
  int lines = 0;
  ChildSpec child{.name = "mpirun", .command = mpirun->prefix, .environment = mpirun->environment};
  child.command.insert(child.command.end(), {"/bin/echo", "here"});
  LaunchSpec spec{.what = "mpirun", .children = {child}, .deadline = absl::Seconds(30)};
  spec.on_line = [&](int, const std::string& line) { return lines += line == "here", true; };
  const absl::Status status = RunChildren(spec, interrupt);
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(lines, 3);
}

}  // namespace
}  // namespace psring
