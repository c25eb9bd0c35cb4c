// bench --nnodes: one psring per machine, as processes on the loopback or in network namespaces.
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "experiments/launch/launcher.h"
#include "experiments/virtual_cluster/namespaces.h"
#include "tests/experiments/slurp.h"
#include "tests/experiments/start_psring.h"
#include "tests/has.h"

namespace psring {
namespace {

constexpr char kFewCalls[] = "-b 4K -e 64K -n 2 -w 0 --rounds 1 --timeout 20";

class BenchOnNodesTest : public LaunchTest {
 protected:
  std::string Flags(int nodes, const std::string& more, const std::string& calls = kFewCalls,
                    const std::string& address = "127.0.0.1") const {
    return absl::StrCat("bench --backend native --algorithm ring --nnodes ", nodes, " --master_addr ",
                        address, " --master_port ", port_, " ", calls, " ", more, " --out ", Folder("run"));
  }
  // Its processes, too, have this test's folder in their environment.
  std::unique_ptr<Started> Node(int node, const std::string& flags, const ChildNetwork& place = {}) const {
    return StartPsring(absl::StrCat(flags, " --node_rank ", node), {absl::StrCat("PSRING_TEST=", folder_)},
                       place);
  }
  StartedOnes StartNodes(int nodes, const std::string& more, const std::string& calls = kFewCalls) const {
    StartedOnes started;
    for (int node = 0; node < nodes; ++node) started.push_back(Node(node, Flags(nodes, more, calls)));
    return started;
  }
  void ExpectNoProcesses() const {
    const auto none = [this] {
      for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
        if (absl::StrContains(Slurp(entry.path() / "environ"), absl::StrCat("PSRING_TEST=", folder_))) {
          return false;
        }
      }
      return true;
    };
    EXPECT_TRUE(Eventually(none));
  }
  nlohmann::json Manifest() const { return nlohmann::json::parse(Slurp(Folder("run/manifest.json"))); }

  const int port_ = FreePort();
};

TEST_F(BenchOnNodesTest, MeasuresTheNetworkThenCollectivesAndServers) {
  StartedOnes nodes =
      StartNodes(3, "--collective all_reduce,ps_push_pull --servers 1,2 --workers 3,4 --nproc_per_node 2");
  ExpectSuccess(nodes);
  const std::string out = nodes[0]->output();
  EXPECT_THAT(out, Has("# on 3 machines; ranks per machine: at most 2", "# Network between 3 machines",
                       "=== all_reduce, native ring over tcp, private buffers, 4 workers",
                       "=== ps_push_pull, grpc sync on 2 servers over tcp, 3 workers"));
  EXPECT_THAT(nodes[1]->output(), Has("measuring the network", "4 workers: 2 processes on this node"));
  EXPECT_THAT(nodes[2]->output(), Has("4 workers: 0 processes on this node"));
  EXPECT_THAT(nodes[1]->output(), Has("3 workers (parameter server): 2 processes"));
  const nlohmann::json network = Manifest()["link"]["network"];
  ASSERT_EQ(network["pair_mb_per_s"].size(), 3u);
  EXPECT_GT(network["pair_mb_per_s"][2][1].get<double>(), 0);
  EXPECT_GT(network["latency_us"][0][2].get<double>(), 0);
  EXPECT_EQ(network["into_each_mb_per_s"].size(), 3u);
  EXPECT_TRUE(network["slowest"]["what"].is_string()) << network;
  EXPECT_EQ(Manifest()["bench"]["nnodes"], 3);
  EXPECT_EQ(Manifest()["finished"], true);
  EXPECT_THAT(Slurp(Folder("run/network.csv")), Has(",2,1,"));
  EXPECT_THAT(Slurp(Folder("run/bench.csv")), Has(",nodes\n"));
  EXPECT_THAT(Slurp(Folder("run/bench.txt")), Has("# Latency in us"));
  ExpectNoProcesses();
}

// As pods of an Indexed Job, which have their numbers in their environment, and no --node_rank.
TEST_F(BenchOnNodesTest, FailsBelowTheRequiredBusBandwidthAndNamesTheSlowest) {
  StartedOnes pods;
  for (const int pod : {0, 1})
    pods.push_back(
        StartPsring(Flags(2, "--require_busbw 100000"), {absl::StrCat("JOB_COMPLETION_INDEX=", pod)}));
  EXPECT_TRUE(WaitForAll(pods));
  for (const auto& pod : pods) EXPECT_TRUE(pod->EndedWith(1)) << pod->Story();
  EXPECT_THAT(pods[0]->errors(), Has("is below --require_busbw 100000", "the slowest ", " at 127.0.0.1)"));
  EXPECT_THAT(pods[0]->output(), Has("# on 2 machines", "=== all_reduce")) << "the figures are printed";
  EXPECT_THAT(pods[1]->output(), Has("1 process on this node"));
  EXPECT_EQ(Manifest()["machines"].size(), 2u);
}

TEST_F(BenchOnNodesTest, NamesANodeThatIsKilled) {
  StartedOnes nodes = StartNodes(3, "", "-b 1M -e 1M -n 1000000 --timeout 20");
  ASSERT_TRUE(WaitUntil(nodes, [&] { return absl::StrContains(nodes[2]->output(), "1 process on"); }))
      << nodes[0]->Story() << nodes[2]->Story();
  nodes[2]->Signal(SIGKILL);
  EXPECT_TRUE(WaitForAll(nodes));
  for (const int other : {0, 1}) {
    EXPECT_TRUE(nodes[static_cast<size_t>(other)]->EndedWith(1));
    EXPECT_THAT(nodes[static_cast<size_t>(other)]->errors(), Has("node 2"));
  }
  ExpectNoProcesses();
}

TEST_F(BenchOnNodesTest, NamesTheNodesThatJoinedIfOneIsMissing) {
  StartedOnes nodes;
  const std::string flags = Flags(3, "", "--timeout 3");
  for (const int node : {0, 1}) nodes.push_back(Node(node, flags));
  EXPECT_TRUE(WaitForAll(nodes));
  EXPECT_FALSE(nodes[0]->Succeeded());
  EXPECT_THAT(nodes[0]->errors(), Has("node 2 never joined; joined: node 0 (", ", node 1 ("));
}

TEST_F(BenchOnNodesTest, RejectsNodesWithOtherFlags) {
  StartedOnes nodes;
  nodes.push_back(Node(0, Flags(2, "")));
  nodes.push_back(Node(1, Flags(2, "-c 3")));
  EXPECT_TRUE(WaitForAll(nodes));
  for (const auto& node : nodes) EXPECT_THAT(node->errors(), Has("node 1 was started with --check=3"));
}

TEST_F(BenchOnNodesTest, PredictReadsItsResults) {
  StartedOnes nodes =
      StartNodes(3, "--workers 2,3", "--sizes 4K,64K,1M,4M -n 2 -w 0 --timeout 20 --rounds 1");
  ExpectSuccess(nodes);
  for (const auto& [arguments, says] :
       {std::pair{"--profile", "The links between the machines carry"}, {"--calibrate", "ring 4M"}}) {
    const auto predict = Succeeded(StartPsring(
        absl::StrCat("predict --workers 2,4 ", arguments, " ", Folder("run"), " --out ", Folder("predict"))));
    // Long lines are wrapped.
    EXPECT_THAT(absl::StrReplaceAll(predict->output(), {{"\n  ", " "}}), Has(says));
  }
}

// Machines as network namespaces, with links of 100 Mbit/s. The link of node 1 then gets half of it.
TEST_F(BenchOnNodesTest, NamesANodeWhoseLinkHasHalfTheRate) {
  const Interrupt interrupt;
  const auto machines = Namespaces::Create(3, 1e8, interrupt);
  if (!machines.ok()) GTEST_SKIP() << machines.status().message();
  const auto halve = [&](const std::string& interface, const ChildNetwork& network) {
    const auto halved = RunForOutput({FindTool("tc"), "qdisc", "change", "dev", interface, "root", "handle",
                                      "1:", "tbf", "rate", "50mbit", "burst", "16384", "limit", "1000000"},
                                     absl::Seconds(30), interrupt, network);
    ASSERT_TRUE(halved.ok()) << halved.status();
  };
  halve("eth0", (*machines)->node(1));
  halve("psring-p1", (*machines)->switch_network());
  StartedOnes nodes;
  for (int node = 0; node < 3; ++node)
    nodes.push_back(Node(node, Flags(3, "--require_busbw 1", kFewCalls, Namespaces::Address(0)),
                         (*machines)->node(node)));
  EXPECT_TRUE(WaitForAll(nodes));
  EXPECT_TRUE(nodes[0]->EndedWith(1)) << nodes[0]->Story();
  EXPECT_THAT(nodes[0]->errors(), Has("the slowest node is node 1 ("));
  EXPECT_EQ(Manifest()["link"]["network"]["slowest"]["from"], 1);
}

}  // namespace
}  // namespace psring
