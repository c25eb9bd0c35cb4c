#include "experiments/host/machine.h"

#include <gtest/gtest.h>

#include "experiments/host/connections.h"

namespace psring {
namespace {

constexpr char kStat[] =
    "cpu  300 0 0 900 0 0 0 0 0 0\n"
    "cpu0 100 10 20 500 30 1 2 3 0 0\n"
    "cpu1 200 0 0 400 0 0 0 0 0 0\n"
    "intr 12345\n";

TEST(Machine, BusyExcludesIdleIoWaitAndInterrupts) {
  EXPECT_DOUBLE_EQ(BusySeconds(kStat, {0}, 100), 1.33);
  EXPECT_DOUBLE_EQ(BusySeconds(kStat, {0, 1}, 100), 3.33);
  EXPECT_DOUBLE_EQ(BusySeconds("", {0}, 100), 0);
}

TEST(Machine, IsDescribed) {
  const Machine machine = DescribeMachine();
  EXPECT_GE(machine.cores, 1);
  EXPECT_GT(machine.memory_mb, 0);
  EXPECT_FALSE(machine.kernel.empty());
}

TEST(Machine, OurOwnWorkIsNotForeign) {
  const ForeignCpu foreign;
  volatile double sum = 0;
  for (int i = 0; i < 50'000'000; ++i) sum = sum + i;
  const double percent = foreign.Percent();
  EXPECT_GE(percent, 0);
  EXPECT_LE(percent, 100);
}

TEST(Calibrate, MeasuresTheLoopback) {
  const auto wires = CalibrateLoopback(2, absl::Milliseconds(200));
  ASSERT_TRUE(wires.ok()) << wires.status();
  EXPECT_GT(wires->latency_s, 1e-7);
  EXPECT_LT(wires->latency_s, 0.1);
  EXPECT_GT(wires->bytes_per_s, 1e6);
  EXPECT_GE(wires->medium_bytes_per_s, 1e6);
  EXPECT_GT(wires->add_s_per_byte, 0);
}

}  // namespace
}  // namespace psring
