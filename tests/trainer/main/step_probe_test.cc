#include "trainer/main/step_probe.h"

#include <gtest/gtest.h>
#include <malloc.h>

#include "tests/has.h"

namespace psring {
namespace {

constexpr char kText[] =
    "Inter-|   Receive                                                |  Transmit\n"
    " face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls "
    "carrier\n"
    "    lo:     100       2    0    0    0     0          0         0      100       2    0    0    0     0 "
    "      0\n"
    "  eth0:12345678     900    0    0    0     0          0         0 98765432     800    0    0    0     0 "
    "      0\n";

TEST(InterfaceCounter, ReadsTheBytesSentByAnInterface) {
  EXPECT_EQ(*InterfaceTxBytesOf(kText, "eth0"), 98765432);
  EXPECT_EQ(*InterfaceTxBytesOf(kText, "lo"), 100);
}

TEST(InterfaceCounter, ListsTheInterfaces) {
  const auto none = InterfaceTxBytesOf(kText, "eth1");
  EXPECT_EQ(none.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(none.status().message(), Has("lo, eth0"));
}

TEST(InterfaceCounter, EveryMachineHasALoopback) { EXPECT_GE(InterfaceTxBytes("lo").value_or(-1), 0); }

TEST(RunDelay, IsTheSecondNumberOfSchedstat) {
  EXPECT_EQ(RunDelayOf("1200 345 6\n"), 345);
  EXPECT_EQ(RunDelayOf(""), std::nullopt);
  EXPECT_EQ(RunDelayOf("12"), std::nullopt);
  EXPECT_EQ(RunDelayOf("a b c"), std::nullopt);
}

TEST(StepMeans, CountOnlyMeasuredSteps) {
  const std::vector<TraceSpan> spans = {
      {.kind = SpanKind::kBackward, .step = 0, .begin_ns = 0, .end_ns = 900'000'000},  // warm-up
      {.kind = SpanKind::kForward, .step = 1, .begin_ns = 1'000'000, .end_ns = 2'000'000},
      {.kind = SpanKind::kBackward, .step = 1, .begin_ns = 2'000'000, .end_ns = 4'000'000},
      {.kind = SpanKind::kBackward,
       .step = 1,
       .begin_ns = 5'000'000,
       .end_ns = 7'000'000},  // another micro-batch
      {.kind = SpanKind::kOptimizer, .step = 1, .begin_ns = 8'000'000, .end_ns = 9'000'000},
      {.kind = SpanKind::kOptimizer, .step = 1, .begin_ns = 9'000'000, .end_ns = 9'500'000},
      {.kind = SpanKind::kBackward, .step = 2, .begin_ns = 11'000'000, .end_ns = 14'000'000}};
  const auto means = MeansOf(spans, {{1, 1'000'000}, {2, 10'000'000}, {3, 20'000'000}});
  ASSERT_TRUE(means.has_value());
  EXPECT_DOUBLE_EQ(means->computed_ms, (6 + 4) / 2.0);
  EXPECT_DOUBLE_EQ(means->update_ms, (1.5 + 0) / 2);
  EXPECT_FALSE(MeansOf(spans, {}).has_value());
}

TEST(StepProbe, ReportsTheCostOfRecordingWithoutWarmUp) {
  int64_t now = 0;
  const Clock clock = [&now] { return now; };
  auto probe = StepProbe::Start(nullptr, /*ranks=*/1, clock, clock).value();
  Trace trace(0, 16, clock);
  for (int64_t step = 0; step < 5; ++step) {
    trace.Add({.kind = SpanKind::kBackward, .step = step, .begin_ns = step, .end_ns = step + 3'000'000});
    StepRecord record{.step = step, .warmup = step == 0};
    record.begin_ns = step;
    probe.OnStep(record, [&] { now += step == 0 ? 1'000'000'000 : 2'000'000; });
  }
  RankResult result;
  probe.Fill(trace, result);
  EXPECT_GE(result.probe_ms, 2);
  EXPECT_LT(result.probe_ms, 3);  // spans cost microseconds
  EXPECT_DOUBLE_EQ(result.computed_ms, 3);
  EXPECT_DOUBLE_EQ(result.update_ms, 0);
  EXPECT_EQ(result.wire_tx_bytes, -1);
}

TEST(StepProbe, ReportsNothingWithoutMeasuredSteps) {
  auto probe = StepProbe::Start(nullptr).value();
  RankResult result;
  probe.Fill(Trace(0), result);
  EXPECT_EQ(result.probe_ms, -1);
  EXPECT_EQ(result.computed_ms, -1);
}

// A step sends 1000 bytes and takes `step_ms`. Returns how often the counter was read.
int ReadingsOf(int steps, int64_t step_ms, int64_t& wire_tx_bytes, int ranks = 1) {
  int64_t now = 0, sent = 7'000'000;
  int readings = 0;
  auto probe = StepProbe::Start(
                   [&]() -> absl::StatusOr<int64_t> {
                     ++readings;
                     return sent;
                   },
                   ranks, [&now] { return now; })
                   .value();
  for (int64_t step = 0; step <= steps; ++step) {
    now += step_ms * 1'000'000;
    sent += step == 0 ? 500'000 : 1000;  // messages before the steps do not count
    probe.OnStep(StepRecord{.step = step, .warmup = step == 0}, [] {});
  }
  RankResult result;
  probe.Fill(Trace(0), result);
  wire_tx_bytes = result.wire_tx_bytes;
  return readings;
}

TEST(StepProbe, CountsBytesSentFromOccasionalReadings) {
  int64_t bytes = 0;
  EXPECT_LT(ReadingsOf(2001, 5, bytes), 120);  // ten seconds: ten a second, and some at first
  EXPECT_EQ(bytes, 2'001'000);
  ReadingsOf(3, 5, bytes);
  EXPECT_EQ(bytes, 3000);
  ReadingsOf(20, 50, bytes, /*ranks=*/2);  // of one process, which share its bytes
  EXPECT_EQ(bytes, 10'000);
  EXPECT_EQ(ReadingsOf(30, 150, bytes), 33);  // long steps: every one
  EXPECT_EQ(bytes, 30'000);
}

TEST(StepProbe, DoesNotGrowWithSteps) {
  auto probe = StepProbe::Start(nullptr, /*ranks=*/1, [] { return int64_t{0}; }).value();
  const auto allocated = [] {
    const struct mallinfo2 heap = mallinfo2();
    return heap.uordblks + heap.hblkhd;
  };
  // More steps than a trace has spans.
  constexpr int64_t kSteps = 2 * Trace::kCapacity;
  const size_t before = allocated();
  for (int64_t step = 0; step < kSteps; ++step) probe.OnStep(StepRecord{.step = step}, [] {});
  // malloc counts the few KB in its caches as allocated. A block of 64 bytes for each step would take 8 MiB.
  EXPECT_LT(allocated(), before + (64 << 10));
}

TEST(StepProbe, UsesTheLastBeginOfARepeatedStep) {
  auto probe = StepProbe::Start(nullptr).value();
  Trace trace(0);
  trace.Add({.kind = SpanKind::kBackward, .step = 7, .begin_ns = 0, .end_ns = 9'000'000});
  for (const int64_t begin_ns : {1'000'000, 4'000'000}) {
    StepRecord record{.step = 7};
    record.begin_ns = begin_ns;
    probe.OnStep(record, [] {});
  }
  RankResult result;
  probe.Fill(trace, result);
  EXPECT_DOUBLE_EQ(result.computed_ms, 5);
}

TEST(StepProbe, RejectsACounterThatCannotBeRead) {
  EXPECT_EQ(StepProbe::Start([] { return absl::NotFoundError("no interface"); }).status().code(),
            absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace psring
