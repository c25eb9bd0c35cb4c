#include "trainer/data/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

namespace psring {
namespace {

// The samples of all ranks in the steps of one epoch, step by step, ranks interleaved.
std::vector<std::vector<int64_t>> EpochBySteps(SamplerOptions options, int64_t epoch) {
  std::vector<std::vector<int64_t>> steps;
  for (options.rank = 0; options.rank < options.world_size; ++options.rank) {
    DistributedSampler sampler(options);
    sampler.SeekTo(epoch * sampler.steps_per_epoch());
    steps.resize(sampler.steps_per_epoch());
    for (auto& step : steps) {
      const SampledStep drawn = sampler.Next();
      EXPECT_EQ(drawn.epoch, epoch);
      for (const auto& batch : drawn.batches) step.insert(step.end(), batch.begin(), batch.end());
    }
  }
  return steps;
}

std::vector<int64_t> Sorted(const std::vector<std::vector<int64_t>>& steps) {
  std::vector<int64_t> all;
  for (const auto& step : steps) all.insert(all.end(), step.begin(), step.end());
  std::sort(all.begin(), all.end());
  return all;
}

class SamplerAcrossRanks : public testing::TestWithParam<int> {};

TEST_P(SamplerAcrossRanks, DrawEverySampleOncePerEpoch) {
  for (const int64_t count : {1, 7, 40, 41, 64}) {
    const SamplerOptions options{.count = count, .world_size = GetParam(), .batch = 4, .drop_last = false};
    std::vector<int64_t> expected(count);
    std::iota(expected.begin(), expected.end(), 0);
    for (int64_t epoch = 0; epoch < 3; ++epoch) EXPECT_EQ(Sorted(EpochBySteps(options, epoch)), expected);
  }
}

TEST_P(SamplerAcrossRanks, DropLastOmitsOnlyTheIncompleteGlobalBatch) {
  const SamplerOptions options{.count = 41, .world_size = GetParam(), .batch = 4};
  const std::vector<int64_t> seen = Sorted(EpochBySteps(options, 0));
  EXPECT_EQ(seen.size(), 41 / (4 * GetParam()) * (4 * GetParam()));
  EXPECT_EQ(std::adjacent_find(seen.begin(), seen.end()), seen.end()) << "a sample came twice";
}

TEST_P(SamplerAcrossRanks, AStepOfAllRanksEqualsAStepOfOneWithTheirBatches) {
  const int workers = GetParam();
  const auto many = EpochBySteps({.count = 100, .world_size = workers, .batch = 5}, 1);
  const auto one = EpochBySteps({.count = 100, .batch = 5 * workers}, 1);
  ASSERT_EQ(many.size(), one.size());
  for (size_t step = 0; step < many.size(); ++step) EXPECT_EQ(Sorted({many[step]}), Sorted({one[step]}));
}

INSTANTIATE_TEST_SUITE_P(Workers, SamplerAcrossRanks, testing::Values(1, 2, 3, 4));

TEST(Sampler, GivesEachRankEveryNthOfThePermutation) {
  const std::vector<int64_t> all = EpochBySteps({.count = 30, .batch = 30}, 0)[0];
  for (int rank = 0; rank < 3; ++rank) {
    DistributedSampler sampler({.count = 30, .rank = rank, .world_size = 3, .batch = 2});
    EXPECT_EQ(sampler.Next().batches[0], (std::vector<int64_t>{all[rank], all[rank + 3]}));
    EXPECT_EQ(sampler.Next().batches[0], (std::vector<int64_t>{all[rank + 6], all[rank + 9]}));
  }
}

TEST(Sampler, UsesANewOrderEveryEpoch) {
  const SamplerOptions options{.count = 64, .batch = 64};
  DistributedSampler sampler(options);
  const SampledStep first = sampler.Next(), second = sampler.Next(), third = sampler.Next();
  EXPECT_EQ(third.epoch, 2);
  EXPECT_NE(first.batches, second.batches);
  EXPECT_NE(second.batches, third.batches);
}

TEST(Sampler, OrdersDependOnlyOnTheSeed) {
  SamplerOptions options{.count = 64, .batch = 16};
  EXPECT_EQ(EpochBySteps(options, 0), EpochBySteps(options, 0));
  const auto before = EpochBySteps(options, 0);
  options.seed = 2;
  EXPECT_NE(EpochBySteps(options, 0), before);
}

TEST(Sampler, PeekShowsWhatNextReturns) {
  const SamplerOptions options{.count = 50, .batch = 20};
  DistributedSampler sampler(options), other(options);
  for (int step = 0; step < 5; ++step) {
    const SampledStep expected = other.Next();
    EXPECT_EQ(sampler.Peek().batches, expected.batches);
    EXPECT_EQ(sampler.Peek().epoch, expected.epoch);
    EXPECT_EQ(sampler.Next().batches, expected.batches);
  }
  const auto next = sampler.Peek().batches;
  sampler.SeekTo(1);
  other.SeekTo(1);
  EXPECT_EQ(sampler.Next().batches, other.Next().batches);
  EXPECT_NE(sampler.Peek().batches, next);
}

TEST(Sampler, SeekToEqualsCallingNext) {
  for (const bool drop_last : {true, false}) {
    const SamplerOptions options{.count = 50, .rank = 1, .world_size = 2, .batch = 7, .drop_last = drop_last};
    DistributedSampler walking(options);
    for (int64_t step = 0; step < 12; ++step) {
      DistributedSampler seeking(options);
      seeking.SeekTo(step);
      const SampledStep expected = walking.Next(), got = seeking.Next();
      EXPECT_EQ(got.epoch, expected.epoch);
      EXPECT_EQ(got.batches, expected.batches);
      EXPECT_EQ(got.global_samples, expected.global_samples);
    }
  }
}

TEST(Sampler, DistributesAndCountsAShortLastBatch) {
  // 9 samples, 2 ranks of 4: the last step has one sample, for rank 0.
  for (int rank = 0; rank < 2; ++rank) {
    DistributedSampler sampler({.count = 9, .rank = rank, .world_size = 2, .batch = 4, .drop_last = false});
    EXPECT_EQ(sampler.Next().global_samples, 8);
    const SampledStep last = sampler.Next();
    EXPECT_EQ(last.global_samples, 1);
    EXPECT_EQ(last.global_of_batches, std::vector<int64_t>{1});
    EXPECT_EQ(last.batches[0].size(), rank == 0 ? 1 : 0);
  }
}

TEST(Sampler, CountsTheSamplesOfEachMicroBatchOverAllRanks) {
  // Steps of 24 and of 11 samples, in shares of 2, 2, 2, 2, 2 and 1.
  for (int rank = 0; rank < 2; ++rank) {
    DistributedSampler sampler({.count = 35,
                                .rank = rank,
                                .world_size = 2,
                                .batch = 4,
                                .micro_batches = 3,
                                .predictions = 5,
                                .drop_last = false});
    EXPECT_EQ(sampler.Next().global_of_batches, (std::vector<int64_t>{40, 40, 40}));
    EXPECT_EQ(sampler.Next().global_of_batches, (std::vector<int64_t>{20, 20, 15}));
  }
}

TEST(Sampler, MicroBatchesEqualTheBatchesOfAsManyRanks) {
  for (const bool drop_last : {true, false}) {
    for (int rank = 0; rank < 2; ++rank) {
      SamplerOptions options{.count = 53, .rank = rank, .world_size = 2, .batch = 4, .drop_last = drop_last};
      options.micro_batches = 3;
      DistributedSampler together(options);
      std::vector<DistributedSampler> alone;
      for (int m = 0; m < 3; ++m) {
        alone.emplace_back(SamplerOptions{.count = 53,
                                          .rank = 3 * rank + m,
                                          .world_size = 6,
                                          .ranks_per_machine = 3,
                                          .batch = 4,
                                          .drop_last = drop_last});
      }
      for (int step = 0; step < 7; ++step) {
        const SampledStep drawn = together.Next();
        ASSERT_EQ(drawn.batches.size(), 3);
        int64_t samples = 0, of_machine = 0;
        for (int m = 0; m < 3; ++m) {
          const SampledStep share = alone[m].Next();
          of_machine = share.machine_samples;
          EXPECT_EQ(drawn.batches[m], share.batches[0]);
          EXPECT_EQ(drawn.global_samples, share.global_samples);
          EXPECT_EQ(drawn.epoch, share.epoch);
          samples += share.samples;
        }
        EXPECT_EQ(drawn.samples, samples);
        EXPECT_EQ(drawn.machine_samples, samples);
        EXPECT_EQ(of_machine, samples);
      }
    }
  }
}

TEST(SampleSeeds, DependOnTheSeedTheEpochAndTheSample) {
  const std::vector<uint64_t> seeds = SampleSeeds(/*seed=*/1, /*epoch=*/0, {3, 5});
  EXPECT_NE(seeds[0], seeds[1]);
  EXPECT_EQ(SampleSeeds(1, 0, {5, 3}), (std::vector<uint64_t>{seeds[1], seeds[0]}));
  EXPECT_NE(SampleSeeds(2, 0, {3})[0], seeds[0]);
  EXPECT_NE(SampleSeeds(1, 1, {3})[0], seeds[0]);
}

TEST(EvaluationBatches, CountEachSampleOnceWithAShortLastBatch) {
  for (const int64_t count : {0, 1, 10, 11}) {
    std::vector<int64_t> seen;
    for (int rank = 0; rank < 3; ++rank) {
      for (const auto& batch : EvaluationBatches(count, 2, rank, 3)) {
        EXPECT_LE(batch.size(), 2);
        EXPECT_GT(batch.size(), 0);
        seen.insert(seen.end(), batch.begin(), batch.end());
      }
    }
    std::sort(seen.begin(), seen.end());
    std::vector<int64_t> expected(count);
    std::iota(expected.begin(), expected.end(), 0);
    EXPECT_EQ(seen, expected);
  }
}

TEST(DistributedSampler, CountsPredictions) {
  SamplerOptions options{.count = 10, .world_size = 2, .batch = 4, .predictions = 64, .drop_last = false};
  DistributedSampler sampler(options);
  const SampledStep full = sampler.Next(), rest = sampler.Next();
  EXPECT_EQ(full.samples, 4 * 64);
  EXPECT_EQ(full.global_samples, 8 * 64);
  EXPECT_EQ(rest.samples, 64);
  EXPECT_EQ(rest.global_samples, 2 * 64);
  EXPECT_EQ(rest.machine_samples, 64);
}

}  // namespace
}  // namespace psring
