// bench on several machines without processes: plans, orders, texts and the required bus bandwidth.
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/text/translate.h"
#include "experiments/verbs/bench/result.h"
#include "experiments/verbs/bench/runner.h"
#include "experiments/verbs/bench/text.h"
#include "tests/has.h"

namespace psring {
namespace {

BenchCatalog CatalogOfAll() {
  const std::map<std::string, std::vector<std::string>> algorithms = {{"all_reduce", {"ring", "direct"}}};
  return {.collectives = {"all_reduce"},
          .backends = {{.name = "native",
                        .available = true,
                        .algorithms = algorithms,
                        .transports = {"shm", "tcp", "auto", "cuda_ipc"}},
                       {.name = "mpi", .available = true, .algorithms = algorithms, .transports = {"auto"}}}};
}

// Three machines with two processes each.
BenchRequest OnThree() { return {.workers = {6}, .layout = {.nodes = 3, .per_node = 2}}; }

absl::StatusOr<BenchPlan> PlanOnNodes(const BenchRequest& request) {
  return MakeBenchPlan(request, CatalogOfAll(), absl::OkStatus());
}

TEST(BenchOnNodes, UsesOnlyWhatConnectsMachines) {
  const auto plan = PlanOnNodes(OnThree()).value();
  ASSERT_EQ(plan.combinations.size(), 2u);
  for (const BenchCombination& combination : plan.combinations) {
    EXPECT_EQ(combination.backend, "native");
    EXPECT_EQ(combination.transport, "tcp");
  }
  EXPECT_THAT(absl::StrJoin(plan.notes, "\n"), Has("mpi is omitted"));
  // The buffers of two of the six workers are on one machine.
  EXPECT_EQ(BenchMemoryBytes(plan), 2u * 2u * (16u << 20));
}

TEST(BenchOnNodes, RejectsWhatNeedsOneMachine) {
  const auto why = [](auto change) {
    BenchRequest request = OnThree();
    change(request);
    const absl::Status status = PlanOnNodes(request).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    return std::string(status.message());
  };
  EXPECT_THAT(why([](BenchRequest& r) { r.workers = {7}; }), Has("at most 6"));
  EXPECT_THAT(why([](BenchRequest& r) { r.limits = true; }), Has("--limits measures one machine"));
  EXPECT_THAT(why([](BenchRequest& r) { r.backends = {"mpi"}; }), Has("mpirun"));
  EXPECT_THAT(why([](BenchRequest& r) { r.transports = {"shm"}; }), Has("use tcp or auto"));
}

// The names and the commands of a node's processes.
std::string PartOfNode(int node, const BenchRequest& request, const NodeOrder& order) {
  const auto plan = PlanOnNodes(request).value();
  const JobHost host{.binaries = {.ps_server = "/own/ps_server",
                                  .ring_worker = "/own/ring_worker",
                                  .ps_worker = "/own/ps_worker"},
                     .address = absl::StrCat("10.0.0.", node + 1)};
  const auto task =
      BenchTaskOf(order, request, plan, {.node = node, .host = host, .store = {.host = "10.0.0.1"}});
  if (!task.ok()) return std::string(task.status().message());
  EXPECT_TRUE(task->records.empty());
  std::string text;
  for (const ChildSpec& child : task->children)
    absl::StrAppend(&text, child.name, ": ", absl::StrJoin(child.command, " "), " ",
                    absl::StrJoin(child.environment, " "), "\n");
  return text;
}

TEST(BenchOnNodes, ANodeStartsItsRanksAtItsAddress) {
  const std::string part = PartOfNode(1, OnThree(), {.bench_launch = 0, .store_port = 1234});
  for (const char* has :
       {"rank 2: /own/ring_worker", "rank 3: /own/ring_worker", "--bind=10.0.0.2", "MASTER_ADDR=10.0.0.1",
        "MASTER_PORT=1234", "RANK=3", "LOCAL_RANK=1", "WORLD_SIZE=6", "LOCAL_WORLD_SIZE=2"}) {
    EXPECT_THAT(part, Has(has));
  }
  EXPECT_THAT(part, Lacks("rank 4"));
}

TEST(BenchOnNodes, ServersAreSpreadOverTheMachinesWithWorkers) {
  BenchRequest request = OnThree();
  request.collectives = {"ps_push_pull"};
  request.workers = {4};
  request.servers = {3};
  const NodeOrder order{.bench_launch = 0, .store_port = 1234};
  EXPECT_THAT(PartOfNode(0, request, order), Has("server 2: /own/ps_server"));
  EXPECT_THAT(PartOfNode(1, request, order), Has("server 1: /own/ps_server"));
  EXPECT_EQ(PartOfNode(2, request, order), "");
}

TEST(BenchOnNodes, AnOrderNamesALaunchOfThePlan) {
  EXPECT_THAT(PartOfNode(1, OnThree(), {.bench_launch = 5, .store_port = 1}), Has("launch 5 is not in"));
  EXPECT_THAT(PartOfNode(1, OnThree(), {.store_port = 1}), Has("started with bench"));
}

NetworkReport SlowSecond() {
  // Node 1 sends and receives 0.5 Gbit/s, the others 1.
  NetworkReport network{.nodes = 3};
  const double fast = 125e6, slow = 62.5e6;
  network.bytes_per_s = {0, slow, fast, slow, 0, slow, fast, slow, 0};
  network.latency_s = {0, 2e-5, 3e-5, 2e-5, 0, 4e-5, 3e-5, 4e-5, 0};
  network.into = {fast, slow, fast};
  network.ring = {slow, slow, fast};
  return network;
}
const std::vector<std::string> kThree = {"a at 10.0.0.1", "b at 10.0.0.2", "c at 10.0.0.3"};

TEST(NetworkText, IsAMatrixWithASentence) {
  EXPECT_EQ(NetworkText(SlowSecond(), kThree),
            "# Network between 3 machines (measured): Gbit/s from the node of a row to that of a column, one "
            "pair at a time\n"
            "# into: into the node from all others at once; ring: to the next node, while all nodes send\n"
            "#   node         0         1         2      into      ring\n"
            "#      0         -       0.5         1         1       0.5\n"
            "#      1       0.5         -       0.5       0.5       0.5\n"
            "#      2         1       0.5         -         1         1\n"
            "# Latency in us (half a round trip of 4 bytes, measured)\n"
            "#   node         0         1         2\n"
            "#      0         -        20        30\n"
            "#      1        20         -        40\n"
            "#      2        30        40         -\n"
            "#   node 0: a at 10.0.0.1\n"
            "#   node 1: b at 10.0.0.2\n"
            "#   node 2: c at 10.0.0.3\n"
            "# the slowest node is node 1 (b at 10.0.0.2): it sends and receives at most 0.5 Gbit/s, while "
            "the others reach 1 (median)\n");
  EXPECT_THAT(InLanguage(Language::kChinese, [&] { return NetworkText(SlowSecond(), kThree); }),
              Has("最慢的节点是 node 1"));
}

TEST(NetworkText, OfManyNodesNamesTheFileInstead) {
  const int nodes = kMaxNodesOfMatrix + 1;
  NetworkReport network{.nodes = nodes};
  network.bytes_per_s.assign(static_cast<size_t>(nodes * nodes), 125e6);
  network.latency_s.assign(static_cast<size_t>(nodes * nodes), 1e-5);
  network.ring.assign(static_cast<size_t>(nodes), 125e6);
  const std::string text = NetworkText(network, std::vector<std::string>(static_cast<size_t>(nodes), "a"));
  EXPECT_THAT(text, Has("all pairs of 17 nodes are in network.csv", "# no node or link is much slower"));
}

TEST(NetworkCsv, HasARowForEachDirection) {
  const std::string csv = NetworkCsv("run", SlowSecond(), kThree);
  EXPECT_THAT(csv, Has("\n1,run,1,2,b at 10.0.0.2,c at 10.0.0.3,40,0.5,measured\n"));
  EXPECT_EQ(std::count(csv.begin(), csv.end(), '\n'), 7);
}

// All-reduces of 1 MB: ring in 1 ms, direct in 4 ms, so with 4 workers 1.5 and 0.375 GB/s.
class RequirementTest : public testing::Test {
 protected:
  RequirementTest() {
    plan_.combinations = {{"all_reduce", "native", "ring", "tcp", "private", 4},
                          {"all_reduce", "native", "direct", "tcp", "private", 4}};
    plan_.launches = {{.workers = 4, .combinations = {0, 1}}};
    plan_.sizes = {1000, 1000000};
  }
  absl::Status Check(double busbw, const std::string& slowest = "") const {
    BenchResult result(plan_);
    for (const int i : {0, 1}) {
      for (const auto& [bytes, us] : {std::pair{1000, 1}, {1000000, i == 0 ? 1000 : 4000}})
        EXPECT_TRUE(result.Note(
            plan_.launches[0],
            absl::StrCat(R"({"event":"row","combination":)", i, R"(,"type":"float32","op":"sum","bytes":)",
                         bytes, R"(,"count":1,"out_of_place":{"times_us":[)", us, "]}}")));
    }
    return CheckBusbw({.require_busbw = busbw}, result, slowest);
  }
  BenchPlan plan_;
};

TEST_F(RequirementTest, IsOfTheFastestAllReduceOfTheLargestSize) {
  EXPECT_TRUE(Check(0).ok());
  EXPECT_TRUE(Check(1.49).ok());
  const absl::Status slow = Check(1.6);
  EXPECT_TRUE(absl::IsAborted(slow)) << slow;
  EXPECT_THAT(std::string(slow.message()),
              AllOf(Has("below --require_busbw 1.6 (all_reduce, native ring over tcp"), Has(": 1.5 GB/s)"),
                    Has("the slowest is all_reduce, native direct"), Has(": 0.375 GB/s")));
  EXPECT_THAT(std::string(Check(1.6, "the slowest node is node 1").message()),
              testing::EndsWith("; the slowest node is node 1"));
}

}  // namespace
}  // namespace psring
