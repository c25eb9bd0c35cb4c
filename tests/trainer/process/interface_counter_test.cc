#include "trainer/process/interface_counter.h"

#include <gtest/gtest.h>

#include "absl/strings/match.h"

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
  EXPECT_TRUE(absl::StrContains(none.status().message(), "lo, eth0")) << none.status();
}

TEST(InterfaceCounter, EveryMachineHasALoopback) { EXPECT_GE(InterfaceTxBytes("lo").value_or(-1), 0); }

}  // namespace
}  // namespace psring
