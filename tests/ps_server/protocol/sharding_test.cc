#include "ps_server/protocol/sharding.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace psring {
namespace {

std::vector<Bucket> BucketsOf(const std::vector<size_t>& sizes) {
  std::vector<Bucket> buckets;
  size_t first = 0;
  for (const size_t size : sizes) {
    buckets.push_back({.index = static_cast<int>(buckets.size()), .first = first, .count = size});
    first += size;
  }
  return buckets;
}

std::vector<size_t> TotalsOf(const std::vector<std::vector<BucketSlice>>& slices) {
  std::vector<size_t> totals;
  for (const auto& of_server : slices) {
    size_t& total = totals.emplace_back(0);
    for (const BucketSlice& slice : of_server) total += slice.count;
  }
  return totals;
}

TEST(CutBuckets, CoversEachBucketOnceInAlignedSlicesOfEqualTotalSize) {
  std::mt19937 random(7);
  for (int trial = 0; trial < 200; ++trial) {
    std::vector<size_t> sizes;
    for (size_t i = random() % 12; i > 0; --i) sizes.push_back(random() % (trial % 2 == 0 ? 40 : 100'000));
    const std::vector<Bucket> buckets = BucketsOf(sizes);
    const int servers = 1 + static_cast<int>(random() % 9);
    const auto slices = CutBuckets(buckets, servers);
    ASSERT_EQ(slices.size(), servers);
    for (size_t bucket = 0; bucket < buckets.size(); ++bucket) {
      std::vector<BucketSlice> in_place;
      for (const auto& of_server : slices) {
        ASSERT_EQ(of_server.size(), buckets.size());
        if (of_server[bucket].count > 0) in_place.push_back(of_server[bucket]);
      }
      std::ranges::sort(in_place, {}, &BucketSlice::first);
      size_t covered = 0;
      for (const BucketSlice& slice : in_place) {
        EXPECT_EQ(slice.first, covered);
        EXPECT_EQ(covered % kSliceAlignment, 0);
        covered += slice.count;
      }
      EXPECT_EQ(covered, buckets[bucket].count);
    }
    const std::vector<size_t> totals = TotalsOf(slices);
    EXPECT_LE(std::ranges::max(totals) - std::ranges::min(totals), 2 * kSliceAlignment)
        << testing::PrintToString(sizes) << " over " << servers;
  }
}

TEST(CutBuckets, BalancesOurNetworksWithinOnePercent) {
  // The buckets of the MLP and of the CNN.
  for (const std::vector<size_t>& sizes : {std::vector<size_t>{1'059'850, 803'840}, {1'180'810, 18'816}}) {
    for (int servers = 2; servers <= 8; ++servers) {
      const std::vector<size_t> totals = TotalsOf(CutBuckets(BucketsOf(sizes), servers));
      EXPECT_LT(static_cast<double>(std::ranges::max(totals)), 1.01 * std::ranges::min(totals)) << servers;
    }
  }
}

TEST(ShardOf, IsAValidJobWithTheServersSliceOfEveryBucket) {
  ServerJob whole{.workers = 2, .parameters = 1101, .buckets = BucketsOf({1000, 1, 100})};
  const auto slices = CutBuckets(whole.buckets, 3);
  int64_t parameters = 0;
  for (int server = 0; server < 3; ++server) {
    const ServerJob shard = ShardOf(whole, slices[server], server, 3);
    EXPECT_EQ(ValidateServerJob(shard), absl::OkStatus());
    EXPECT_EQ(shard.server, server);
    EXPECT_EQ(shard.servers, 3);
    for (size_t bucket = 0; bucket < 3; ++bucket) {
      EXPECT_EQ(shard.buckets[bucket].count, slices[server][bucket].count);
    }
    parameters += shard.parameters;
  }
  EXPECT_EQ(parameters, whole.parameters);
}

TEST(ShardOf, TranslatesTheWeightsWithoutDecay) {
  ServerJob whole{.workers = 1, .parameters = 30};
  whole.buckets = {{.index = 0, .first = 10, .count = 20}, {.index = 1, .first = 0, .count = 10}};
  whole.optimizer.no_decay = {{2, 3}, {8, 6}, {28, 2}};
  // The server's parameters are 14 ... 29 and 0 ... 8 of the job.
  const ServerJob shard = ShardOf(whole, {{.first = 4, .count = 16}, {.first = 0, .count = 9}}, 0, 2);
  const std::vector<ParameterRange> expected = {{14, 2}, {18, 3}, {24, 1}};
  EXPECT_EQ(shard.optimizer.no_decay, expected);
}

TEST(ShardOf, OfOneServerIsTheWholeJob) {
  ServerJob whole{.workers = 2, .parameters = 1101, .buckets = BucketsOf({1000, 1, 100})};
  const ServerJob shard = ShardOf(whole, CutBuckets(whole.buckets, 1)[0], 0, 1);
  EXPECT_EQ(RequireSameJob(whole, shard, 0), absl::OkStatus());
}

}  // namespace
}  // namespace psring
