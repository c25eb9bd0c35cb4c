#include "common/device/memory_limit.h"

#include <sys/resource.h>

#include "tests/common/device/fake_root.h"

namespace psring {
namespace {

using MemoryLimitTest = FakeRoot;

TEST_F(MemoryLimitTest, WithoutALimitThereIsNoResult) {
  EXPECT_FALSE(ControlGroupMemory(root_).has_value());
  WriteFiles("/proc/self/cgroup: 0::/job; job/memory.max: max; job/memory.current: 1000");
  EXPECT_FALSE(ControlGroupMemory(root_).has_value());
}

TEST_F(MemoryLimitTest, VersionTwoUsesTheTightestAncestorAndFileCachesCountAsFree) {
  WriteFiles(
      "/proc/self/cgroup: 0::/slice/job; slice/memory.max: 5000; slice/memory.current: 4000; "
      "slice/memory.stat: anon 3000\ninactive_file 400\nactive_file 200; slice/job/memory.max: 9000; "
      "slice/job/memory.current: 4000");
  const auto memory = ControlGroupMemory(root_).value();
  EXPECT_EQ(memory.total, 5000u);
  EXPECT_EQ(memory.free, 1600u);
}

TEST_F(MemoryLimitTest, VersionOneInAContainerHasItsGroupAtTheTop) {
  WriteFiles(
      "/proc/self/cgroup: 5:devices:/\n4:cpu,memory:/docker/0123\n0::/; "
      "memory/memory.limit_in_bytes: 8192; memory/memory.usage_in_bytes: 9000");
  const auto memory = ControlGroupMemory(root_).value();
  EXPECT_EQ(memory.total, 8192u);
  EXPECT_EQ(memory.free, 0u);
  Write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_FALSE(ControlGroupMemory(root_).has_value());
}

TEST_F(MemoryLimitTest, ProcessesOfOneGroupShareItsLimitAndAnAddressSpaceIsThatOfAProcess) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_AS, &before), 0);
  if (before.rlim_cur != RLIM_INFINITY) GTEST_SKIP() << "the address space is limited already";
  WriteFiles(
      "/proc/self/cgroup: 0::/slice/job; slice/memory.max: 5000; slice/memory.current: 4000; "
      "slice/job/memory.max: max; slice/job/memory.current: 4000");
  EXPECT_EQ(MemoryScope(root_), root_ + "/sys/fs/cgroup/slice") << "also that of its other jobs";
  Write("/sys/fs/cgroup/slice/memory.max", "max\n");
  EXPECT_EQ(MemoryScope(root_), "");
  rlimit limited = before;
  limited.rlim_cur = rlim_t{1} << 62;
  ASSERT_EQ(setrlimit(RLIMIT_AS, &limited), 0);
  EXPECT_EQ(MemoryScope(root_), absl::StrCat("process ", getpid()));
  EXPECT_EQ(setrlimit(RLIMIT_AS, &before), 0);
}

TEST_F(MemoryLimitTest, AnEighthOfFreeMemoryIsReserved) {
  const auto device = MakeCpuDevice();
  const size_t usable = UsableMemory(*device);
  EXPECT_GT(usable, 0u);
  EXPECT_LT(usable, device->memory().value().total);
}

}  // namespace
}  // namespace psring
