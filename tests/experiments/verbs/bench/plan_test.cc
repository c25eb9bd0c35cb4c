// Flags of bench -> sizes, combinations and launches.
#include "experiments/verbs/bench/plan.h"

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "experiments/verbs/bench/runner.h"
#include "tests/has.h"

namespace psring {
namespace {

using testing::ElementsAre;

BenchCatalog TestBenchCatalog() {
  return BenchCatalogFromJson(R"({
    "collectives": ["all_reduce", "reduce_scatter", "broadcast"],
    "backends": [
      {"name": "native", "available": true, "transports": ["auto", "shm", "tcp", "cuda_ipc"],
       "algorithms": {"all_reduce": ["ring", "star", "direct", "one-shot"], "reduce_scatter": ["ring"],
                      "broadcast": ["star"]}},
      {"name": "gloo", "available": true, "transports": ["tcp"],
       "algorithms": {"all_reduce": ["ring", "bcube"], "reduce_scatter": [], "broadcast": []}},
      {"name": "mpi", "available": true, "transports": ["auto", "shm", "tcp"],
       "algorithms": {"all_reduce": ["default", "ring"], "reduce_scatter": ["default"], "broadcast": []}},
      {"name": "nccl", "available": false, "missing": "install the CUDA toolkit", "transports": [],
       "algorithms": {"all_reduce": []}}]})")
      .value();
}

absl::StatusOr<BenchPlan> PlanOf(const BenchRequest& request, const absl::Status& mpirun = absl::OkStatus()) {
  static const BenchCatalog catalog = TestBenchCatalog();
  return MakeBenchPlan(request, catalog, mpirun);
}

std::vector<std::string> NamesOf(const BenchPlan& plan) {
  std::vector<std::string> names;
  for (const BenchCombination& c : plan.combinations)
    names.push_back(absl::StrJoin({c.backend, c.algorithm, c.transport, c.buffers}, "/"));
  return names;
}

TEST(BenchSizes, GrowByAFactorOrAStepUpToTheLargest) {
  EXPECT_THAT(*SizesOf({.least = 8, .most = 64, .step_factor = 2}), ElementsAre(8, 16, 32, 64));
  EXPECT_THAT(*SizesOf({.least = 8, .most = 63, .step_factor = 2}), ElementsAre(8, 16, 32));
  EXPECT_THAT(*SizesOf({.least = 8, .most = 30, .step_bytes = 10}), ElementsAre(8, 18, 28));
  EXPECT_THAT(*SizesOf({.least = 4096, .most = 16 << 20}), ElementsAre(4096, 65536, 1048576, 16777216));
  EXPECT_THAT(*SizesOf({.least = 7, .most = 7, .step_factor = 2}), ElementsAre(7));
  EXPECT_THAT(*SizesOf({.least = 0, .most = 4, .step_bytes = 4}), ElementsAre(0, 4));
}

TEST(BenchSizes, AListIsUsedUnchanged) {
  EXPECT_THAT(*SizesOf({.list = {25, 4}}), ElementsAre(25, 4));
  EXPECT_THAT(SizesOf({.list = {25, 25}}).status().message(), Has("twice"));
}

TEST(BenchSizes, InvalidSizesAreRejected) {
  EXPECT_THAT(SizesOf({.least = 9, .most = 8}).status().message(), Has("above"));
  EXPECT_THAT(SizesOf({.least = 1, .most = 8, .step_bytes = 1, .step_factor = 2}).status().message(),
              Has("exclude"));
  EXPECT_THAT(SizesOf({.least = 1, .most = 8, .step_factor = 1}).status().message(), Has("grow"));
  EXPECT_THAT(SizesOf({.least = 0, .most = 1 << 20, .step_bytes = 1}).status().message(), Has("1000"));
}

TEST(BenchPlan, APlainBenchShowsTheBestOfEveryBackend) {
  const BenchPlan plan = PlanOf({}).value();
  EXPECT_THAT(
      NamesOf(plan),
      ElementsAre("native/ring/shm/private", "native/ring/shm/shared", "native/direct/shm/private",
                  "native/direct/shm/shared", "native/one-shot/shm/private", "native/one-shot/shm/shared",
                  "native/ring/tcp/private", "native/direct/tcp/private", "native/one-shot/tcp/private",
                  "gloo//tcp/private", "mpi//shm/private", "mpi//tcp/private"));
}

TEST(BenchPlan, AnAlgorithmMayHaveANumber) {
  BenchCatalog catalog = TestBenchCatalog();
  catalog.backends.front().algorithms["all_reduce"].push_back("hierarchical");
  const auto plan_of = [&](const std::vector<std::string>& algorithms) {
    return MakeBenchPlan(
        {.backends = {"native"}, .algorithms = algorithms, .transports = {"auto"}, .workers = {4}}, catalog,
        absl::OkStatus());
  };
  EXPECT_THAT(NamesOf(plan_of({"hierarchical:2", "hierarchical"}).value()),
              ElementsAre("native/hierarchical:2/auto/private", "native/hierarchical/auto/private"));
  EXPECT_THAT(plan_of({"ring:2"}).status().message(), Has("'ring:2' is not an algorithm of native here"));
}

TEST(BenchPlan, OnlyNativeConnectionsAreEncrypted) {
  const BenchPlan plan = PlanOf({.transports = {"tcp"}, .tls = "auto"}).value();
  EXPECT_THAT(NamesOf(plan), ElementsAre("native/ring/tcp/private", "native/direct/tcp/private",
                                         "native/one-shot/tcp/private"));
  EXPECT_EQ(PlanOf({.backends = {"gloo"}, .tls = "auto"}).status(),
            absl::InvalidArgumentError(
                "--tls with --backend gloo, which opens its own connections; omit one of them"));
}

// A build with NCCL.
BenchCatalog GpuCatalog() {
  BenchCatalog catalog = TestBenchCatalog();
  BackendInfo& nccl = catalog.backends.back();
  nccl.available = true;
  nccl.transports = {"auto", "tcp"};
  nccl.algorithms["all_reduce"] = {"default", "ring"};
  return catalog;
}

absl::StatusOr<BenchPlan> GpuPlanOf(BenchRequest request) {
  static const BenchCatalog catalog = GpuCatalog();
  request.device = "cuda";
  if (request.gpus == 0) request.gpus = 2;
  return MakeBenchPlan(request, catalog, absl::OkStatus());
}

TEST(BenchPlan, OnGpusNativeAndNcclAreCompared) {
  const BenchPlan plan = GpuPlanOf({}).value();
  EXPECT_THAT(NamesOf(plan), ElementsAre("native/ring/cuda_ipc/shared", "native/direct/cuda_ipc/shared",
                                         "native/one-shot/cuda_ipc/shared", "nccl//auto/private"));
  EXPECT_EQ(plan.launches.size(), 1);
  EXPECT_THAT(plan.notes, testing::IsEmpty());
}

TEST(BenchPlan, NcclOverSocketsGetsItsOwnProcesses) {
  const BenchPlan plan = GpuPlanOf({.backends = {"nccl"}, .transports = {"auto", "tcp"}}).value();
  ASSERT_EQ(plan.launches.size(), 2);
  EXPECT_THAT(plan.launches[0].combinations, ElementsAre(0));
  EXPECT_THAT(plan.launches[1].combinations, ElementsAre(1));
}

TEST(BenchPlan, MoreRanksThanGpusNeedOversubscribeAndAddANote) {
  EXPECT_THAT(GpuPlanOf({.workers = {4}}).status().message(),
              Has("--workers 4 on 2 GPUs: use fewer, or --oversubscribe"));
  const BenchPlan plan = GpuPlanOf({.workers = {4}, .oversubscribe = true}).value();
  EXPECT_THAT(plan.notes, ElementsAre("ranks share GPUs: functional, not a measurement"));
}

TEST(BenchPlan, HostOnlyFlagsAreRejectedOnGpus) {
  EXPECT_THAT(GpuPlanOf({.backends = {"gloo"}}).status().message(), Has("for native and nccl; gloo works"));
  EXPECT_THAT(GpuPlanOf({.collectives = {kPushPull}}).status().message(), Has("omit --device"));
  EXPECT_THAT(GpuPlanOf({.limits = true}).status().message(), Has("omit --device or --limits"));
  EXPECT_THAT(GpuPlanOf({.buffers = {"huge"}}).status().message(), Has("private and shared"));
  EXPECT_THAT(GpuPlanOf({.transports = {"shm"}}).status().message(), Has("'shm' is not a transport"));
  EXPECT_THAT(PlanOf({.transports = {"cuda_ipc"}}).status().message(), Has("'cuda_ipc' is not a transport"));
  EXPECT_THAT(PlanOf({.oversubscribe = true}).status().message(), Has("is for --device cuda"));
}

TEST(BenchPlan, EachMpiTransportIsALaunchThatOthersJoin) {
  const BenchPlan plan = PlanOf({}).value();
  ASSERT_EQ(plan.launches.size(), 2);
  EXPECT_EQ(plan.launches[0].mpi_transport, "shm");
  EXPECT_THAT(plan.launches[0].combinations, ElementsAre(0, 1, 2, 3, 4, 5, 10));
  EXPECT_EQ(plan.launches[1].mpi_transport, "tcp");
  EXPECT_THAT(plan.launches[1].combinations, ElementsAre(6, 7, 8, 9, 11));
  EXPECT_EQ(plan.rounds, 3);
  EXPECT_EQ(plan.iterations, 7);  // 20 in 3 rounds
}

TEST(BenchPlan, WithoutMpiThereIsOneLaunch) {
  const BenchPlan plan = PlanOf({.backends = {"native", "gloo"}}).value();
  ASSERT_EQ(plan.launches.size(), 1);
  EXPECT_EQ(plan.launches[0].kind, BenchLaunchKind::kPlain);
  EXPECT_EQ(plan.launches[0].combinations.size(), 10);
  EXPECT_EQ(plan.rounds, 1);
  EXPECT_EQ(plan.iterations, 20);
}

TEST(BenchPlan, EachNumberOfWorkersIsALaunch) {
  const BenchPlan plan =
      PlanOf({.backends = {"native"}, .algorithms = {"ring"}, .transports = {"tcp"}, .workers = {2, 4, 2}})
          .value();
  ASSERT_EQ(plan.launches.size(), 2);
  EXPECT_EQ(plan.launches[0].workers, 2);
  EXPECT_EQ(plan.launches[1].workers, 4);
  EXPECT_EQ(plan.rounds, 3);
}

TEST(BenchPlan, TheParameterServerGetsItsOwnProcesses) {
  const BenchPlan plan = PlanOf({.backends = {"native"},
                                 .algorithms = {"ring"},
                                 .transports = {"tcp"},
                                 .collectives = {"all_reduce", "ps_push_pull"},
                                 .limits = true})
                             .value();
  ASSERT_EQ(plan.launches.size(), 2);
  EXPECT_TRUE(plan.launches[0].limits);
  EXPECT_EQ(plan.launches[1].kind, BenchLaunchKind::kPushPull);
  EXPECT_TRUE(plan.launches[1].limits);
  // Each payload has a server of its own, and measures its own limit.
  const BenchPlan alone = PlanOf({.collectives = {"ps_push_pull"}, .limits = true}).value();
  ASSERT_EQ(alone.launches.size(), 2);
  EXPECT_EQ(alone.combinations[alone.launches[0].combinations[0]].transport, "shm");
  EXPECT_EQ(alone.combinations[alone.launches[1].combinations[0]].transport, "tcp");
  EXPECT_TRUE(alone.launches[0].limits);
  EXPECT_TRUE(alone.launches[1].limits);
}

TEST(BenchPlan, AServersWireIsComparedOverTcp) {
  const BenchPlan plan =
      PlanOf({.collectives = {"ps_push_pull"}, .server_wires = {"grpc", "stream"}}).value();
  std::vector<std::string> names;
  for (const BenchCombination& combination : plan.combinations) names.push_back(combination.name());
  EXPECT_THAT(names, ElementsAre("ps_push_pull, grpc sync over shm, 2 workers",
                                 "ps_push_pull, grpc sync over tcp, 2 workers",
                                 "ps_push_pull, stream sync over tcp, 2 workers"));
  EXPECT_EQ(plan.launches.size(), 3);
}

TEST(BenchPlan, UnofferedNamesAreRejectedWithTheOfferedOnes) {
  const auto message = [](const BenchRequest& request) {
    return std::string(PlanOf(request).status().message());
  };
  EXPECT_THAT(message({.backends = {"gloo"}, .algorithms = {"direct"}}), Has("ring, bcube"));
  EXPECT_THAT(message({.backends = {"gloo"}, .transports = {"shm"}}), Has("tcp"));
  EXPECT_THAT(message({.algorithms = {"rign"}}), Has("ring, star"));
  EXPECT_THAT(message({.backends = {"gloo"}, .collectives = {"broadcast"}}), Has("gloo offers no broadcast"));
  EXPECT_THAT(message({.backends = {"nccl"}}), Has("install the CUDA toolkit"));
  EXPECT_THAT(message({.backends = {"glo"}}), Has("gloo"));
  EXPECT_THAT(message({.collectives = {"allreduce"}}), Has("all_reduce"));
  EXPECT_THAT(message({.workers = {1025}}), Has("1024"));
  EXPECT_THAT(message({.workers = {65}, .types = {"bfloat16"}}), Has("at most 64"));
  EXPECT_THAT(message({.workers = {513}, .types = {"float16"}}), Has("at most 512"));
  EXPECT_TRUE(PlanOf({.workers = {1024}}).ok());
  EXPECT_TRUE(PlanOf({.collectives = {"ps_push_pull"}, .workers = {65}, .types = {"bfloat16"}}).ok());
  EXPECT_THAT(message({.collectives = {"broadcast"}, .workers = {2}, .root = 2}), Has("--root"));
  EXPECT_THAT(message({.collectives = {"ps_push_pull"}, .sizes = {.least = 0, .most = 0}}), Has("4 bytes"));
}

TEST(BenchPlan, UnofferedCombinationsAreOmittedWithANote) {
  const BenchPlan plan =
      PlanOf({.backends = {"native", "gloo"}, .algorithms = {"direct"}, .transports = {"tcp"}}).value();
  EXPECT_THAT(NamesOf(plan), ElementsAre("native/direct/tcp/private"));
  EXPECT_THAT(plan.notes, ElementsAre(Has("gloo all_reduce has no algorithm 'direct'")));
}

TEST(BenchPlan, ANoteSaysThatLibrariesUseASlowCongestionControl) {
  const auto notes = [](const BenchRequest& request) { return PlanOf(request).value().notes; };
  const BenchRequest paced{
      .backends = {"native", "gloo"}, .transports = {"tcp"}, .congestion_control = "bbr"};
  EXPECT_THAT(notes(paced),
              ElementsAre(Has("libraries over TCP use this machine's congestion control, bbr,")));
  BenchRequest request = paced;
  request.congestion_control = "cubic";
  EXPECT_THAT(notes(request), testing::IsEmpty());
  request = paced;
  request.backends = {"native"};
  EXPECT_THAT(notes(request), testing::IsEmpty());
  request = paced;
  request.layout.nodes = 2;
  EXPECT_THAT(notes(request), testing::IsEmpty());
}

TEST(BenchPlan, WithoutMpirunMpiIsOmittedUnlessNamed) {
  const absl::Status none = absl::NotFoundError("install openmpi-bin");
  const BenchPlan plan = PlanOf({}, none).value();
  EXPECT_THAT(plan.notes, ElementsAre(Has("install openmpi-bin")));
  EXPECT_EQ(plan.launches.size(), 1);
  EXPECT_EQ(PlanOf({.backends = {"mpi"}}, none).status(), none);
}

TEST(BenchPlan, MemoryIsTheLargestLaunchs) {
  const BenchPlan plan = PlanOf({.backends = {"native"},
                                 .algorithms = {"ring"},
                                 .transports = {"shm"},
                                 .buffers = {"private", "shared"},
                                 .workers = {2, 4},
                                 .sizes = {.least = 1 << 20, .most = 1 << 20}})
                             .value();
  EXPECT_EQ(BenchMemoryBytes(plan), uint64_t{4 * 2 * 2} << 20);
}

// bench on several machines without processes: plans, orders, texts and the required bus bandwidth.

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

}  // namespace
}  // namespace psring
