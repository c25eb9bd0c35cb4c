// Flags of a comparison: which strategies they apply to, and what is rejected.
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "experiments/design/estimate.h"
#include "experiments/design/plan.h"
#include "tests/experiments/test_catalog.h"
#include "tests/has.h"

namespace psring {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::Not;
using testing::StartsWith;

std::string Refusal(const CompareOptions& options) {
  return std::string(CheckCompareOptions(options).message());
}

struct RefusalCase {
  CompareOptions options;
  testing::Matcher<const std::string&> refusal;  // "": accepted
};

void ExpectRefusals(const std::vector<RefusalCase>& cases) {
  for (const auto& [options, refusal] : cases)
    EXPECT_THAT(Refusal(options), refusal)
        << absl::StrJoin(options.strategies, ",") << " x " << absl::StrJoin(options.workers, ",") << ", "
        << absl::StrJoin(TrainingArguments(options.training), " ");
}

TEST(PlanOptions, FlagsApplyOnlyToStrategiesThatSupportThem) {
  const CompareOptions options{.strategies = {"ring", "ps-sync", "ps-async"},
                               .workers = {2},
                               .training = {.wire = "bfloat16", .staleness_lr = "inverse"}};
  EXPECT_EQ(Refusal(options), "");
  for (const Configuration& configuration : PlanFor(options).cost) {
    const bool sends = configuration.strategy.communicates();
    EXPECT_EQ(configuration.training.wire, sends ? "bfloat16" : "float32") << configuration.name();
    EXPECT_EQ(configuration.training.staleness_lr,
              configuration.strategy.name == "ps-async" ? "inverse" : "none");
  }
}

TEST(PlanOptions, EachServerWireIsARowOfServerStrategiesOnly) {
  const Plan plan = PlanFor({.strategies = {"ring", "ps-sync"},
                             .workers = {2},
                             .servers = {2},
                             .server_wires = {"grpc", "stream"}});
  EXPECT_THAT(Names(plan.cost), ElementsAre("single x 1", "none x 2", "ring x 2", "ps-sync x 2 on 2 servers",
                                            "ps-sync x 2 on 2 servers (stream)"));
  EXPECT_EQ(plan.cost.back().folder(), "ps-sync-2-on-2-stream");
  EXPECT_EQ(plan.cost.back().training.server_wire, "stream");
  EXPECT_THAT(Refusal({.strategies = {"ring"}, .workers = {2}, .server_wires = {"stream"}}),
              Has("--server_wire stream is for parameter-server strategies"));
}

TEST(PlanOptions, RejectsFlagsThatNoStrategySupports) {
  const TrainingOptions survives{.on_worker_loss = "continue"}, half{.wire = "float16"},
      clips{.clip_norm = 1};
  ExpectRefusals(
      {{{.strategies = {"ring"}, .workers = {2}, .servers = {2}}, Has("--servers is for")},
       {{.strategies = {"ring"}, .workers = {2}, .training = survives},
        StartsWith("--on_worker_loss continue is for parameter-server strategies")},
       {{.strategies = {"ring", "ps-sync"}, .workers = {2}, .training = survives}, ""},
       // Each strategy by itself: of several servers with backup workers all must stop.
       {{.strategies = {"ring", "ps-sync"}, .workers = {2}, .servers = {1, 2}, .training = survives}, ""},
       {{.strategies = {"ps-sync", "ps-backup:1"}, .workers = {3}, .servers = {1, 2}, .training = survives},
        Has("several servers of ps-backup")},
       {{.strategies = {"ring"}, .workers = {2}, .training = half}, ""},
       {{.strategies = {"single", "data-parallel"}, .workers = {2}, .training = half}, Has("--wire sets")},
       {{.strategies = {"ps-sync"}, .workers = {2}, .training = {.staleness_lr = "inverse"}},
        Has("--staleness_lr is for")},
       {{.workers = {2}, .training = clips}, Has("omit it or ps-async")},  // which is among the defaults
       {{.strategies = {"ring", "ps-sync"}, .workers = {2}, .training = clips}, ""},
       {{.strategies = {"ps-sync"},
         .workers = {2},
         .servers = {2},
         .training = {.server_placement = "colocated"}},
        Has("omit --servers")}});
  for (const Configuration& configuration :
       PlanFor({.strategies = {"ring", "ps-sync"}, .workers = {2}, .training = survives}).cost)
    EXPECT_EQ(configuration.training.on_worker_loss,
              configuration.strategy.name == "ps-sync" ? "continue" : "");
  EXPECT_THAT(PlanFor({.strategies = {"ring", "ps-sync"}, .workers = {2}, .training = clips}).notes,
              testing::Contains(Has("needs the entire gradient")));
}

TEST(PlanOptions, RejectsAGlobalBatchLargerThanTheData) {
  CompareOptions options{.workers = {1, 4}, .training = {.batch = 20000}};
  EXPECT_EQ(CheckBatches(options, 60000).message(),
            "--batch 20000 times 4 workers exceeds the 60000 samples of the data");
  EXPECT_TRUE(CheckBatches(options, 80000).ok());
  options.strategies = {"single"};  // one process, whatever --workers says
  EXPECT_TRUE(CheckBatches(options, 60000).ok());
}

TEST(PlanOptions, RejectsAGlobalBatchThatDoesNotDivide) {
  const auto refusal = [](const std::vector<int>& workers, int64_t batch) {
    const CompareOptions options{
        .strategies = {"ring"}, .workers = workers, .training = {.global_batch = batch}};
    return std::string(CheckBatches(options, 60000).message());
  };
  EXPECT_EQ(refusal({2, 3}, 128),
            "--global_batch 128 does not divide into 3 equal batches for 3 workers; use 126 or 129, or omit "
            "3 from --workers");
  EXPECT_THAT(refusal({4}, 3), Has("use 4, or omit 4"));
  EXPECT_EQ(refusal({4}, 80000), "--global_batch 80000 exceeds the 60000 samples of the data");
}

TEST(PlanOptions, SuggestsTheNearestName) {
  ExpectRefusals(
      {{{.strategies = {"rign"}},
        StartsWith("unknown strategy 'rign'; did you mean 'ring'? Use one of none, single, data-parallel")},
       {{.training = {.model = "mpl"}}, StartsWith("unknown model 'mpl'; did you mean 'mlp'? Use one of ")},
       {{.strategies = {"zzzzzz"}},
        StartsWith("unknown strategy 'zzzzzz'; use one of none, single, data-parallel, star, ring, ")}});
}

TEST(PlanOptions, RejectsAnInvalidNumber) {
  ExpectRefusals(
      {{{.strategies = {"ps-ssp"}},
        "strategy 'ps-ssp': ps-ssp:K needs a whole number from 1 (K: the most steps that a worker may be "
        "ahead), as in ps-ssp:1"},
       {{.strategies = {"ring:2"}}, "strategy 'ring:2': ring takes no number"},
       {{.strategies = {"ps-backup:2"}, .workers = {2, 4}},
        "ps-backup:2 with 2 workers: at most 1 can be spare; omit 2 from --workers, or use a smaller B"},
       {{.strategies = {"ps-backup:2", "ps-ssp:3"}, .workers = {3, 4}}, ""},
       {{.strategies = {"hierarchical:2"}, .workers = {2, 3}},
        "hierarchical:2 needs a multiple of 2 ranks, not 3"},
       {{.strategies = {"hierarchical", "hierarchical:2"}, .workers = {1, 2, 4}}, ""},
       {{.workers = {0}}, Not(IsEmpty())},
       {{.workers = {-1}}, Not(IsEmpty())},
       {{.workers = {65}}, Not(IsEmpty())},
       {{.workers = {1, 64}}, ""}});
}

TEST(PlanOptions, RejectsCountingEverySampleWhenGradientsAreDropped) {
  const TrainingOptions all{.drop_last = "false"};
  ExpectRefusals(
      {{{.strategies = {"ring", "ps-backup:1"}, .workers = {4}, .training = all},
        "--drop_last false counts every sample once, but ps-backup:1 drops gradients; omit one of them"},
       {{.strategies = {"ring"}, .workers = {4}, .training = all}, ""}});
}

TEST(PlanOptions, ReferenceWorkersNeedStrategySingle) {
  const TrainingOptions two{.reference_workers = 2};
  ExpectRefusals({{{.strategies = {"single", "ring"}, .training = two}, Not(IsEmpty())},
                  {{.training = two}, Not(IsEmpty())},
                  {{.strategies = {"single"}, .training = two}, ""}});
}

TEST(PlanOptions, LocalAggregationIsForPsSyncWithSeveralWorkersOnAMachine) {
  const TrainingOptions adds_here{.local_aggregation = true};
  const CompareOptions options{
      .strategies = {"ring", "ps-sync", "ps-async"}, .workers = {1, 2, 4}, .training = adds_here};
  for (const int per_machine : {0, 2}) {  // one machine, and machines of two
    Probe probe = TestProbe();
    probe.per_machine = per_machine;
    for (const Configuration& configuration : PlanFor(options, 2, probe).cost) {
      SCOPED_TRACE(configuration.name());
      const bool adds = configuration.strategy.name == "ps-sync" && configuration.workers > 1;
      EXPECT_EQ(configuration.training.local_aggregation, adds);
      EXPECT_EQ(configuration.workers_per_push(), !adds              ? 1
                                                  : per_machine == 0 ? configuration.workers
                                                                     : per_machine);
      const CommPattern pattern = PatternOf(configuration, Scheme::kServerSync);
      EXPECT_EQ(pattern.workers * pattern.per_machine, configuration.workers);
      EXPECT_EQ(pattern.per_machine, configuration.workers_per_push());
    }
  }
  ExpectRefusals(
      {{options, ""},
       {{.strategies = {"ring", "ps-async"}, .training = adds_here},
        Has("--local_aggregation is for ps-sync")},
       {{.strategies = {"ring", "hybrid"}, .training = adds_here}, Has("--local_aggregation is for ps-sync")},
       {{.strategies = {"ring"}, .training = adds_here},
        Has("--local_aggregation is for parameter-server strategies")},
       {{.strategies = {"ps-sync"}, .workers = {1}, .training = adds_here},
        Has("use more --workers, or omit it")}});
}

TEST(PlanOptions, UsesAllGpusByDefault) {
  for (const int gpus : {0, 1, 4}) EXPECT_THAT(DefaultWorkers({}, gpus), ElementsAre(2, 4)) << gpus;
  EXPECT_THAT(DefaultWorkers({}, 2), ElementsAre(2));
  EXPECT_THAT(DefaultWorkers({}, 6), ElementsAre(2, 4, 6));
  EXPECT_THAT(DefaultWorkers({}, 8), ElementsAre(2, 4, 8));
  EXPECT_THAT(DefaultWorkers({.oversubscribe = true}, 2), ElementsAre(2, 4));
  for (const char* device : {"cpu", "cuda:1"})
    EXPECT_THAT(DefaultWorkers({.device = device}, 8), ElementsAre(2, 4)) << device;
  EXPECT_THAT(DefaultWorkers({.clock = "virtual"}, 8), ElementsAre(2, 4));
}

TEST(PlanOptions, AllConfigurationsUseOneKindOfDevice) {
  EXPECT_EQ(DeviceForAll({}, {1, 2, 4}, 0), "auto") << "which is the CPU";
  for (const int gpus : {1, 3}) EXPECT_EQ(DeviceForAll({}, {1, 2, 4}, gpus), "cpu") << gpus;
  EXPECT_EQ(DeviceForAll({}, {1, 2, 4}, 4), "auto");
  EXPECT_EQ(DeviceForAll({}, {1}, 1), "auto");
  EXPECT_EQ(DeviceForAll({.oversubscribe = true}, {1, 2, 4}, 1), "auto");
  EXPECT_EQ(DeviceForAll({.device = "cuda"}, {4}, 1), "cuda") << "the trainer says that it must be shared";
}

// The trainer would reject them when its turn comes, after other configurations.
TEST(PlanOptions, FlagsThatShardsDoNotSupportAreRejectedByName) {
  const auto with = [](const char* strategy, TrainingOptions training) {
    return CompareOptions{.strategies = {"ring", strategy}, .workers = {2}, .training = std::move(training)};
  };
  for (const char* strategy : {"zero2", "fsdp"}) {
    const auto refusal = [strategy](const char* flag) {
      return absl::StrCat("--strategy ", strategy, " does not support ", flag, "; omit it");
    };
    ExpectRefusals({{with(strategy, {}), ""},
                    {with(strategy, {.cuda_graph = true}), refusal("--cuda_graph")},
                    {with(strategy, {.wire = "bfloat16"}), refusal("--wire")},
                    {with(strategy, {.clock = "virtual"}), refusal("--clock virtual")}});
  }
  ExpectRefusals({{with("zero1", {.wire = "bfloat16"}), ""}, {with("zero1", {.clock = "virtual"}), ""}});
}

TEST(PlanOptions, GroupsWithACopyOfTheStateDivideEveryNumberOfReplicasWithShards) {
  const auto of = [](std::vector<std::string> strategies, std::vector<int> workers) {
    CompareOptions options{.strategies = std::move(strategies), .workers = std::move(workers)};
    options.training.dp_shard = 2;
    return options;
  };
  ExpectRefusals(
      {{of({"ring", "fsdp"}, {1, 2, 4}), ""},
       {of({"zero1"}, {2, 3}), "--dp_shard 2 does not divide 3 replicas; use --dp_shard 3"},
       {of({"ring"}, {4}), "--dp_shard is for zero1, zero2 and fsdp; name one, or omit the flag"}});
}

TEST(PlanOptions, HybridHasTheFlagsOfBothOfItsParts) {
  const CompareOptions options{.strategies = {"ring", "hybrid"},
                               .workers = {2},
                               .servers = {1, 2},
                               .training = {.model = "dlrm-small", .backend = "gloo"}};
  const Plan plan = PlanFor(options, /*cores=*/64);
  EXPECT_THAT(Names(plan.cost),
              ElementsAre("single x 1", "none x 2", "ring x 2", "hybrid x 2", "hybrid x 2 on 2 servers"));
  EXPECT_EQ(plan.cost.back().backend(), "gloo");
  CompareOptions serial = options;
  serial.training.backend.clear();
  serial.training.ps_schedule = "serial";
  CompareOptions with_sync = serial;
  with_sync.strategies = {"ps-sync", "hybrid"};
  with_sync.server_wires = {"stream"};
  CompareOptions stream = options;
  stream.server_wires = {"stream"};
  ExpectRefusals({{options, ""},
                  {stream, ""},
                  {serial,
                   "--ps_schedule serial is for servers that have all parameters (such as ps-sync); name "
                   "one, or omit the flag"},
                  {with_sync, ""}});
  for (const Configuration& configuration : PlanFor(with_sync, /*cores=*/64).cost) {
    const bool has_parameters = configuration.strategy.name == "ps-sync";
    EXPECT_EQ(configuration.training.ps_schedule, has_parameters ? "serial" : "pipelined");
    EXPECT_EQ(configuration.training.server_wire, configuration.servers() > 0 ? "stream" : "grpc");
  }
  EXPECT_EQ(CheckVirtualStrategy(*FindStrategy("hybrid"), {.clock = "virtual"}).message(),
            "--clock virtual has no model of the rows of tables; omit hybrid");
}

}  // namespace
}  // namespace psring
