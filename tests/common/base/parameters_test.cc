#include "common/base/parameters.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <random>
#include <vector>

#include "tests/random_moments.h"

namespace psring {
namespace {

// A size in MiB that holds `elements` floats.
double Mb(size_t elements) { return static_cast<double>(elements) * 4 / (1 << 20); }

using Ranges = std::vector<std::pair<size_t, size_t>>;

// First and count of each bucket of tensors that are ready from the last to the first, or in the order
// `ready`.
Ranges Plan(const std::vector<int>& tensors, size_t first_elements, size_t others_elements,
            const std::optional<std::vector<int>>& ready = {}) {
  ParameterLayout layout(/*alignment=*/1);
  for (const int count : tensors) layout.Add("t", {count});
  const BucketSizes sizes = {Mb(first_elements), Mb(others_elements)};
  Ranges ranges;
  for (const Bucket& bucket : ready ? PlanBuckets(layout, *ready, sizes) : PlanBuckets(layout, sizes)) {
    EXPECT_EQ(bucket.index, static_cast<int>(ranges.size()));
    ranges.emplace_back(bucket.first, bucket.count);
  }
  return ranges;
}

TEST(ParameterLayoutTest, TensorsBeginAtMultiplesOf64Bytes) {
  ParameterLayout layout;
  EXPECT_EQ(layout.Add("fc.weight", {3, 5}), 0);
  EXPECT_EQ(layout.Add("fc.bias", {16}), 1);
  EXPECT_EQ(layout.Add("none", {0}), 2);
  EXPECT_EQ(layout.Add("scale", {}), 3);
  const std::vector<Tensor>& tensors = layout.tensors();
  EXPECT_EQ(tensors[1].name, "fc.bias");
  EXPECT_EQ(tensors[1].first, 16);
  EXPECT_EQ(tensors[1].count, 16);
  EXPECT_EQ(tensors[1].space, 16);
  EXPECT_EQ(tensors[2].space, 0);
  EXPECT_EQ(tensors[3].first, 32);
  EXPECT_EQ(tensors[3].count, 1);
  EXPECT_EQ(tensors[3].space, 16);
  EXPECT_EQ(layout.count(), 48);
  EXPECT_EQ(layout.parameters(), 15 + 16 + 1);
}

TEST(ParameterLayoutTest, WithoutAlignmentTensorsAreContiguous) {
  ParameterLayout layout(/*alignment=*/1);
  layout.Add("fc.weight", {3, 5});
  layout.Add("fc.bias", {3});
  EXPECT_EQ(layout.tensors()[1].first, 15);
  EXPECT_EQ(layout.count(), 18);
  EXPECT_EQ(layout.parameters(), 18);
}

TEST(PlanBucketsTest, ABucketContainsThePaddingOfItsTensors) {
  ParameterLayout layout;
  for (const int count : {20, 5, 3}) layout.Add("t", {count});
  const std::vector<Bucket> buckets = PlanBuckets(layout, {Mb(8), Mb(100)});
  ASSERT_EQ(buckets.size(), 2);
  EXPECT_EQ(buckets[0].first, 32);
  EXPECT_EQ(buckets[0].count, 32);
  EXPECT_EQ(buckets[1].count, 32);
}

TEST(PlanBucketsTest, BucketsOfUnequalPartsOfATensorAreEqual) {
  for (const int rows : {1, 2}) {
    ParameterLayout layout;
    layout.Add("before", {4});
    const TensorPart part{.first = 1, .count = static_cast<size_t>(rows), .whole = 5, .most = 2};
    const Tensor& tensor = layout.tensors()[layout.Add("part", {rows, 20}, {}, part)];
    EXPECT_EQ(tensor.count, rows * 20);
    EXPECT_EQ(tensor.space, 48);
    EXPECT_EQ(tensor.whole_count(), 100);
    const std::vector<Bucket> buckets = PlanBuckets(layout, {Mb(45), Mb(100)});
    ASSERT_EQ(buckets.size(), 2);
    EXPECT_EQ(buckets[0].first, 16);
    EXPECT_EQ(buckets[0].count, 48);
    EXPECT_EQ(layout.parameters(), 4 + rows * 20);
  }
}

TEST(PlanBucketsTest, WholeTensorsFillBucketsFromTheLastOn) {
  EXPECT_EQ(Plan({100, 10, 20, 5}, 20, 60), (Ranges{{110, 25}, {0, 110}}));
  EXPECT_EQ(Plan({10, 10, 10, 10}, 10, 20), (Ranges{{30, 10}, {10, 20}, {0, 10}})) << "full at its size";
  EXPECT_EQ(Plan({1000, 1, 1000, 1}, 10, 10), (Ranges{{1001, 1001}, {0, 1001}})) << "a larger tensor";
  EXPECT_EQ(Plan({4, 3, 2}, 100, 100), (Ranges{{0, 9}})) << "a small model";
  EXPECT_EQ(Plan({4, 3, 2}, 0, 0), (Ranges{{7, 2}, {4, 3}, {0, 4}})) << "a bucket for each tensor";
  EXPECT_EQ(Plan({}, 1, 1), Ranges{});
  EXPECT_EQ(Plan({0, 0}, 0, 0), Ranges{});
  EXPECT_EQ(Plan({0, 4, 0}, 0, 0), (Ranges{{0, 4}}));
}

TEST(PlanBucketsTest, TheMlpsFirstBucketIsReadyAfterTwoLayers) {
  ParameterLayout layout;
  layout.Add("fc1.weight", {1024, 784});
  layout.Add("fc1.bias", {1024});
  layout.Add("fc2.weight", {1024, 1024});
  layout.Add("fc2.bias", {1024});
  layout.Add("fc3.weight", {10, 1024});
  layout.Add("fc3.bias", {10});
  const std::vector<Bucket> buckets = PlanBuckets(layout, {});
  ASSERT_EQ(buckets.size(), 2);
  EXPECT_EQ(buckets[0].first, layout.tensors()[2].first);
  EXPECT_EQ(buckets[1].first, 0);
}

TEST(PlanBucketsTest, BucketsCoverEveryElementOnceFromTheEnd) {
  std::mt19937 generator(TestSeed());
  for (int trial = 0; trial < 200; ++trial) {
    std::vector<int> tensors(generator() % 12);
    size_t end = 0;
    for (int& count : tensors) end += count = static_cast<int>(generator() % 50);
    for (const auto& [first, count] : Plan(tensors, generator() % 60, generator() % 120)) {
      EXPECT_GT(count, 0);
      EXPECT_EQ(first + count, end);
      end = first;
    }
    EXPECT_EQ(end, 0);
  }
}

TEST(PlanBucketsByReadiness, AdjacentTensorsThatAreReadyTogetherAreOneBucket) {
  EXPECT_EQ(Plan({100, 10, 20, 5}, 20, 60, {{3, 2, 1, 0}}), Plan({100, 10, 20, 5}, 20, 60)) << "usual order";
  EXPECT_EQ(Plan({30, 30, 30}, 10, 10, {{0, 2, 1}}), (Ranges{{0, 30}, {60, 30}, {30, 30}}));
  EXPECT_EQ(Plan({10, 10, 10, 10}, 20, 20, {{2, 3, 0, 1}}), (Ranges{{20, 20}, {0, 20}})) << "in any order";
  EXPECT_EQ(Plan({10, 10, 10, 10}, 20, 20, {{1, 3, 0, 2}}), (Ranges{{10, 10}, {30, 10}, {0, 10}, {20, 10}}))
      << "others get buckets in the order of readiness";
}

TEST(PlanBucketsByReadiness, EveryOrderCoversEveryElementOnce) {
  std::mt19937 generator(TestSeed() + 1);
  for (int trial = 0; trial < 200; ++trial) {
    std::vector<int> tensors(generator() % 12), ready;
    size_t all = 0;
    for (int& count : tensors) all += count = static_cast<int>(generator() % 50);
    for (size_t i = 0; i < tensors.size(); ++i) ready.push_back(static_cast<int>(i));
    std::shuffle(ready.begin(), ready.end(), generator);
    std::vector<int> covered(all);
    for (const auto& [first, count] : Plan(tensors, generator() % 60, generator() % 120, ready)) {
      EXPECT_GT(count, 0);
      for (size_t i = first; i < first + count; ++i) ++covered[i];
    }
    EXPECT_EQ(covered, std::vector<int>(all, 1));
  }
}

TEST(TensorsInOrder, FollowsTheRangesWithTheLastTensorOfEachFirst) {
  ParameterLayout layout(/*alignment=*/1);
  for (const int count : {4, 3, 0, 2, 5}) layout.Add("t", {count});
  EXPECT_EQ(TensorsInOrder(layout, {{0, 14}}), (std::vector<int>{4, 3, 2, 1, 0}));
  EXPECT_EQ(TensorsInOrder(layout, {{0, 4}, {7, 7}, {4, 3}}), (std::vector<int>{0, 4, 3, 2, 1}));
}

}  // namespace
}  // namespace psring
