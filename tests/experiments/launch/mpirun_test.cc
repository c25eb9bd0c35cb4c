// Tests use scripts that print an mpirun's version; one test starts the machine's own mpirun.
#include "experiments/launch/mpirun.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "experiments/launch/launcher.h"
#include "tests/has.h"

namespace psring {
namespace {

namespace fs = std::filesystem;

class MpirunTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "psring-mpirun-XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override {
    setenv("PATH", path_.c_str(), 1);
    fs::remove_all(folder_);
  }
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
  fs::path folder_;
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
