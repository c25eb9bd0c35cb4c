#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "experiments/analysis/findings.h"
#include "experiments/design/estimate.h"
#include "tests/experiments/test_catalog.h"

namespace psring {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::StartsWith;

constexpr Wires kMeasuredGigabit{.latency_s = 1e-4, .bytes_per_s = 120e6};

SummaryRow ServerRow(int buckets, const std::string& schedule, const Wires& wires) {
  SummaryRow row{.configuration = TestConfiguration("ps-sync", 4)};
  row.configuration.training.ps_schedule = schedule;
  row.configuration.update.momentum = 0.9;
  row.sample.bucket_elements.assign(static_cast<size_t>(buckets), 3'000'000 / buckets);
  const std::vector<double> bytes(static_cast<size_t>(buckets), 12e6 / buckets);
  row.predicted_comm_ms =
      1e3 * MeanExchangeSeconds(PatternOf(row.configuration, Scheme::kServerSync), bytes, wires);
  return row;
}

TEST(BucketFindings, NameTheTimesAndTheReasonWhereFewBucketsDifferFromTheLaw) {
  const auto of = [](int buckets, const std::string& schedule) {
    return BucketFindings({ServerRow(buckets, schedule, kMeasuredGigabit)}, kMeasuredGigabit);
  };
  EXPECT_THAT(
      of(2, "pipelined"),
      ElementsAre(StartsWith(
          "For the actual buckets (6, 6 MB), theory predicts longer exchanges than the formula for large "
          "gradients (ps-sync with 4 workers: 450 ms until the last worker has its weights (mean over "
          "workers: 413 ms), not 300 ms). The weights of a bucket cannot leave before its last gradient")));
  EXPECT_THAT(of(100, "pipelined"), IsEmpty());
  EXPECT_THAT(of(2, "serial"), IsEmpty());
}

TEST(BucketFindings, NameTheUpdateIfItIsTheDifference) {
  Wires wires = kMeasuredGigabit;
  wires.update_s_per_byte = 10e-9;
  EXPECT_THAT(BucketFindings({ServerRow(1, "serial", wires)}, wires),
              ElementsAre(testing::HasSubstr(
                  "720 ms until the last worker has its weights (mean over "
                  "workers: 645 ms), not 600 ms). The formula ignores the server's updates")));
}

TEST(BucketFindings, AreEmptyWithoutMeasuredLinks) {
  EXPECT_THAT(BucketFindings({ServerRow(2, "pipelined", kMeasuredGigabit)}, std::nullopt), IsEmpty());
}

}  // namespace
}  // namespace psring
