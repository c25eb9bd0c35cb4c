// The virtual clock: waiting times follow the theory exactly, and results equal those of live runs.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "tests/has.h"
#include "tests/trainer/cluster.h"
#include "trainer/virtual_clock/logical_workers.h"
#include "trainer/virtual_clock/replay.h"
#include "trainer/virtual_clock/virtual_training.h"

namespace psring {
namespace {

// `strategy` on a virtual clock: computing 6 ms, a gradient 1 ms on its link.
TrainingOptions VirtualOptions(const std::string& strategy) {
  TrainingOptions options = SmallOptions(strategy);
  options.clock = "virtual";
  options.compute_ms = "6";
  options.network_ms = "1";
  return options;
}

struct Simulated {
  absl::StatusOr<VirtualOutcome> outcome = absl::UnknownError("did not run");
  std::vector<StepRecord> steps;  // of all workers, as they ended

  int64_t pushes() const {
    return Sum([](const RankResult& rank) { return rank.pushes; });
  }
  int64_t staleness_sum() const {
    return Sum([](const RankResult& rank) { return rank.staleness_sum; });
  }
  int64_t staleness_max() const {
    int64_t most = 0;
    for (const RankResult& rank : outcome->ranks) most = std::max(most, rank.staleness_max);
    return most;
  }
  double StalenessOf(int rank) const {
    const RankResult& result = outcome->ranks[static_cast<size_t>(rank)];
    return static_cast<double>(result.staleness_sum) / static_cast<double>(result.pushes);
  }
  std::vector<StepRecord> StepsOf(int rank) const {
    std::vector<StepRecord> of_rank;
    std::copy_if(steps.begin(), steps.end(), std::back_inserter(of_rank),
                 [rank](const StepRecord& step) { return step.rank == rank; });
    return of_rank;
  }
  template <typename Figure>
  int64_t Sum(Figure figure) const {
    int64_t sum = 0;
    for (const RankResult& rank : outcome->ranks) sum += figure(rank);
    return sum;
  }
};

Simulated Simulate(const TrainingOptions& options, int workers, const DataSplits& data) {
  Simulated simulated;
  const std::unique_ptr<Device> device = MakeCpuDevice();
  VirtualRun run{.workers = workers, .device = *device, .data = data};
  run.on_step = [&](const StepRecord& record) {
    simulated.steps.push_back(record);
    return absl::OkStatus();
  };
  simulated.outcome = RunVirtual(options, run);
  EXPECT_TRUE(simulated.outcome.ok()) << simulated.outcome.status();
  return simulated;
}

TEST(VirtualClock, ResultsDependOnlyOnFlagsAndSeed) {
  const DataSplits& data = SmallData();
  for (const char* strategy : {"ps-sync", "ps-async", "ps-ssp:2", "ps-backup:1", "ring", "none"}) {
    TrainingOptions options = VirtualOptions(strategy);
    options.compute_ms = "lognormal:6:0.3";
    options.network_ms = "exp:1";
    options.serve_ms = "0.5";
    options.jitter_ms = "exp:2";
    const Simulated once = Simulate(options, 3, data), again = Simulate(options, 3, data);
    EXPECT_EQ(once.outcome->weights, again.outcome->weights) << strategy;
    ASSERT_EQ(once.steps.size(), again.steps.size()) << strategy;
    for (size_t i = 0; i < once.steps.size(); ++i) EXPECT_EQ(ToJson(once.steps[i]), ToJson(again.steps[i]));
    options.seed = 2;
    EXPECT_NE(Simulate(options, 3, data).outcome->weights, once.outcome->weights) << strategy;
  }
}

TEST(VirtualClock, SynchronousTrainingEqualsTheReference) {
  const DataSplits& data = SmallData();
  for (const int workers : {1, 3, 4}) {
    const std::vector<float>& expected = OneProcess(SmallOptions("single"), workers, data).weights;
    // Worker 0 arrives last, so a sum in order of arrival would differ.
    for (const char* strategy : {"ring", "ps-sync"}) {
      TrainingOptions options = VirtualOptions(strategy);
      options.deterministic = true;
      options.straggler = "0:2";
      EXPECT_EQ(Simulate(options, workers, data).outcome->weights, expected) << strategy << " x " << workers;
    }
  }
}

TEST(VirtualClock, ASynchronousStepTakesTheSlowestWorkerPlusTheNetwork) {
  TrainingOptions options = VirtualOptions("ps-sync");
  options.straggler = "1:3";
  const Simulated server = Simulate(options, 4, SmallData());
  for (const StepRecord& step : server.steps) {
    EXPECT_DOUBLE_EQ(step.step_ms, 18 + 1 + 1);
    EXPECT_DOUBLE_EQ(step.exposed_comm_ms, step.rank == 1 ? 2 : 14);
    EXPECT_DOUBLE_EQ(step.delay_ms, step.rank == 1 ? 12 : 0);
  }
  options.strategy = "ring";
  for (const StepRecord& step : Simulate(options, 4, SmallData()).steps) {
    EXPECT_DOUBLE_EQ(step.step_ms, 18 + 1.5) << "2(N-1)/N of a gradient";
  }
  options.strategy = "star";
  for (const StepRecord& step : Simulate(options, 4, SmallData()).steps) {
    EXPECT_DOUBLE_EQ(step.step_ms, 18 + 6) << "2(N-1) gradients on rank 0's link";
  }
}

TEST(VirtualClock, SimultaneousPushesAreServedInTurn) {
  TrainingOptions options = VirtualOptions("ps-sync");
  options.serve_ms = "2";
  for (const StepRecord& step : Simulate(options, 4, SmallData()).steps) {
    EXPECT_DOUBLE_EQ(step.step_ms, 6 + 1 + 4 * 2 + 1);
  }
  // Asynchronous: no more than one push every 2 ms, however many workers there are.
  options.strategy = "ps-async";
  const Simulated simulated = Simulate(options, 8, SmallData());
  const int64_t end =
      simulated.steps.back().begin_ns + static_cast<int64_t>(simulated.steps.back().step_ms * 1e6);
  const double seconds = 1e-9 * static_cast<double>(end - simulated.steps.front().begin_ns);
  EXPECT_NEAR(static_cast<double>(simulated.steps.size()) / seconds, 500, 15);
}

// While all push, each update is missed by the N - 1 gradients in flight, except at the beginning or the end:
// N(N-1)/2 fewer misses over T pushes.
TEST(VirtualClock, MeanAsynchronousStalenessIsOneLessThanTheWorkers) {
  const DataSplits& data = SmallData();
  for (const int workers : {2, 4, 7}) {
    for (const char* straggler : {"none", "1:3", "0:1.7,1:5"}) {
      TrainingOptions options = VirtualOptions("ps-async");
      options.compute_ms = "lognormal:6:0.2";
      options.straggler = straggler;
      options.steps = 60;
      const Simulated simulated = Simulate(options, workers, data);
      const int64_t buckets = static_cast<int64_t>(simulated.outcome->ranks[0].bucket_elements.size());
      const int64_t updates = 60 * workers;
      EXPECT_EQ(simulated.pushes(), updates * buckets) << "every update counts once";
      EXPECT_EQ(simulated.staleness_sum(), buckets * (updates * (workers - 1) - workers * (workers - 1) / 2))
          << workers << " workers, straggler " << straggler;
      EXPECT_EQ(simulated.outcome->servers[0].pushes, updates * buckets);
    }
  }
}

TEST(VirtualClock, AWorkersStalenessIsTheOthersRatesOverItsOwn) {
  TrainingOptions options = VirtualOptions("ps-async");
  options.compute_ms = "lognormal:6:0.1";
  options.network_ms = "none";
  options.straggler = "1:3,2:1.5";
  options.steps = 300;
  const Simulated simulated = Simulate(options, 4, SmallData());
  const std::vector<double> rates = {1, 1.0 / 3, 1 / 1.5, 1};
  const double all = std::accumulate(rates.begin(), rates.end(), 0.0);
  for (int worker = 0; worker < 4; ++worker) {
    const double theory = (all - rates[worker]) / rates[worker];
    EXPECT_NEAR(simulated.StalenessOf(worker), theory, .03 * theory) << "worker " << worker;
  }
}

// The clock of a worker is the step that it is released to compute.
TEST(VirtualClock, BoundedStalenessLimitsTheSpreadOfClocks) {
  for (const int bound : {1, 2, 4}) {
    for (const int workers : {2, 4, 5}) {
      TrainingOptions options = VirtualOptions(absl::StrCat("ps-ssp:", bound));
      options.compute_ms = "lognormal:6:0.5";
      options.straggler = "1:4";
      options.jitter_ms = "exp:5";
      options.steps = 80;
      const Simulated simulated = Simulate(options, workers, SmallData());
      EXPECT_EQ(simulated.pushes() % (80 * workers), 0);
      EXPECT_LE(simulated.staleness_max(), (2 * bound + 1) * (workers - 1));
      // Clocks: begins and ends of steps, in order of time.
      std::map<int64_t, std::vector<int>> begins;
      for (const StepRecord& step : simulated.steps) begins[step.begin_ns].push_back(step.rank);
      std::vector<int64_t> clock(static_cast<size_t>(workers), -1);
      int64_t spread = 0;
      for (const auto& [at, ranks] : begins) {
        for (const int rank : ranks) ++clock[static_cast<size_t>(rank)];
        const auto [least, most] = std::minmax_element(clock.begin(), clock.end());
        spread = std::max(spread, *most - *least);
      }
      EXPECT_LE(spread, bound) << workers << " workers";
      EXPECT_EQ(spread, bound) << "with a straggler of factor 4 the others reach the bound";
      // Visible: who begins step c has waited for all pushes of step c - K - 1.
      for (const StepRecord& step : simulated.steps) {
        for (const StepRecord& other : simulated.steps) {
          if (other.step != step.step - bound - 1) continue;
          EXPECT_GE(step.begin_ns, other.buckets.front().ready_ns);
        }
      }
    }
  }
}

TEST(VirtualClock, BackupWorkersDoNotWaitForTheSlowest) {
  TrainingOptions options = VirtualOptions("ps-backup:1");
  options.straggler = "2:3";
  const Simulated simulated = Simulate(options, 4, SmallData());
  const std::vector<StepRecord> slow = simulated.StepsOf(2), fast = simulated.StepsOf(0);
  EXPECT_EQ(fast.size(), 20);
  EXPECT_LT(slow.size(), 10);
  EXPECT_EQ(simulated.outcome->servers[0].dropped_gradients, static_cast<int64_t>(slow.size()));
  for (const StepRecord& step : fast) {
    EXPECT_FALSE(step.dropped);
    EXPECT_DOUBLE_EQ(step.step_ms, 8) << "no worker waits for worker 2";
  }
  for (const StepRecord& step : slow) EXPECT_TRUE(step.dropped);
}

TEST(VirtualClock, WorkersBeginMeasuredStepsTogether) {
  for (const char* strategy : {"ps-async", "ps-ssp:1", "ring", "none", "ps-backup:1"}) {
    TrainingOptions options = VirtualOptions(strategy);
    options.warmup_steps = 3;
    options.straggler = "1:2";
    const Simulated simulated = Simulate(options, 3, SmallData());
    int64_t last_warm = 0, first_measured = INT64_MAX;
    for (const StepRecord& step : simulated.steps) {
      const int64_t end = step.begin_ns + static_cast<int64_t>(step.step_ms * 1e6);
      if (step.warmup) last_warm = std::max(last_warm, end);
      if (!step.warmup) first_measured = std::min(first_measured, step.begin_ns);
    }
    EXPECT_GE(first_measured, last_warm) << strategy;
  }
}

TEST(VirtualClock, EvaluationsTakeNoTimeAndDoNotAffectTraining) {
  const DataSplits& data = SmallData();
  for (const char* strategy : {"ps-async", "ps-sync"}) {
    TrainingOptions options = VirtualOptions(strategy);
    const Simulated without = Simulate(options, 3, data);
    options.evaluate = true;
    options.eval_every = 5;
    const Simulated with = Simulate(options, 3, data);
    EXPECT_EQ(with.outcome->weights, without.outcome->weights);
    const std::vector<CurvePoint>& curve = with.outcome->ranks[0].curve;
    ASSERT_EQ(curve.size(), 4);
    EXPECT_EQ(curve.back().samples, 20 * 3 * options.batch);
    const bool asynchronous = std::string(strategy) == "ps-async";
    EXPECT_EQ(curve.back().updates, asynchronous ? 60 : 20);
    EXPECT_NEAR(curve.back().wall_s, 20 * .008, .009);
    for (size_t i = 1; i < curve.size(); ++i) EXPECT_GT(curve[i].wall_s, curve[i - 1].wall_s);
  }
}

TEST(VirtualClock, ManyWorkersRunInOneProcess) {
  const DataSplits data = MakeSyntheticData({.height = 8, .width = 8, .train = 2048, .test = 10}, 5);
  TrainingOptions options = VirtualOptions("ps-async");
  options.steps = 3;
  const Simulated simulated = Simulate(options, 256, data);
  EXPECT_EQ(simulated.outcome->servers[0].pushes % (3 * 256), 0);
  EXPECT_EQ(simulated.outcome->ranks.size(), 256);
}

TEST(VirtualClock, RejectsWhatDoesNotFitIntoMemoryWithAnAlternative) {
  EXPECT_TRUE(CheckCopiesFit(256, 8 << 20, uint64_t{4} << 30).ok());
  const absl::Status refused = CheckCopiesFit(256, uint64_t{1} << 30, uint64_t{16} << 30);
  EXPECT_EQ(
      refused.message(),
      "256 logical workers need 256.0 GiB, and 16.0 GiB of memory are free; use at most --workers 12, or a "
      "smaller --model");
}

TEST(VirtualClock, ADivergingRunNamesWorkerAndStep) {
  TrainingOptions options = VirtualOptions("ps-async");
  options.lr = 1e20;
  const std::unique_ptr<Device> device = MakeCpuDevice();
  const DataSplits& data = SmallData();
  VirtualRun run{.workers = 2, .device = *device, .data = data};
  const auto outcome = RunVirtual(options, run);
  EXPECT_THAT(outcome.status().message(), Has("training diverged"));
}

// Runs live workers as threads, then replays their order of arrival.
TEST(Replay, RepeatsAnAsynchronousRunBitForBit) {
  const DataSplits& data = SmallData();
  for (const char* strategy : {"ps-async", "ps-ssp:1", "ps-ssp:3"}) {
    for (const int workers : {1, 2, 4}) {
      const TrainingOptions options = SmallOptions(strategy);
      Arrivals arrivals;
      const auto live = RunRanks(options, workers, data, [](Worker&) {}, {.arrivals = &arrivals});
      ASSERT_TRUE(live[0].result.ok()) << live[0].result.status();
      ASSERT_EQ(arrivals.updates.size(), live[0].result->bucket_elements.size());
      const std::unique_ptr<Device> device = MakeCpuDevice();
      Replay replay{.device = *device, .data = data};
      const auto again = ReplayArrivals(options, arrivals, replay);
      ASSERT_TRUE(again.ok()) << again.status();
      EXPECT_EQ(again->updates, 20 * workers);
      EXPECT_EQ(again->weights, live[0].weights) << strategy << " x " << workers;
      EXPECT_EQ(again->weights_hash, live[0].result->weights_hash);
    }
  }
}

TEST(Replay, RejectsArrivalsThatDoNotMatchOrAreImpossible) {
  const DataSplits& data = SmallData();
  const std::unique_ptr<Device> device = MakeCpuDevice();
  Replay replay{.device = *device, .data = data};
  const auto error = [&](const std::string& strategy, const Arrivals& arrivals) {
    return std::string(ReplayArrivals(SmallOptions(strategy), arrivals, replay).status().message());
  };
  // ssp:1: worker 0 cannot push its step 2 before worker 1 has pushed its first.
  const std::vector<uint16_t> impossible = {0, 0, 0, 1};
  const Arrivals arrivals{
      .consistency = "ssp:1", .workers = 2, .updates = {impossible, impossible, impossible}};
  EXPECT_THAT(error("ps-ssp:1", arrivals), Has("the order of these arrivals is impossible"));
  EXPECT_THAT(error("ps-async", arrivals), Has("consistency \"ssp:1\""));
  EXPECT_THAT(error("ps-ssp:1", {.consistency = "ssp:1", .workers = 2, .updates = {{0, 1}}}),
              Has("1 buckets"));
}

}  // namespace
}  // namespace psring
