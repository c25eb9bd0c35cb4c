// Machines whose ranks add up their gradients before one of them exchanges the sum with the servers.

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/options/server_arguments.h"
#include "tests/has.h"
#include "tests/trainer/cluster.h"
#include "trainer/step/plan/training_plan.h"

namespace psring {
namespace {

struct Layout {
  int machines, each;
  int workers() const { return machines * each; }
};
constexpr Layout kLayouts[] = {{1, 2}, {2, 2}, {2, 3}, {3, 2}};

std::string Text(const Layout& layout) { return absl::StrCat(layout.machines, " machines of ", layout.each); }

TrainingOptions Aggregating() {
  TrainingOptions options = SmallOptions("ps-sync");
  options.local_aggregation = true;
  return options;
}

std::vector<RankOutcome> TrainMachines(const TrainingOptions& options, const Layout& layout) {
  return TrainRanks(options, layout.workers(), SmallData(), [](Worker&) {}, {.per_machine = layout.each});
}

// The definition of the deterministic sum: that of a machine in the order of its ranks, then that of the
// machines. A worker that accumulates draws the batches of a machine's ranks and adds them in this order.
TEST(LocalAggregation, DeterministicEqualsOneAccumulatingWorkerPerMachineBitForBit) {
  for (const Layout& layout : kLayouts) {
    for (const std::string& optimizer : kOptimizers) {
      for (const double clip_norm : {0.0, kClipNorm}) {
        SCOPED_TRACE(absl::StrCat(Text(layout), ", ", optimizer, ", clipped to ", clip_norm));
        TrainingOptions options = Aggregating();
        options.optimizer = optimizer;
        options.clip_norm = clip_norm;
        options.deterministic = true;
        options.servers = layout.machines;
        options.drop_last = clip_norm > 0 ? "false" : "true";
        options.batch = 30;  // an epoch has at most 7 steps
        options.steps = 8;
        const auto aggregated = TrainMachines(options, layout);
        for (const RankOutcome& rank : aggregated) EXPECT_EQ(rank.weights, aggregated[0].weights);

        options.local_aggregation = false;
        options.micro_batches = layout.each;
        EXPECT_EQ(aggregated[0].weights, TrainRanks(options, layout.machines, SmallData())[0].weights);
      }
    }
  }
}

TEST(LocalAggregation, OneMachineEqualsTheReferenceBitForBit) {
  TrainingOptions options = Aggregating();
  options.deterministic = true;
  const auto outcomes = TrainMachines(options, {.machines = 1, .each = 4});
  EXPECT_EQ(outcomes[0].weights, OneProcess(SmallOptions("ps-sync"), 4, SmallData()).weights);
}

// A short last batch gives the ranks of a machine different numbers of samples, and some none.
TEST(LocalAggregation, TrainsToTheWeightsOfSeparateWorkersUpToRounding) {
  for (const Layout& layout : kLayouts) {
    for (const std::string schedule : {"pipelined", "serial"}) {
      SCOPED_TRACE(absl::StrCat(Text(layout), ", ", schedule));
      TrainingOptions options = Aggregating();
      options.ps_schedule = schedule;
      options.drop_last = "false";
      options.batch = 30;
      const auto aggregated = TrainMachines(options, layout);
      options.local_aggregation = false;
      const auto separate = TrainRanks(options, layout.workers(), SmallData());
      EXPECT_LE(RelativeL2(aggregated[0].weights, separate[0].weights), 1e-4);
    }
  }
}

TEST(LocalAggregation, AMachinePushesAndPullsOneGradient) {
  for (const Layout& layout : kLayouts) {
    SCOPED_TRACE(Text(layout));
    const auto outcomes = TrainMachines(Aggregating(), layout);
    uint64_t sent = 0, received = 0;
    for (const RankOutcome& rank : outcomes) {
      sent += rank.steps[5].payload_tx_bytes;
      received += rank.steps[5].payload_rx_bytes;
    }
    const uint64_t gradient = GradientBytes(*outcomes[0].result);
    // Within a machine: an all-reduce of the gradient and a broadcast of the weights.
    const uint64_t of_machine = gradient + 3 * static_cast<uint64_t>(layout.each - 1) * gradient;
    EXPECT_EQ(sent, layout.machines * of_machine);
    EXPECT_EQ(received, layout.machines * of_machine);
  }
}

TEST(LocalAggregation, GradientsIn16BitsAreRoundedPerMachine) {
  TrainingOptions options = Aggregating();
  const auto full = TrainMachines(options, {2, 2});
  options.wire = "float16";
  const auto half = TrainMachines(options, {2, 2});
  EXPECT_EQ(half[0].weights, half[3].weights);
  EXPECT_LE(RelativeL2(half[0].weights, full[0].weights), 1e-4);
}

// Ranks 2 and 3 are machine 1.
TEST(LocalAggregation, ALostRankEndsAllMachinesAndIsNamed) {
  for (const int lost : {2, 3}) {
    SCOPED_TRACE(lost);
    const auto fails = [&](Worker& worker) {
      if (worker.rank != lost) return;
      worker.objection = [steps = 0]() mutable {
        return ++steps < 4 ? absl::OkStatus() : absl::AbortedError("out of paper");
      };
    };
    const auto outcomes = RunRanks(Aggregating(), 4, SmallData(), fails, {.per_machine = 2});
    const auto error = [&](int rank) { return std::string(outcomes[rank].result.status().message()); };
    EXPECT_THAT(error(lost), Has("out of paper"));
    // Transports of threads number a machine's ranks from 0; those of processes have the job's numbers.
    EXPECT_THAT(error(5 - lost), Has(absl::StrCat("rank ", lost - 2, " gave up"), "out of paper"));
    EXPECT_THAT(error(0), Has("worker 1"));
    EXPECT_THAT(error(1), Has("rank 0 gave up", "worker 1"));
  }
}

TEST(LocalAggregation, NeedsEqualMachinesOfSeveralRanks) {
  TrainingOptions options = Aggregating();
  EXPECT_EQ(*PushersOf(options, 8, 2), 4);
  EXPECT_EQ(*PushersOf(options, 4, 4), 1);
  const auto error = [&](int workers, int per_machine) {
    return std::string(PushersOf(options, workers, per_machine).status().message());
  };
  EXPECT_THAT(error(4, 0), Has("LOCAL_WORLD_SIZE"));
  EXPECT_THAT(error(4, 1), Has("a machine has only one; omit it"));
  EXPECT_THAT(error(4, 3), Has("this one has 3 of 4"));
  options.local_aggregation = false;
  EXPECT_EQ(*PushersOf(options, 4, 0), 4);
}

TEST(LocalAggregation, OtherStrategiesRejectIt) {
  for (const std::string strategy : {"ps-async", "ps-ssp:2", "ps-backup:1", "ring", "hybrid", "none"}) {
    TrainingOptions options = Aggregating();
    options.strategy = strategy;
    EXPECT_THAT(CheckStrategy(options, *FindStrategy(strategy), 4).message(),
                Has("--local_aggregation is for", strategy));
  }
}

}  // namespace
}  // namespace psring
