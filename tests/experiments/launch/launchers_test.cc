// A training ends with the same weights under every launcher. The real binaries and launchers.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_join.h"
#include "experiments/launch/interrupt.h"
#include "experiments/launch/launcher.h"
#include "experiments/launch/mpirun.h"
#include "experiments/virtual_cluster/namespaces.h"
#include "tests/experiments/start_psring.h"
#include "tests/experiments/training_processes.h"
#include "tests/has.h"

namespace psring {
namespace {

constexpr char kShort[] = "--model mlp-small --data synthetic --steps 5 --batch 16 --no_eval --timeout 20";
constexpr int kRanks = 4;
const std::vector<std::string> kStrategies = {"--strategy ring", "--strategy ps-sync --deterministic"};

class LaunchersTest : public LaunchTest {
 protected:
  // The weights of the training with threads as ranks, which runs once.
  std::string Reference(const std::string& strategy) {
    if (const auto known = references_.find(strategy); known != references_.end()) return known->second;
    const std::string folder = Folder(absl::StrCat("reference", references_.size()));
    Succeeded(StartTrainer(
        absl::StrCat(strategy, " ", kShort, " --ranks_per_process ", kRanks, " --record ", folder)));
    return references_[strategy] = TheWeights(folder);
  }

  // The weights, which must be those of all ranks.
  static std::string TheWeights(const std::string& folder) {
    const std::vector<std::string> weights = Weights(folder);
    EXPECT_EQ(weights, std::vector<std::string>(kRanks, weights.empty() ? "" : weights.front()));
    return weights.empty() ? "no weights" : weights.front();
  }

  // The trainer, started by `launcher`, ends with the reference's weights.
  void ExpectTheSame(const std::string& launcher, const std::vector<std::string>& environment,
                     const std::string& more = "") {
    int number = 0;
    for (const std::string& strategy : kStrategies) {
      SCOPED_TRACE(strategy);
      const std::string folder = Folder(absl::StrCat("launched", number++));
      Succeeded(StartProgram(Words(launcher).front(),
                             absl::StrCat(launcher.substr(launcher.find(' ')), " ", PSRING_TRAINER, " ",
                                          strategy, " ", kShort, " --record ", folder, more),
                             environment));
      EXPECT_EQ(TheWeights(folder), Reference(strategy));
    }
  }

  std::map<std::string, std::string> references_;
};

// Two machines, represented by namespaces.
class NamespacesLaunchTest : public LaunchersTest {
 protected:
  void SetUp() override {
    if (const std::string why = WhyNoNamespaces(interrupt_); !why.empty()) GTEST_SKIP() << why;
    machines_ = Namespaces::Create(2, /*bits_per_s=*/0, interrupt_).value();
  }

  std::unique_ptr<Started> Node(int node, const std::string& arguments) {
    return StartPsring(
        absl::StrCat("train ", arguments, " --nnodes 2 --node_rank ", node, " --master_addr ",
                     Namespaces::Address(0), node == 0 ? absl::StrCat(" --out ", folder_, "/run") : ""),
        {}, machines_->node(node));
  }

  // Node 0 and node 1, which is started first.
  StartedOnes Nodes(const std::string& arguments, const std::string& of_node_1 = "") {
    StartedOnes nodes;
    nodes.push_back(Node(1, absl::StrCat(arguments, " ", of_node_1)));
    nodes.insert(nodes.begin(), Node(0, arguments));
    return nodes;
  }

  Interrupt interrupt_;
  std::unique_ptr<Namespaces> machines_;
};

// With torchrun's flags for a process per rank, and with one process for all devices of a machine.
TEST_F(NamespacesLaunchTest, TwoMachinesTrainToTheSameWeights) {
  for (const std::string layout : {" --nproc_per_node 2", " --ranks_per_process 2"}) {
    for (const auto& [strategy, placement] : {std::pair(kStrategies[0], ""), std::pair(kStrategies[1], ""),
                                              std::pair(kStrategies[1], " --server_placement rank0")}) {
      SCOPED_TRACE(strategy + placement + layout);
      std::filesystem::remove_all(Folder("run"));
      const StartedOnes nodes = Nodes(absl::StrCat(strategy, placement, " ", kShort, layout));
      ExpectSuccess(nodes);
      EXPECT_THAT(nodes[0]->output(), Has("on 2 machines"));
      EXPECT_EQ(TheWeights(Folder("run")), Reference(strategy));
    }
  }
}

// With one process per rank, and with one per machine.
TEST_F(LaunchersTest, MachinesOnTheLoopbackAddUpTheirGradients) {
  const auto single =
      Succeeded(StartPsring(absl::StrCat("train --strategy single --reference_workers 2 --micro_batches 2 ",
                                         kShort, " --out ", Folder("single"))));
  for (const std::string layout : {"--nproc_per_node 2", "--ranks_per_process 2"}) {
    SCOPED_TRACE(layout);
    std::filesystem::remove_all(Folder("run"));
    const int port = FreePort();
    StartedOnes nodes;
    for (const int node : {1, 0})
      nodes.push_back(StartPsring(absl::StrCat(
          "train ", kStrategies[1], " --local_aggregation --server_placement rank0 ", kShort, " ", layout,
          OnLoopback(node, port), node == 0 ? absl::StrCat(" --out ", Folder("run")) : "")));
    ExpectSuccess(nodes);
    EXPECT_EQ(TheWeights(Folder("run")), Weights(Folder("single")).front());
  }
}

// Node 1's monotonic clock is 1000 s ahead.
TEST_F(LaunchersTest, ConvertsTimesToNode0sClock) {
  const std::vector<std::string> elsewhen = {"/usr/bin/unshare", "--fork",      "--kill-child",
                                             "--time",           "--monotonic", "1000"};
  std::vector<std::string> probe = elsewhen;
  probe.push_back("/bin/true");
  if (!Ended(std::make_unique<Started>(probe, std::vector<std::string>()))->Succeeded())
    GTEST_SKIP() << "no time namespaces here";

  StartedOnes nodes;
  const int port = FreePort();
  for (const int node : {0, 1}) {
    std::vector<std::string> command = node == 0 ? std::vector<std::string>() : elsewhen;
    for (const std::string& word :
         Command(PSRING_BINARY, absl::StrCat("train --strategy ring --model mlp-small --data synthetic "
                                             "--steps 40 --no_eval --timeout 20 --nproc_per_node 1",
                                             OnLoopback(node, port),
                                             node == 0 ? absl::StrCat(" --out ", Folder("run")) : ""))) {
      command.push_back(word);
    }
    nodes.push_back(std::make_unique<Started>(command, std::vector<std::string>()));
  }
  ExpectSuccess(nodes);
  EXPECT_THAT(nodes[0]->output(), Has("clocks agree within "));

  // When each rank began and ended it, in ms.
  std::map<int64_t, std::vector<std::pair<double, double>>> steps;
  std::ifstream lines(Folder("run") + "/steps.jsonl");
  for (std::string line; std::getline(lines, line);) {
    const auto step = StepRecordFromJson(line).value();
    const double begin = 1e-6 * static_cast<double>(step.begin_ns);
    steps[step.step].emplace_back(begin, begin + step.step_ms);
  }
  ASSERT_EQ(steps.size(), 40u);
  for (const auto& [step, ranks] : steps) {
    ASSERT_EQ(ranks.size(), 2u);
    // A synchronous step of one rank overlaps with the other's.
    EXPECT_LT(ranks[0].first, ranks[1].second) << step;
    EXPECT_LT(ranks[1].first, ranks[0].second) << step;
  }
}

// Waits until the first child of `parent` is not `previous`, which a test has killed. 0: not within 30 s.
pid_t NextChildOf(pid_t parent, pid_t previous) {
  pid_t pid = 0;
  const bool found = Eventually(
      [&] {
        std::string children;
        std::getline(std::ifstream(absl::StrCat("/proc/", parent, "/task/", parent, "/children")), children);
        const auto all = Words(children);
        return !all.empty() && absl::SimpleAtoi(all.front(), &pid) && pid != previous;
      },
      absl::Seconds(30));
  return found ? pid : 0;
}

bool AwaitCheckpoint(const std::string& folder, int64_t step) {
  return Eventually([&] { return HasCheckpoint(folder, step); });
}

TEST_F(NamespacesLaunchTest, AProcessKilledOnAnotherMachineRestartsAll) {
  const std::string training =
      "--model mlp-small --data synthetic --steps 150 --batch 16 --no_eval --timeout 20 --strategy ring";
  const auto undisturbed = Succeeded(
      StartTrainer(absl::StrCat(training, " --ranks_per_process 4 --record ", Folder("undisturbed"))));

  const StartedOnes nodes =
      Nodes(absl::StrCat(training, " --jitter_ms 2 --nproc_per_node 2 --checkpoint_every 10 --max_restarts 2",
                         " --checkpoint_dir ", Folder("checkpoints")));
  pid_t before = 0;
  for (const int64_t step : {10, 70}) {
    ASSERT_TRUE(AwaitCheckpoint(Folder("checkpoints"), step)) << nodes[0]->Story() << nodes[1]->Story();
    const pid_t trainer = NextChildOf(nodes[1]->pid(), before);
    ASSERT_GT(trainer, 1) << nodes[1]->Story();
    kill(trainer, SIGKILL);
    before = trainer;
  }
  ExpectSuccess(nodes);
  EXPECT_THAT(nodes[0]->output(), Has("was killed by SIGKILL", "0 restarts are left"));
  EXPECT_EQ(TheWeights(Folder("run")), TheWeights(Folder("undisturbed")));
}

// Node 1's psring starts a trainer of which rank 3 dies at once. Asynchronous workers continue without a
// worker that has joined.
TEST_F(LaunchersTest, ARankThatDiesOnAnotherMachineBeforeItJoinsIsNamedBeforeTheTimeout) {
  const std::filesystem::path binaries = Folder("bin");
  std::filesystem::create_directories(binaries);
  std::filesystem::copy_file(PSRING_BINARY, binaries / "psring");
  std::filesystem::create_symlink(std::filesystem::path(PSRING_TRAINER).parent_path() / "ps_server",
                                  binaries / "ps_server");
  std::ofstream(binaries / "trainer")
      << "#!/bin/sh\nif [ \"$RANK\" = 3 ]; then kill -9 $$; fi\nexec " << PSRING_TRAINER << " \"$@\"\n";
  ASSERT_EQ(chmod((binaries / "trainer").c_str(), 0755), 0);
  const int port = FreePort();
  StartedOnes nodes;
  for (const int node : {0, 1})
    nodes.push_back(StartProgram(
        node == 0 ? PSRING_BINARY : (binaries / "psring").string(),
        absl::StrCat("train --strategy ps-async --model mlp-small --data synthetic --steps 5 --batch 16 "
                     "--no_eval --timeout 100 --nproc_per_node 2",
                     OnLoopback(node, port), node == 0 ? absl::StrCat(" --out ", Folder("run")) : "")));
  ASSERT_TRUE(WaitForAll(nodes)) << nodes[0]->Story() << nodes[1]->Story();
  for (const auto& node : nodes) {
    EXPECT_FALSE(node->Succeeded());
    EXPECT_THAT(node->errors(), Has("rank 3 was killed by SIGKILL (Killed) on node 1")) << node->Story();
  }
}

TEST_F(NamespacesLaunchTest, ANodeThatEndsEndsTheJobDespiteMaxRestarts) {
  const StartedOnes nodes = Nodes(absl::StrCat(
      "--model mlp-small --data synthetic --steps 100000 --batch 16 --no_eval --timeout 20 --strategy ring "
      "--nproc_per_node 1 --max_restarts 2 --checkpoint_every 10 --checkpoint_dir ",
      Folder("checkpoints")));
  ASSERT_TRUE(AwaitCheckpoint(Folder("checkpoints"), 10)) << nodes[0]->Story() << nodes[1]->Story();
  nodes[1]->Signal(SIGTERM);
  EXPECT_TRUE(WaitForAll(nodes));
  EXPECT_FALSE(nodes[0]->Succeeded());
  EXPECT_THAT(nodes[0]->errors(), Has("node 1")) << nodes[0]->Story();
  EXPECT_THAT(nodes[0]->output(), Lacks("started again"));
}

TEST_F(NamespacesLaunchTest, ADedicatedServerRunsOnTheLastMachine) {
  const StartedOnes nodes =
      Nodes(absl::StrCat(kStrategies[1], " --server_placement dedicated ", kShort, " --nproc_per_node 4"));
  ExpectSuccess(nodes);
  EXPECT_THAT(nodes[1]->output(), Has("1 process on this node"));
  EXPECT_EQ(TheWeights(Folder("run")), Reference(kStrategies[1]));
}

TEST_F(NamespacesLaunchTest, ALostNodeIsNamedAndEndsAll) {
  for (const int victim : {0, 1}) {
    SCOPED_TRACE(victim);
    std::filesystem::remove_all(Folder("run"));
    const std::string checkpoints = Folder(absl::StrCat("checkpoints", victim));
    const StartedOnes nodes =
        Nodes(absl::StrCat("--strategy ring --model mlp-small --data synthetic --no_eval --steps 1000000 "
                           "--nproc_per_node 2 --timeout 20 --checkpoint_every 10 --checkpoint_dir ",
                           checkpoints));
    ASSERT_TRUE(WaitUntil(nodes, [&] { return HasCheckpoint(checkpoints, 10); }))
        << nodes[0]->Story() << nodes[1]->Story();
    EXPECT_THAT(nodes[1]->output(), Has("2 processes on this node")) << nodes[1]->Story();
    nodes[static_cast<size_t>(victim)]->Signal(SIGKILL);
    EXPECT_TRUE(WaitForAll(nodes));
    const std::string& says = nodes[static_cast<size_t>(1 - victim)]->errors();
    EXPECT_THAT(says, Has(absl::StrCat("node ", victim)));
    const int hints = absl::StrContains(says, "\n--resume ") ? 1 : 0;  // node 0 names its last checkpoint
    EXPECT_EQ(std::count(says.begin(), says.end(), '\n'), 1 + hints) << says;
  }
}

TEST_F(NamespacesLaunchTest, OtherFlagsOnOneNodeAreNamedOnAll) {
  const StartedOnes nodes = Nodes(absl::StrCat("--strategy ring ", kShort), "--lr 0.5");
  EXPECT_TRUE(WaitForAll(nodes));
  for (const auto& node : nodes) {
    EXPECT_FALSE(node->Succeeded());
    EXPECT_THAT(node->errors(), Has("node 1 was started with --lr=0.5"));
  }
}

TEST_F(LaunchersTest, MpirunTrainsToTheSameWeights) {
  const auto mpirun = FindMpirun({.ranks = kRanks});
  if (!mpirun.ok()) GTEST_SKIP() << mpirun.status().message();
  ExpectTheSame(absl::StrJoin(mpirun->prefix, " "), mpirun->environment);
}

TEST_F(LaunchersTest, UnderMpirunTheLastRanksCanBeServers) {
  const auto mpirun = FindMpirun({.ranks = kRanks + 2});
  if (!mpirun.ok()) GTEST_SKIP() << mpirun.status().message();
  Succeeded(StartProgram(
      mpirun->prefix.front(),
      absl::StrCat(absl::StrJoin(mpirun->prefix.begin() + 1, mpirun->prefix.end(), " "), " ", PSRING_TRAINER,
                   " ", kStrategies[1], " --server_placement dedicated --servers 2 ", kShort, " --record ",
                   Folder("run")),
      mpirun->environment));
  EXPECT_EQ(TheWeights(Folder("run")), Reference(kStrategies[1]));
  for (int server : {0, 1})
    EXPECT_TRUE(std::filesystem::exists(Folder(absl::StrCat("run/result-server", server, ".json"))));
}

// PyTorch's torchrun, from PATH or PSRING_TORCHRUN.
TEST_F(LaunchersTest, TorchrunTrainsToTheSameWeights) {
  std::string torchrun = "torchrun";
  if (const char* named = getenv("PSRING_TORCHRUN"); named != nullptr) torchrun = named;
  // Debian 12's does not work: its PyTorch is too old for its Python.
  const auto works = RunForOutput({"/usr/bin/env", torchrun, "--standalone", "--no_python", "true"},
                                  absl::Seconds(60), Interrupt());
  if (!works.ok()) GTEST_SKIP() << "no torchrun that works: pip install torch, or set PSRING_TORCHRUN";
  ExpectTheSame(
      absl::StrCat("/usr/bin/env ", torchrun, " --standalone --nproc_per_node ", kRanks, " --no_python"), {});
}

// A script starts Slurm's daemons and removes them afterwards.
class SlurmLaunchTest : public LaunchersTest {
 protected:
  void SetUp() override {
    if (const std::string why = WhyNoSlurm(); !why.empty()) GTEST_SKIP() << why;
  }
  // The script that users get, with another job size; it writes to says.txt.
  std::unique_ptr<Started> Batch(int tasks, const std::string& arguments) const {
    const std::filesystem::path build = std::filesystem::path(PSRING_TRAINER).parent_path().parent_path();
    return StartProgram(
        "/bin/sh",
        absl::StrCat(PSRING_SLURM_SCRIPT, " sbatch --wait --nodes 1 --ntasks-per-node ", tasks, " --output ",
                     Folder("says.txt"), " ", PSRING_BATCH_SCRIPT, " ", arguments),
        {absl::StrCat("PSRING_BUILD=", build.string()), absl::StrCat("PSRING_RECORDS=", Folder("records"))});
  }
};

TEST_F(SlurmLaunchTest, SrunTrainsToTheSameWeights) {
  ExpectTheSame(absl::StrCat("/bin/sh ", PSRING_SLURM_SCRIPT, " srun -n ", kRanks, " --overcommit"), {});
}

TEST_F(SlurmLaunchTest, TheBatchScriptTrainsToTheSameWeights) {
  const auto launched = Ended(Batch(kRanks, absl::StrCat(kStrategies[0], " ", kShort)));
  EXPECT_TRUE(launched->Succeeded()) << launched->Story() << Slurp(Folder("says.txt"));
  EXPECT_EQ(TheWeights(Folder("records")), Reference(kStrategies[0]));
  EXPECT_THAT(Slurp(Folder("says.txt")), Has("5 steps in "));
}

// A failing rank ends all ranks, and its error is in the job's output.
TEST_F(SlurmLaunchTest, TheBatchScriptEndsWhenARankFails) {
  EXPECT_FALSE(Ended(Batch(2, "--strategy ring --model no-such-model"))->Succeeded());
  EXPECT_THAT(Slurp(Folder("says.txt")), Has("no-such-model"));
}

}  // namespace
}  // namespace psring
