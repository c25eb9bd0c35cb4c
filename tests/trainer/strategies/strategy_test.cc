// Strategies through their interface, with made-up gradients and no network.
#include <gtest/gtest.h>

#include <cmath>
#include <latch>
#include <map>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/random.h"
#include "tests/has.h"
#include "tests/trainer/cluster.h"
#include "tests/trainer/strategies/strategy_rank.h"

namespace psring {
namespace {

constexpr uint64_t kSeed = 3;  // of weights and gradients
constexpr double kLr = .5;

struct Job {
  Connections connections;
  std::vector<std::unique_ptr<StrategyRank>> ranks;

  Job(const std::string& strategy, int workers) {
    const StrategyRow row = *FindStrategy(strategy);
    const UpdateRule rule{.optimizer = {.kind = OptimizerKind::kSgd}, .schedule = {.base = kLr}};
    connections = Connect(row, workers, absl::Seconds(10));
    for (int rank = 0; rank < workers; ++rank) {
      StrategyRank& own = *ranks.emplace_back(std::make_unique<StrategyRank>(
          row, rank, workers, connections.group(rank), connections.client(rank), rule));
      Random random(kSeed, rank);
      for (size_t i = 0; i < kOddCount; ++i) {
        own.weights[i] = random.Uniform(-1, 1);
        own.gradient[i] = random.Uniform(-10, 10);
      }
    }
    OnRanks(workers, [&](int rank) {
      EXPECT_EQ(ranks[rank]->strategy.sync->Start(ranks[rank]->State()).status(), absl::OkStatus());
    });
  }
};

class SynchronousStrategy : public testing::TestWithParam<std::tuple<std::string, int>> {};

TEST_P(SynchronousStrategy, StartsEveryRankFromTheWeightsOfRank0) {
  const auto& [strategy, workers] = GetParam();
  const Job job(strategy, workers);
  const std::vector<float> rank0 = job.ranks[0]->weights;
  Random random(kSeed, 0);
  EXPECT_EQ(rank0[0], random.Uniform(-1, 1));
  for (const auto& rank : job.ranks) EXPECT_EQ(rank->weights, rank0);
}

TEST_P(SynchronousStrategy, TheGradientIsWithinTheErrorBoundOfASum) {
  const auto& [strategy, workers] = GetParam();
  SCOPED_TRACE(absl::StrCat("random seed ", kSeed));
  const Job job(strategy, workers);
  const std::vector<float> before = job.ranks[0]->weights;
  std::vector<double> sum(kOddCount), magnitudes(kOddCount);
  for (const auto& rank : job.ranks) {
    for (size_t i = 0; i < kOddCount; ++i) {
      sum[i] += rank->gradient[i];
      magnitudes[i] += std::abs(rank->gradient[i]);
    }
  }
  OnRanks(workers, [&, workers = workers](int rank) {
    const auto report = job.ranks[rank]->Step(0, workers);
    EXPECT_TRUE(report.ok()) << report.status();
  });
  // Adding n numbers in any order errs by at most (n - 1) u times the sum of their magnitudes (Higham
  // 2002, 4.2); scaling, the rate and the subtraction round once each.
  constexpr double kUnit = 0x1p-24;
  for (size_t i = 0; i < kOddCount; ++i) {
    const double scale = kLr / (kRankSamples * workers);
    const double expected = before[i] - scale * sum[i];
    const double bound =
        1.01 * kUnit *
        (scale * (workers - 1) * magnitudes[i] + 3 * scale * std::abs(sum[i]) + std::abs(expected));
    for (const auto& rank : job.ranks) ASSERT_NEAR(rank->weights[i], expected, bound) << "element " << i;
  }
}

TEST(AllReduceStrategy, TracesTheRoundsOfItsFirstSteps) {
  constexpr int kWorkers = 3, kNoted = 100;
  const Job job("ring", kWorkers);
  OnRanks(kWorkers, [&](int rank) {
    for (int64_t step = 0; step <= kNoted; ++step) {
      const auto report = job.ranks[rank]->Step(step, kWorkers);
      ASSERT_TRUE(report.ok()) << report.status();
    }
  });
  for (const auto& rank : job.ranks) {
    std::map<std::pair<int64_t, int>, std::vector<TraceSpan>> rounds;
    std::map<std::pair<int64_t, int>, TraceSpan> whole;
    for (const TraceSpan& span : rank->trace.spans()) {
      if (span.kind == SpanKind::kRound) rounds[{span.step, span.bucket}].push_back(span);
      if (span.kind == SpanKind::kCommunication) whole[{span.step, span.bucket}] = span;
    }
    EXPECT_EQ(rounds.size(), kNoted * kOddBuckets.size());
    for (const auto& [what, spans] : rounds) {
      ASSERT_EQ(spans.size(), 4u);  // 2(N-1)
      for (size_t i = 0; i < spans.size(); ++i) {
        EXPECT_EQ(spans[i].round, static_cast<int>(i));
        EXPECT_GE(spans[i].begin_ns, whole[what].begin_ns);
        EXPECT_LE(spans[i].end_ns, whole[what].end_ns);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Strategies, SynchronousStrategy,
                         testing::Combine(testing::Values("ring", "star", "ps-sync", "zero1"),
                                          testing::Range(1, 5)),
                         [](const auto& info) {
                           std::string name =
                               absl::StrCat(std::get<0>(info.param), "_", std::get<1>(info.param));
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

class AsynchronousStrategy : public testing::TestWithParam<int> {};

TEST_P(AsynchronousStrategy, StalenessCountsTheUpdatesOfOthers) {
  const int workers = GetParam();
  const Job job("ps-async", workers);
  constexpr int64_t kSteps = 10;
  int64_t pushes = 0, staleness = 0;
  // In turn, so that the order of arrival is known.
  for (int64_t step = 0; step < kSteps; ++step) {
    for (int rank = 0; rank < workers; ++rank) {
      const auto report = job.ranks[rank]->Step(step, workers);
      ASSERT_TRUE(report.ok()) << report.status();
      for (const BucketRecord& bucket : report->buckets) {
        EXPECT_EQ(bucket.staleness, step == 0 ? rank : workers - 1);
        ++pushes;
        staleness += bucket.staleness;
      }
    }
  }
  // N - 1 on average, except in the first round, before which there were no updates.
  EXPECT_EQ(staleness, (workers - 1) * pushes - 3 * workers * (workers - 1) / 2);
}

TEST_P(AsynchronousStrategy, EachPushIsAnUpdateAndCollectReturnsAll) {
  const int workers = GetParam();
  const Job job("ps-async", workers);
  std::vector<double> expected(job.ranks[0]->weights.begin(), job.ranks[0]->weights.end());
  for (const auto& rank : job.ranks) {
    const auto report = rank->Step(0, workers);
    ASSERT_TRUE(report.ok()) << report.status();
    for (size_t i = 0; i < kOddCount; ++i) {
      expected[i] -= kLr / kRankSamples * rank->gradient[i];  // the mean over its own batch
      ASSERT_NEAR(rank->weights[i], expected[i], 1e-5);
    }
  }
  OnRanks(workers, [&](int rank) {
    StrategyRank& mine = *job.ranks[rank];
    const absl::Status collected = mine.strategy.sync->Collect({mine.weights.data(), kOddCount});
    EXPECT_TRUE(collected.ok()) << collected;
  });
  for (const auto& rank : job.ranks) EXPECT_EQ(rank->weights, job.ranks.back()->weights);
  EXPECT_NEAR(job.ranks[0]->weights[17], expected[17], 1e-5);
}

INSTANTIATE_TEST_SUITE_P(Workers, AsynchronousStrategy, testing::Range(1, 5));

TEST(Abort, EndsAWaitingStrategy) {
  for (const std::string strategy : {"ring", "star", "ps-sync", "zero1"}) {
    const Job job(strategy, 2);
    StrategyRank& waiting = *job.ranks[0];
    absl::Status finished;
    std::latch pushed(1);
    OnRanks(2, [&](int rank) {
      if (rank == 0) {
        const absl::Status begun = waiting.BeginStep(0, 2);
        EXPECT_TRUE(begun.ok()) << begun;
        pushed.count_down();
        finished = waiting.strategy.sync->FinishStep().status();  // rank 1 makes no step
      } else {
        pushed.wait();
        waiting.strategy.sync->Abort(absl::CancelledError("enough"));
      }
    });
    EXPECT_THAT(finished.message(), Has("enough"));
  }
}

std::string ErrorOf(const std::string& name, const std::vector<std::string>& given = {}) {
  return std::string(FindStrategy(name, given).status().message());
}

TEST(Registry, AnUnknownNameSuggestsTheNearest) {
  std::vector<std::string> names;
  for (const StrategyRow& row : StrategyRows()) names.push_back(row.display_name());
  EXPECT_EQ(
      FindStrategy("rign").status().message(),
      absl::StrCat("unknown strategy 'rign'; did you mean 'ring'? Use one of ", absl::StrJoin(names, ", ")));
  const struct {
    const char *name, *says;
  } cases[] = {{"ddp", "psring calls it 'ring'"},  // not data-parallel, which is nearer
               {"Horovod", "psring calls it 'ring'"},
               {"byteps", "psring calls it 'ps-sync'"},
               {"parameter_server", "psring calls it 'ps-sync'"},
               {"hogwild", "psring calls it 'ps-async'"},
               {"ssp", "psring calls it 'ps-ssp:K'"},
               {"ssp:3", "psring calls it 'ps-ssp:K'"},
               {"backup", "psring calls it 'ps-backup:B'"},
               {"DataParallel", "psring calls it 'data-parallel'"},
               {"parallax", "psring calls it 'hybrid'"},
               {"megatron", "psring has nothing like it; the nearest is 'ring'"},
               {"ZeRO", "psring calls it 'zero1'"},
               {"ZeroRedundancyOptimizer", "psring calls it 'zero1'"},
               {"zero-2", "psring calls it 'zero2'"},
               {"FullyShardedDataParallel", "psring calls it 'fsdp'"},
               {"deepspeed", "psring has nothing like it; the nearest is 'zero1'"},
               {"zero3", "psring calls it 'fsdp'"},
               {"hybird", "did you mean 'hybrid'?"}};
  for (const auto& [name, says] : cases) EXPECT_THAT(ErrorOf(name), Has(says));
  EXPECT_TRUE(FindStrategy("ring")->uses_group);
  EXPECT_FALSE(FindStrategy("ring")->uses_servers);
}

TEST(Registry, WhatIsGivenIsNotSuggested) {
  EXPECT_EQ(ErrorOf("horovod", {"ring", "horovod"}),
            "unknown strategy 'horovod'; psring calls it 'ring', which is given, too; omit 'horovod'");
  EXPECT_EQ(
      ErrorOf("deepspeed", {"zero1", "deepspeed"}),
      "unknown strategy 'deepspeed'; psring has nothing like it; the nearest is 'zero1', which is given, "
      "too; omit 'deepspeed'");
  EXPECT_THAT(ErrorOf("rign", {"ring", "rign"}), Lacks("did you mean 'ring'"));
  EXPECT_THAT(ErrorOf("ps-spp:2", {"ps-ssp:1", "ps-spp:2"}), Lacks("'ps-ssp:K'?"));
}

TEST(Registry, AScheduleWithoutAStrategyNamesTheVerbsThatKnowIt) {
  EXPECT_EQ(ErrorOf("one-shot"),
            "'one-shot' is a schedule that psring predict and psring explain know, but no strategy "
            "trains with it; use ring");
  EXPECT_THAT(ErrorOf("pairwise"), Has("unknown strategy 'pairwise'")) << "it makes no sums";
}

TEST(Registry, EveryRowHasAnImplementationAndAPlaceOfItsOwn) {
  std::set<int> places;
  for (const StrategyRow& row : StrategyRows()) {
    EXPECT_EQ(TrainsTables(row), !row.replicates && !row.shards_gradients) << row.name;
    EXPECT_TRUE(row.chart_place < 0 || places.insert(row.chart_place).second) << row.name;
  }
}

TEST(Registry, AnAliasIsTheStrategyAndGivesItsName) {
  for (const auto& [alias, name] : {std::pair{"allreduce", "ring"},
                                    {"all-reduce", "ring"},
                                    {"All_Reduce", "ring"},
                                    {"ps", "ps-sync"},
                                    {"ring", "ring"},
                                    {"ps-ssp:2", "ps-ssp:2"},
                                    {"ddp", "ddp"}}) {
    EXPECT_EQ(CanonicalStrategy(alias), name);
  }
  EXPECT_EQ(ErrorOf("ps:2"), "strategy 'ps:2': ps-sync takes no number");
  std::vector<std::string> names = {"All-Reduce", "ps", "ps-ssp:02", "one-shot"};
  ASSERT_TRUE(UseCanonicalStrategies(names).ok());
  EXPECT_EQ(names, (std::vector<std::string>{"ring", "ps-sync", "ps-ssp:2", "one-shot"}));
  names = {"ring", "ps", "allreduce"};
  EXPECT_EQ(UseCanonicalStrategies(names).message(), "--strategies names ring twice; name it once");
}

TEST(Registry, HierarchicalMayNameTheWorkersPerMachine) {
  EXPECT_EQ(FindStrategy("hierarchical")->algorithm, "hierarchical");
  EXPECT_EQ(FindStrategy("hierarchical")->display_name(), "hierarchical");
  const StrategyRow row = *FindStrategy("hierarchical:02");
  EXPECT_EQ(row.name, "hierarchical:2");
  EXPECT_EQ(row.algorithm, "hierarchical:2");
  EXPECT_EQ(ErrorOf("hierarchical:0"),
            "strategy 'hierarchical:0': hierarchical needs a whole number from 1 to 1000000 (G: workers per "
            "machine), as in hierarchical:1");
  for (const int workers : {1, 2, 6}) EXPECT_TRUE(CheckRanks(row, workers).ok()) << workers;
  EXPECT_EQ(CheckRanks(row, 3).message(), "hierarchical:2 needs a multiple of 2 ranks, not 3");
  for (const char* any : {"hierarchical", "ring", "mpi", "ps-ssp:2"})
    EXPECT_TRUE(CheckRanks(*FindStrategy(any), 3).ok()) << any;
}

TEST(Registry, WorkersWaitForSomeWithSpareWorkersOrABoundOnStaleness) {
  for (const char* some : {"ps-backup:1", "ps-ssp:1"}) EXPECT_TRUE(FindStrategy(some)->waits_for_some());
  for (const char* other : {"ring", "hierarchical:2", "ps-sync", "ps-async", "ps-backup:0"})
    EXPECT_FALSE(FindStrategy(other)->waits_for_some()) << other;
}

TEST(Registry, ParsesTheNumberInAName) {
  const StrategyRow row = *FindStrategy("ps-ssp:12");
  EXPECT_EQ(row.name, "ps-ssp:12");
  EXPECT_EQ(row.number, 12);
  EXPECT_EQ(row.algorithm, "ssp:12");
  EXPECT_EQ(FindStrategy("ps-backup:0")->algorithm, "backup:0");
  EXPECT_EQ(FindStrategy("ps-sync")->algorithm, "sync");
  EXPECT_EQ(ErrorOf("ps-ssp"),
            "strategy 'ps-ssp': ps-ssp:K needs a whole number from 1 (K: the most steps that a worker may be "
            "ahead), as in ps-ssp:1");
  for (const std::string wrong : {"ps-ssp:0", "ps-ssp:", "ps-ssp:1:2", "ps-ssp:1000001", "ps-backup:-1"}) {
    EXPECT_THAT(ErrorOf(wrong), Has("needs a whole number from "));
  }
  EXPECT_EQ(ErrorOf("ring:2"), "strategy 'ring:2': ring takes no number");
  EXPECT_THAT(ErrorOf("ps-spp:2"), Has("did you mean 'ps-ssp:K'?"));
}

}  // namespace
}  // namespace psring
