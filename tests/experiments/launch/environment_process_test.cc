// The variables, limits, names and folders that launchers and machines give to the real programs.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "tests/experiments/started.h"
#include "tests/has.h"

namespace psring {
namespace {

using testing::AnyOf;
using testing::Not;

constexpr char kThreeSteps[] = "--strategy ring --model mlp-small --data synthetic --steps 3 --no_eval";

using Variables = std::vector<std::string>;

class EnvironmentTest : public LaunchTest {
 protected:
  // Runs `script` in /bin/sh, where $psring and $trainer are the programs, $folder is the test's and $flags
  // are of a short training.
  std::unique_ptr<Started> Shell(const std::string& script, Variables environment = {}) const {
    for (const std::string& variable :
         {absl::StrCat("psring=", PSRING_BINARY), absl::StrCat("trainer=", PSRING_TRAINER),
          absl::StrCat("folder=", folder_), absl::StrCat("flags=", kThreeSteps)}) {
      environment.push_back(variable);
    }
    return std::make_unique<Started>(std::vector<std::string>{"/bin/sh", "-c", script}, environment);
  }
  std::unique_ptr<Started> Run(const std::string& script, Variables environment = {}) const {
    return Ended(Shell(script, std::move(environment)));
  }
};

// Each rank has another parent, as when the launcher starts a script.
TEST_F(EnvironmentTest, PmisRankAndSizeSufficeOnOneHost) {
  StartedOnes ranks;
  for (int rank = 0; rank < 2; ++rank)
    ranks.push_back(Shell("$trainer $flags; exit $?", {absl::StrCat("PMI_RANK=", rank), "PMI_SIZE=2"}));
  ExpectSuccess(ranks);
  EXPECT_THAT(ranks[0]->output(), Has("3 steps in"));
}

class SrunTest : public EnvironmentTest {
 protected:
  // The variables of a step with a PMI plugin, whose nodes are this one.
  Variables Step(int process, const std::string& tasks_per_node) const {
    return {absl::StrCat("SLURM_PROCID=", process),
            "SLURM_STEP_NUM_TASKS=2",
            "SLURM_LOCALID=0",
            "SLURM_NODEID=0",
            absl::StrCat("SLURM_STEP_TASKS_PER_NODE=", tasks_per_node),
            "SLURM_STEP_NODELIST=127.0.0.1,127.0.0.2",
            absl::StrCat("SLURM_JOB_ID=", getpid()),
            "SLURM_STEP_ID=0",
            absl::StrCat("PMI_RANK=", process),
            "PMI_SIZE=2"};
  }
};

TEST_F(SrunTest, AStepWithAPmiPluginTrains) {
  StartedOnes ranks;
  for (int rank = 0; rank < 2; ++rank) ranks.push_back(Shell("exec $trainer $flags", Step(rank, "1(x2)")));
  ExpectSuccess(ranks);
}

TEST_F(SrunTest, AStepWithAPmiPluginTellsNodesTheirNumbersAndAddress) {
  StartedOnes nodes;
  for (int node = 0; node < 2; ++node)
    nodes.push_back(
        Shell("exec $psring train $flags --nnodes 2 --nproc_per_node 1 --bind 127.0.0.1 --timeout "
              "20 --out $folder/run",
              Step(node, "1(x2)")));
  ExpectSuccess(nodes);
  EXPECT_THAT(nodes[0]->output(), Has("on 2 machines"));
}

// A network of its own with two addresses, in which the name service is unreachable. `more`: other commands.
std::string InANetwork(const std::string& addresses, const std::string& then) {
  return absl::StrCat(
      "unshare -rmn sh -c 'ip link set lo up && ip link add a0 type veth peer name b0 && ip link set a0 up "
      "&& ip link set b0 up && ",
      addresses, " || exit 77; ", then, "'");
}

constexpr char kTwoRanks[] =
    "for r in 0 1; do RANK=$r WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 MASTER_PORT=29500 $trainer $flags "
    "${more:---timeout 20} >$folder/$r 2>&1 & done; wait; cat $folder/0 $folder/1";

TEST_F(EnvironmentTest, AnIpv6AddressIsAnAddress) {
  for (const char* host : {"fd00:7::1", "[fd00:7::1]"}) {
    const auto shell = Run(InANetwork("ip addr add fd00:7::1/64 dev a0 nodad", kTwoRanks),
                           {absl::StrCat("MASTER_ADDR=", host)});
    if (shell->EndedWith(77) || shell->EndedWith(1)) GTEST_SKIP() << "no networks here: " << shell->Story();
    EXPECT_THAT(shell->output(), Has("3 steps in")) << host;
  }
}

TEST_F(EnvironmentTest, AHostThatIsNeverResolvedIsNamed) {
  for (const char* addresses : {"ip addr add fd00:7::1/64 dev a0 nodad",
                                "ip addr add 10.78.1.1/24 dev a0 && ip addr add 10.78.2.1/24 dev a0"}) {
    const auto shell =
        Run(InANetwork(addresses, kTwoRanks), {"MASTER_ADDR=no-such-host.invalid", "more=--timeout 1"});
    if (shell->EndedWith(77) || shell->EndedWith(1)) GTEST_SKIP() << "no networks here: " << shell->Story();
    EXPECT_THAT(shell->output(), Has("waited 1 s for an address of host 'no-such-host.invalid'"));
    EXPECT_THAT(shell->output(), Lacks("--interface NAME"));
  }
}

// A pod that starts before its name is known.
TEST_F(EnvironmentTest, AHostIsAwaited) {
  std::ofstream(Folder("hosts")) << "127.0.0.1 localhost\n";
  auto one = Shell(InANetwork("ip addr add 10.78.1.1/24 dev a0 && ip addr add 10.78.2.1/24 dev a0 && mount "
                              "--bind $folder/hosts /etc/hosts",
                              std::string("touch $folder/ready; ") + kTwoRanks),
                   {"MASTER_ADDR=late-host"});
  (void)WaitUntil(*one, [&] { return std::filesystem::exists(Folder("1")); });
  std::ofstream(Folder("hosts"), std::ios::app) << "10.78.2.1 late-host\n";
  one = Ended(std::move(one));
  if (one->EndedWith(77) || one->EndedWith(1)) GTEST_SKIP() << "no networks here: " << one->Story();
  EXPECT_THAT(one->output(), Has("3 steps in"));
}

// A control group of this test. Removed by the destructor.
class Group {
 public:
  explicit Group(const std::string& controller) {
    const std::string top = absl::StrCat("/sys/fs/cgroup/", controller);
    folder_ = absl::StrCat(std::filesystem::exists(top) ? top : "/sys/fs/cgroup", "/psring-test-", getpid());
    std::error_code error;
    made_ = std::filesystem::create_directory(folder_, error);
  }
  ~Group() {
    if (made_) (void)Eventually([this] { return rmdir(folder_.c_str()) == 0; }, absl::Seconds(10));
  }
  bool Set(const std::string& file, const std::string& text) const {
    std::ofstream to(folder_ + "/" + file);
    return made_ && bool(to << text << std::flush);
  }
  bool Has(const std::string& file) const { return std::filesystem::exists(folder_ + "/" + file); }
  // Begins a script: enters the group.
  std::string Enter() const { return absl::StrCat("echo $$ >", folder_, "/cgroup.procs || exit 77; "); }

 private:
  std::string folder_;
  bool made_ = false;
};

TEST_F(EnvironmentTest, ALimitOfProcessesIsNamedAndNothingAborts) {
  const Group group("pids");
  if (!group.Set("pids.max", "12")) GTEST_SKIP() << "creating a control group with pids.max needs root";
  for (const int most : {6, 12, 20, 28, 40}) {
    SCOPED_TRACE(most);
    ASSERT_TRUE(group.Set("pids.max", absl::StrCat(most)));
    const auto shell =
        Run(absl::StrCat(group.Enter(), "$psring train $flags --workers 2 --out $folder/", most));
    if (shell->Succeeded()) {
      EXPECT_GT(most, 20) << "too few for the processes' threads";
      continue;
    }
    EXPECT_TRUE(shell->EndedWith(1) || shell->EndedWith(2)) << shell->Story();
    EXPECT_THAT(shell->errors(), Has("pids.max is ")) << shell->Story();
    EXPECT_THAT(shell->errors(), AnyOf(Has("raise it to "), Has("ork"))) << shell->Story();
    EXPECT_THAT(shell->errors(), Not(AnyOf(Has("terminate called"), Has("SIGABRT"))));
  }
}

TEST_F(EnvironmentTest, ACpuQuotaOfAnOwnGroupCounts) {
  const Group group("cpu");
  const bool version_1 = group.Has("cpu.cfs_quota_us");
  if (!(version_1 ? group.Set("cpu.cfs_quota_us", "100000") : group.Set("cpu.max", "100000 100000"))) {
    GTEST_SKIP() << "creating a control group with a CPU quota needs root";
  }
  const auto shell = Run(absl::StrCat(group.Enter(), "$psring doctor"));
  if (shell->EndedWith(77)) GTEST_SKIP() << shell->Story();
  EXPECT_THAT(shell->output(), testing::ContainsRegex("cores +\\S* *1[,\n]")) << shell->Story();
}

TEST_F(EnvironmentTest, ATemporaryFolderThatCannotBeUsedIsNamed) {
  std::ofstream(Folder("w.csv")) << "# device: V100\n# batch: 32\n# forward_ms: 5\n# backward_ms: 5\n"
                                    "name,bytes,ready_ms\na,40960,5\n";
  const auto shell =
      Run("$psring compare --strategies ring,ps-sync --workers 2 --workload $folder/w.csv --steps 3 "
          "--repeats 2 --out $folder/run",
          {"TMPDIR=/no/such/place"});
  if (shell->Succeeded()) return;  // it needed none
  EXPECT_THAT(
      shell->errors(),
      Has("cannot create a folder in /no/such/place (TMPDIR): No such file or directory; set TMPDIR"));
}

}  // namespace
}  // namespace psring
