#include "common/device/memory_limit.h"

#include "tests/common/device/fake_root.h"

namespace psring {
namespace {

using MemoryLimitTest = FakeRoot;

TEST_F(MemoryLimitTest, WithoutALimitThereIsNoResult) {
  EXPECT_FALSE(ControlGroupMemory(root_).has_value());
  Write("/proc/self/cgroup", "0::/job\n");
  Write("/sys/fs/cgroup/job/memory.max", "max\n");
  Write("/sys/fs/cgroup/job/memory.current", "1000\n");
  EXPECT_FALSE(ControlGroupMemory(root_).has_value());
}

TEST_F(MemoryLimitTest, VersionTwoUsesTheTightestAncestorAndFileCachesCountAsFree) {
  Write("/proc/self/cgroup", "0::/slice/job\n");
  Write("/sys/fs/cgroup/slice/memory.max", "5000\n");
  Write("/sys/fs/cgroup/slice/memory.current", "4000\n");
  Write("/sys/fs/cgroup/slice/memory.stat", "anon 3000\ninactive_file 600\n");
  Write("/sys/fs/cgroup/slice/job/memory.max", "9000\n");
  Write("/sys/fs/cgroup/slice/job/memory.current", "4000\n");
  const auto memory = ControlGroupMemory(root_);
  ASSERT_TRUE(memory.has_value());
  EXPECT_EQ(memory->total, 5000u);
  EXPECT_EQ(memory->free, 1600u);
}

TEST_F(MemoryLimitTest, VersionOneInAContainerHasItsGroupAtTheTop) {
  Write("/proc/self/cgroup", "5:devices:/\n4:cpu,memory:/docker/0123\n0::/\n");
  Write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "8192\n");
  Write("/sys/fs/cgroup/memory/memory.usage_in_bytes", "9000\n");
  const auto memory = ControlGroupMemory(root_);
  ASSERT_TRUE(memory.has_value());
  EXPECT_EQ(memory->total, 8192u);
  EXPECT_EQ(memory->free, 0u);
  Write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_FALSE(ControlGroupMemory(root_).has_value());
}

TEST_F(MemoryLimitTest, AnEighthOfFreeMemoryIsReserved) {
  const auto device = MakeCpuDevice();
  const size_t usable = UsableMemory(*device);
  ASSERT_TRUE(device->memory().has_value());
  EXPECT_GT(usable, 0u);
  EXPECT_LT(usable, device->memory()->total);
}

}  // namespace
}  // namespace psring
