// What a comparison on one GPU simulates, and from what.
#include "experiments/one_gpu.h"

#include <gtest/gtest.h>

#include "experiments/design/plan.h"

namespace psring {
namespace {

TEST(OneGpu, IsExceededByMoreWorkersUnlessAFlagAllowsIt) {
  CompareOptions asked;
  asked.training.device = "auto";
  CompareOptions cuda = asked, cpu = asked, one = asked, oversubscribed = asked, replayed = asked,
                 simulated = asked;
  cuda.training.device = oversubscribed.training.device = "cuda";
  cpu.training.device = "cpu";
  one.workers = {1};
  oversubscribed.training.oversubscribe = true;
  replayed.training.workload = "resnet50";
  simulated.training.clock = "virtual";
  for (const CompareOptions& options : {asked, cuda}) EXPECT_TRUE(GoesBeyondOneGpu(options, 1));
  for (const int gpus : {0, 2}) EXPECT_FALSE(GoesBeyondOneGpu(asked, gpus));
  for (const CompareOptions& options : {cpu, one, oversubscribed, replayed, simulated}) {
    EXPECT_FALSE(GoesBeyondOneGpu(options, 1));
  }
}

// Two buckets, the second at the end of backward; the first so many ms before it.
StepRecord StepWith(std::vector<double> before_end_ms, bool warmup = false) {
  StepRecord step{.warmup = warmup};
  for (const double before : before_end_ms)
    step.buckets.push_back({.ready_ns = 1'000'000'000 - static_cast<int64_t>(1e6 * before)});
  return step;
}

RunRecords Records(std::vector<StepRecord> steps) {
  RunRecords records;
  records.ranks.emplace_back();
  records.ranks[0].device = "cuda:0";
  records.ranks[0].ddp = {.bucket_bytes = {12},
                          .has_rebuilt_buckets = true,
                          .rebuilt_bucket_bytes = {400, 80, 4},
                          .forward_ms = 2,
                          .backward_ms = 5};
  records.steps.push_back(std::move(steps));
  return records;
}

TEST(OneGpu, LayerTimesAreMeansOfTheMeasuredSteps) {
  const Configuration configuration;
  const RunRecords records =
      Records({StepWith({99, 98, 0}, /*warmup=*/true), StepWith({4, 1, 0}), StepWith({3, 2, 0})});
  const Workload workload = WorkloadOf(records, configuration).value();
  ASSERT_EQ(workload.tensors.size(), 3);
  EXPECT_DOUBLE_EQ(workload.tensors[0].ready_ms, 1.5);
  EXPECT_DOUBLE_EQ(workload.tensors[1].ready_ms, 3.5);
  EXPECT_DOUBLE_EQ(workload.tensors[2].ready_ms, 5);
  EXPECT_EQ(workload.bytes(), 484);

  const Workload read = ParseWorkload("file", WorkloadCsv(workload)).value();
  EXPECT_EQ(read.device, "cuda:0");
  EXPECT_EQ(read.batch, configuration.training.batch);
  EXPECT_DOUBLE_EQ(read.forward_ms, 2);
  EXPECT_DOUBLE_EQ(read.backward_ms, 5);
  ASSERT_EQ(read.tensors.size(), 3);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(read.tensors[i].bytes, workload.tensors[i].bytes);
    EXPECT_DOUBLE_EQ(read.tensors[i].ready_ms, workload.tensors[i].ready_ms);
  }
}

TEST(OneGpu, TimesStayInOrderDespiteClockErrors) {
  const Workload workload = WorkloadOf(Records({StepWith({7, 8, 0})}), Configuration()).value();
  EXPECT_DOUBLE_EQ(workload.tensors[0].ready_ms, 0);
  EXPECT_DOUBLE_EQ(workload.tensors[1].ready_ms, 0);
  EXPECT_TRUE(ParseWorkload("file", WorkloadCsv(workload)).ok());
}

TEST(OneGpu, WithoutAMeasuredStepThereIsNoPrediction) {
  EXPECT_EQ(WorkloadOf(Records({StepWith({1, 0, 0}, /*warmup=*/true)}), Configuration()).status().code(),
            absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace psring
