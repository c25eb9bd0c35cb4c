// compare --nnodes: one psring per machine, started by hand and by launchers. The real binaries, on loopback.
#include <gtest/gtest.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "experiments/launch/mpirun.h"
#include "tests/experiments/slurp.h"
#include "tests/experiments/start_psring.h"
#include "tests/has.h"

namespace psring {
namespace {

constexpr char kShort[] =
    "--model mlp-small --data synthetic --no_eval --batch 16 --warmup_steps 1 --steps 3 --timeout 20";

class CompareOnNodesTest : public LaunchTest {
 protected:
  std::string Out() const { return absl::StrCat(" --out ", Folder("run")); }
  // The same flags on every node.
  std::string Flags(const std::string& more) const {
    return absl::StrCat("compare --nnodes 2 --master_addr 127.0.0.1 --master_port ", port_, " ", kShort, " ",
                        more);
  }
  StartedOnes StartByHand(const std::string& flags) const {
    StartedOnes nodes;
    for (const int node : {0, 1}) nodes.push_back(StartPsring(absl::StrCat(flags, " --node_rank ", node)));
    return nodes;
  }
  nlohmann::json Manifest() const { return nlohmann::json::parse(Slurp(Folder("run/manifest.json"))); }
  // "ring-2 none-2 ...", of the summary.
  std::vector<std::string> Rows() const {
    std::vector<std::string> rows;
    const nlohmann::json summary = nlohmann::json::parse(Slurp(Folder("run/summary.json")));
    for (const auto& row : summary) {
      const auto& figures = row["figures"];
      rows.push_back(
          absl::StrCat(figures["strategy"].get<std::string>(), "-", figures["workers"].get<int>()));
    }
    return rows;
  }

  const int port_ = FreePort();
};

TEST_F(CompareOnNodesTest, AnAddressOfAnotherMachineIsRejected) {
  const auto run = Ended(StartPsring("train --data synthetic --steps 1 --bind 192.0.2.1"));
  EXPECT_FALSE(run->Succeeded());
  EXPECT_THAT(run->errors(), Has("--bind 192.0.2.1: cannot listen")) << run->Story();
}

TEST_F(CompareOnNodesTest, ComparesStrategiesAndNumbersOfWorkersInOneRun) {
  StartedOnes nodes = StartByHand(Flags("--strategies ring,ps-sync --workers 2,4 --nproc_per_node 2 "
                                        "--placement spread --repeats 1") +
                                  Out());
  ExpectSuccess(nodes);
  EXPECT_EQ(absl::StrJoin(Rows(), " "), "single-1 none-2 ring-2 ps-sync-2 none-4 ring-4 ps-sync-4");
  // Colocated by default. Spread: of two workers, and of their servers, each machine has one; of the
  // reference, only node 0.
  EXPECT_THAT(nodes[1]->output(), Has("ring x 2: 1 process on this node")) << nodes[1]->Story();
  EXPECT_THAT(nodes[1]->output(), Has("ps-sync x 2 on 2 servers: 2 processes")) << nodes[1]->Story();
  EXPECT_THAT(nodes[1]->output(), Has("single x 1: 0 processes")) << nodes[1]->Story();
  EXPECT_THAT(nodes[0]->output(), Has("on 2 machines: ")) << nodes[0]->Story();
  EXPECT_EQ(Manifest()["machines"].size(), 2u);
  EXPECT_GT(Manifest()["link"]["network"]["wires"]["mb_per_s"].get<double>(), 0);
}

TEST_F(CompareOnNodesTest, KeepsFinishedRoundsWhenANodeIsLostAndResumes) {
  const std::string flags = Flags("--strategies ring --workers 2 --repeats 2");
  {
    StartedOnes nodes = StartByHand(flags + Out());
    ASSERT_TRUE(WaitUntil(nodes, [&] { return absl::StrContains(nodes[0]->output(), "round 2/2"); }))
        << nodes[0]->Story() << nodes[1]->Story();
    nodes[1]->Signal(SIGKILL);
    EXPECT_TRUE(WaitForAll(nodes));
    EXPECT_FALSE(nodes[0]->Succeeded());
    EXPECT_THAT(nodes[0]->errors(), Has("node 1")) << nodes[0]->Story();
  }
  EXPECT_GE(Manifest()["cost"]["rounds_done"].get<int>(), 1);
  ExpectSuccess(StartByHand(absl::StrCat(flags, " --resume ", Folder("run"))));
  EXPECT_EQ(Manifest()["cost"]["rounds_done"], 2);
}

TEST_F(CompareOnNodesTest, TakesTheNodesNumberFromMpirun) {
  const auto mpirun = FindMpirun({.ranks = 2});
  if (!mpirun.ok()) GTEST_SKIP() << mpirun.status().message();
  Succeeded(StartProgram(
      mpirun->prefix.front(),
      absl::StrCat(absl::StrJoin(mpirun->prefix.begin() + 1, mpirun->prefix.end(), " "), " ", PSRING_BINARY,
                   " ", Flags("--strategies ring --workers 2 --repeats 1"), Out()),
      mpirun->environment));
  EXPECT_EQ(absl::StrJoin(Rows(), " "), "single-1 none-2 ring-2");
}

TEST_F(CompareOnNodesTest, TakesTheNodesNumberFromSrun) {
  if (const std::string why = WhyNoSlurm(); !why.empty()) GTEST_SKIP() << why;
  Succeeded(
      StartProgram("/bin/sh", absl::StrCat(PSRING_SLURM_SCRIPT, " srun -n 2 --overcommit ", PSRING_BINARY,
                                           " ", Flags("--strategies ring --workers 2 --repeats 1"), Out())));
  EXPECT_EQ(absl::StrJoin(Rows(), " "), "single-1 none-2 ring-2");
}

}  // namespace
}  // namespace psring
