#include <gtest/gtest.h>

#include "experiments/analysis/launch_figures.h"
#include "tests/experiments/test_catalog.h"

namespace psring {
namespace {

// One worker with two steps of 100 ms, 30 ms of communication and 10 ms of waiting.
RunRecords Records() {
  RunRecords records;
  records.ranks.push_back({.wall_s = 0.2, .update_ms = 5, .probe_ms = 1});
  records.steps.emplace_back();
  for (int64_t step = 0; step < 2; ++step) {
    const int64_t begin = 1'000'000'000 + step * 100'000'000;
    StepRecord record{.step = step,
                      .samples = 8,
                      .begin_ns = begin,
                      .step_ms = 100,
                      .compute_ms = 60,
                      .comm_busy_ms = 30,
                      .exposed_comm_ms = 10,
                      .payload_tx_bytes = 1000,
                      .bubble_ms = 20,
                      .activation_message_ms = 4,
                      .gradient_message_ms = 2};
    record.buckets.push_back(
        {.ready_ns = begin + 60'000'000, .begin_ns = begin + 60'000'000, .end_ns = begin + 90'000'000});
    records.steps.back().push_back(record);
  }
  records.network = NetworkFigures{.retransmitted_segments = 3, .again_ms = 20};
  return records;
}

TEST(TimeScale, DividesEveryTimeAndNothingElse) {
  const Configuration ring = TestConfiguration("ring", 1);
  RunRecords slowed = Records();
  const auto as_run = FiguresOf(ring, slowed);
  DivideTimes(10, slowed);
  const auto divided = FiguresOf(ring, slowed);
  ASSERT_TRUE(as_run.ok() && divided.ok()) << as_run.status() << divided.status();
  for (auto time : {&RunFigures::step_ms, &RunFigures::compute_ms, &RunFigures::comm_busy_ms,
                    &RunFigures::exposed_comm_ms, &RunFigures::wall_s, &RunFigures::waited_ms}) {
    EXPECT_NEAR((*divided).*time, (*as_run).*time / 10, 1e-9);
  }
  for (auto time : {&WorkerFigures::activation_message_ms, &WorkerFigures::gradient_message_ms}) {
    EXPECT_GT(as_run->workers[0].*time, 0);
    EXPECT_NEAR(divided->workers[0].*time, as_run->workers[0].*time / 10, 1e-9);
  }
  for (auto time : {&RunFigures::update_ms, &RunFigures::probe_ms})
    EXPECT_NEAR(*((*divided).*time), *((*as_run).*time) / 10, 1e-9);
  EXPECT_NEAR(divided->samples_per_s, 10 * as_run->samples_per_s, 1e-6);
  EXPECT_EQ(divided->payload_tx_bytes, as_run->payload_tx_bytes);
  EXPECT_EQ(divided->samples, as_run->samples);
  EXPECT_EQ(slowed.network->again_ms, 2);
  EXPECT_EQ(slowed.network->retransmitted_segments, 3);
  EXPECT_LT(slowed.ranks[0].computed_ms, 0) << "still unknown";
}

TEST(TimeScale, WiresStandForTheFasterOnes) {
  const Wires wires = DivideTimes(10, Wires{.latency_s = 1e-3,
                                            .bytes_per_s = 1e8,
                                            .add_s_per_byte = 1e-9,
                                            .grpc_bytes_per_s = 1e8,
                                            .stream_bytes_per_s = 2e8});
  EXPECT_DOUBLE_EQ(wires.grpc_bytes_per_s, 1e9);
  EXPECT_DOUBLE_EQ(wires.stream_bytes_per_s, 2e9);
  EXPECT_DOUBLE_EQ(wires.latency_s, 1e-4);
  EXPECT_DOUBLE_EQ(wires.bytes_per_s, 1e9);
  EXPECT_DOUBLE_EQ(wires.add_s_per_byte, 1e-10);
}

TEST(TimeScale, ComputingIsSlowedInEveryConfiguration) {
  TrainingOptions training;
  training.compute_speedup = 2;
  training.time_scale = 10;
  const auto slowed = MakeConfiguration("ring", 4, training, TestProbe(), 64);
  ASSERT_TRUE(slowed.ok());
  EXPECT_DOUBLE_EQ(slowed->training.compute_speedup, 0.2);
  EXPECT_TRUE(slowed->scaled());
}

}  // namespace
}  // namespace psring
