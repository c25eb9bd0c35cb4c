#include "ps_server/protocol/sharding.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <optional>
#include <random>
#include <vector>

#include "common/kernels/reduce.h"
#include "ps_server/protocol/pieces.h"

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

// `values` as bytes, moved to an odd address and cut at random places, empty pieces among them.
struct Cut {
  Cut(const std::vector<float>& values, std::mt19937& random, size_t longest)
      : Cut(values.data(), values.size() * sizeof(float), random, longest) {}
  Cut(const void* values, size_t size, std::mt19937& random, size_t longest) : bytes(size + 1) {
    if (size > 0) std::memcpy(bytes.data() + 1, values, size);
    std::uniform_int_distribution<size_t> length(0, longest);
    for (size_t at = 1; at < bytes.size();) {
      const size_t n = std::min(length(random), bytes.size() - at);
      pieces.emplace_back(bytes.data() + at, n);
      at += n;
    }
  }
  std::vector<std::byte> bytes;
  std::vector<Bytes> pieces;
};

TEST(PiecesTest, AddsAndCopiesPiecesOfAnyLength) {
  std::mt19937 random(1);
  std::uniform_real_distribution<float> value(-1, 1);
  for (const size_t count : {0, 1, 2, 3, 17, 1000}) {
    for (const size_t longest : {1, 2, 3, 5, 9, 100, 5000}) {
      std::vector<float> from(count), to(count);
      for (size_t i = 0; i < count; ++i) from[i] = value(random), to[i] = value(random);
      const Cut cut(from, random, longest);

      std::vector<float> sum = to;
      AddPieces(DType::kFloat32, cut.pieces, sum.data());
      for (size_t i = 0; i < count; ++i) ASSERT_EQ(sum[i], to[i] + from[i]) << count << " cut to " << longest;

      std::vector<float> copy(count);
      CopyPieces(cut.pieces, reinterpret_cast<std::byte*>(copy.data()));
      EXPECT_EQ(copy, from);
    }
  }
}

TEST(PiecesTest, Converts16BitElementsInPiecesOfAnyLength) {
  std::mt19937 random(2);
  for (const DType type : {DType::kBFloat16, DType::kFloat16}) {
    for (const size_t count : {0, 1, 3, 4095, 4096, 4097, 10'000}) {
      for (const size_t longest : {1, 3, 5000, 100'000}) {
        // Whole numbers below 128 are exact in both types.
        std::vector<float> from(count), to(count, .5f);
        for (size_t i = 0; i < count; ++i) from[i] = static_cast<float>(random() % 128);
        std::vector<uint16_t> sent(count);
        cpu::Convert(DType::kFloat32, from.data(), type, sent.data(), count);
        const Cut cut(sent.data(), count * sizeof(uint16_t), random, longest);
        std::vector<float> set(count);
        SetPieces(type, cut.pieces, set.data());
        EXPECT_EQ(set, from);
        AddPieces(type, cut.pieces, to.data());
        for (size_t i = 0; i < count; ++i) ASSERT_EQ(to[i], from[i] + .5f) << count << " cut to " << longest;
      }
    }
  }
}

TEST(PiecesTest, FindsTheFirstElementThatIsNotFiniteInEveryType) {
  std::mt19937 random(3);
  for (const DType type : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    for (const size_t count : {1, 7, 5000}) {
      for (const float bad : {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
                              std::numeric_limits<float>::quiet_NaN()}) {
        for (const size_t at : {size_t{0}, count / 2, count - 1}) {
          std::vector<float> values(count, 100);
          std::vector<std::byte> encoded(count * SizeOf(type));
          cpu::Convert(DType::kFloat32, values.data(), type, encoded.data(), count);
          EXPECT_EQ(FirstNotFinite(type, Cut(encoded.data(), encoded.size(), random, 13).pieces),
                    std::nullopt);
          values[at] = bad;
          cpu::Convert(DType::kFloat32, values.data(), type, encoded.data(), count);
          const Cut cut(encoded.data(), encoded.size(), random, 13);
          EXPECT_EQ(FirstNotFinite(type, cut.pieces), at);
          for (const auto take : {SetPieces, AddPieces}) {
            std::vector<float> to(count, 1);
            EXPECT_EQ(take(type, cut.pieces, to.data(), Finite::kRequired), at);
            EXPECT_EQ(to.back(), 1) << "the invalid element and those after it are not added";
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace psring
