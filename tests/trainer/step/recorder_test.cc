// Records of steps whose times are given, and the curve.
#include "trainer/step/recorder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "tests/trainer/cluster.h"

namespace psring {
namespace {

using testing::DoubleEq;
using testing::ElementsAre;
using testing::Pair;

constexpr int64_t kMs = 1'000'000;

class RecorderTest : public testing::Test {
 protected:
  RecorderTest() {
    plan_.warmup_steps = 1;
    plan_.steps = 30;
    worker_.on_evaluating = [this](int64_t done, int64_t planned) { progress_.emplace_back(done, planned); };
  }

  // From 1 to 11 ms, with a bucket in flight from 7 to 10 ms.
  static Recorder::Step StepOf(int64_t step) {
    Recorder::Step of{.info = {.step = step, .samples = 4}, .begin_ns = 1 * kMs, .end_ns = 11 * kMs};
    of.report.buckets = {{.begin_ns = 7 * kMs, .end_ns = 10 * kMs}};
    of.report.exposed_ns = 1 * kMs;
    of.times.passes = {{{StepKind::kForward}, {1 * kMs, 4 * kMs}},
                       {{StepKind::kBackward}, {4 * kMs, 9 * kMs}}};
    of.times.compute_ns = 8 * kMs;
    of.times.units = {{{StepKind::kForward, 0, 0, 0}, {1 * kMs, 3 * kMs}}};
    of.loss_sum = 6;
    return of;
  }
  int SpansOf(SpanKind kind) const {
    int count = 0;
    for (const TraceSpan& span : trace_.spans()) count += span.kind == kind;
    return count;
  }
  static StepRecord RecordOfStep(int64_t step, bool warmup = false) {
    return {.step = step, .warmup = warmup, .samples = 4, .step_ms = 500, .loss = 1. * step};
  }

  const std::unique_ptr<Device> device_ = MakeCpuDevice();
  Trace trace_{0};
  Worker worker_{.device = *device_, .data = SmallData(), .trace = trace_};
  StepPlan plan_;
  RankResult result_;
  std::vector<std::pair<int64_t, int64_t>> progress_;
  Recorder recorder_{worker_, plan_, /*counts_samples=*/true, result_};
};

TEST_F(RecorderTest, WaitingForOthersIsExposedAndNotComputing) {
  Recorder::Step step = StepOf(1);
  step.report.waits = {{5 * kMs, 6 * kMs}};
  step.busy = {{2 * kMs, 3 * kMs}};
  step.times.bubbles = {{9 * kMs, 11 * kMs}};
  const StepRecord record = recorder_.RecordOf(step);
  EXPECT_THAT(record.step_ms, DoubleEq(10));
  EXPECT_THAT(record.compute_ms, DoubleEq(7));
  EXPECT_THAT(record.exposed_comm_ms, DoubleEq(2));
  EXPECT_THAT(record.comm_busy_ms, DoubleEq(4));
  EXPECT_THAT(record.bubble_ms, DoubleEq(2));
  EXPECT_THAT(record.loss, DoubleEq(1.5));
  EXPECT_EQ(record.buckets.size(), 1);
}

TEST_F(RecorderTest, FiguresOfDdpAreMeansOverMeasuredSteps) {
  for (const int64_t step : {0, 1, 2}) {
    Recorder::Step of = StepOf(step);
    if (step == 0) of.times.passes[0].time.begin_ns = 0;  // not counted
    (void)recorder_.RecordOf(of);
  }
  recorder_.End();
  EXPECT_THAT(result_.ddp.forward_ms, DoubleEq(3));
  EXPECT_THAT(result_.ddp.backward_ms, DoubleEq(5));
  EXPECT_THAT(result_.ddp.comm_ms, DoubleEq(3));
  EXPECT_THAT(result_.ddp.overlap_ms, DoubleEq(2));  // from 7 to 9 ms
}

TEST_F(RecorderTest, TheTraceHasUnitsOfTheFirstMeasuredSteps) {
  for (int64_t step = 0; step < 25; ++step) (void)recorder_.RecordOf(StepOf(step));
  EXPECT_EQ(SpansOf(SpanKind::kForward), 25);
  EXPECT_EQ(SpansOf(SpanKind::kUnit), 20);
}

TEST_F(RecorderTest, CopiesOfDataParallelReplaceCommunication) {
  Recorder::Step step = StepOf(1);
  step.replicas = DataParallelFigures{.replicas = 2, .weights_ms = 3, .device0_extra_mb = 5};
  const StepRecord record = recorder_.RecordOf(step);
  EXPECT_THAT(record.compute_ms, DoubleEq(8 - 3));
  EXPECT_THAT(record.exposed_comm_ms, DoubleEq(3));
  EXPECT_THAT(result_.data_parallel.weights_ms, DoubleEq(3. / 30));
  EXPECT_THAT(result_.data_parallel.update_ms, DoubleEq(2. / 30));  // from 9 to 11 ms
  EXPECT_EQ(result_.data_parallel.device0_extra_mb, 5);
}

TEST_F(RecorderTest, StepsThatAreRepeatedCountOnce) {
  recorder_.Count(RecordOfStep(0, /*warmup=*/true));
  for (const int64_t step : {1, 2, 3}) recorder_.Count(RecordOfStep(step));
  EXPECT_EQ(result_.samples, 12);
  recorder_.RemoveFrom(2, /*samples=*/8);
  EXPECT_EQ(result_.samples, 4);
  for (const int64_t step : {2, 3}) recorder_.Count(RecordOfStep(step));
  EXPECT_EQ(result_.samples, 12);
  EXPECT_THAT(result_.wall_s, DoubleEq(5 * .5)) << "time passes nevertheless";
  StepRecord dropped = RecordOfStep(4);
  dropped.dropped = true;
  recorder_.Count(dropped);
  EXPECT_EQ(result_.samples, 12);
  EXPECT_EQ(result_.dropped_gradients, 1);
}

TEST_F(RecorderTest, SamplesOfAReplicaCountOnOneRank) {
  Recorder other(worker_, plan_, /*counts_samples=*/false, result_);
  other.Count(RecordOfStep(1));
  EXPECT_EQ(result_.samples, 0);
  EXPECT_THAT(result_.wall_s, DoubleEq(.5));
}

TEST_F(RecorderTest, TheCurveHasTheScoresOfTheCopies) {
  const std::vector<std::vector<float>> weights = {{1, 2}, {3, 4}, {5, 6}};
  for (int64_t i = 0; i < 3; ++i) {
    recorder_.Count(RecordOfStep(i + 1));
    const std::vector<float>& copied = weights[static_cast<size_t>(i)];
    recorder_.Keep({.samples = 4 * (i + 1), .updates = i + 1}, {copied.data(), copied.size()}, {});
  }
  recorder_.RemoveFrom(3, /*samples=*/8);  // and its copy
  const int64_t count = worker_.data.test.predictions();
  const auto score = [&](const WeightsCopy& copy, const auto& on_batch) -> absl::StatusOr<BatchScore> {
    on_batch(1);
    return BatchScore{.loss_sum = copy.weights[0] * static_cast<double>(count), .correct = count};
  };
  ASSERT_TRUE(recorder_.ScoreCurve(score).ok());
  ASSERT_EQ(result_.curve.size(), 2);
  EXPECT_EQ(result_.curve[1].samples, 8);
  EXPECT_THAT(result_.curve[1].wall_s, DoubleEq(1));
  EXPECT_THAT(result_.curve[1].train_loss, DoubleEq(2));
  EXPECT_THAT(result_.curve[1].test_loss, DoubleEq(3));
  EXPECT_EQ(result_.curve[1].test_accuracy, 1);
  EXPECT_THAT(progress_, ElementsAre(Pair(0, 2 * count), Pair(1, 2 * count), Pair(count + 1, 2 * count)));
}

}  // namespace
}  // namespace psring
