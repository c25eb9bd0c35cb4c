#include "common/base/shared_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

namespace psring {
namespace {

using ::testing::HasSubstr;

TEST(SharedMemoryTest, BothMappingsHaveTheSameContents) {
  const SharedMemory one = *SharedMemory::Create(10'000);
  const SharedMemory other = *SharedMemory::Adopt(dup(one.fd()), 10'000, /*prefault=*/true);
  one.data()[9'999] = std::byte{7};
  EXPECT_EQ(other.data()[9'999], std::byte{7});
}

TEST(SharedMemoryTest, NobodyCanChangeItsSize) {
  const SharedMemory memory = *SharedMemory::Create(10'000);
  EXPECT_NE(ftruncate(memory.fd(), 0), 0);
  EXPECT_NE(ftruncate(memory.fd(), 20'000), 0);
  EXPECT_EQ(memory.data()[9'999], std::byte{0});
}

TEST(SharedMemoryTest, AFileThatIsTooSmallOrMayShrinkIsNotAdopted) {
  const auto adopted = [](int fd, size_t bytes) {
    return SharedMemory::Adopt(fd, bytes, /*prefault=*/false).status().ToString();
  };
  const SharedMemory memory = *SharedMemory::Create(4096);
  EXPECT_EQ(adopted(dup(memory.fd()), 4096), "OK");
  EXPECT_THAT(adopted(dup(memory.fd()), 4097), HasSubstr("it is shared memory of 4096 bytes, not of 4097"));
  EXPECT_THAT(adopted(dup(memory.fd()), 0), HasSubstr("not of 0"));
  EXPECT_THAT(adopted(dup(memory.fd()), ~size_t{0}), HasSubstr("not of 18446744073709551615"));
  const int not_sealed = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  ASSERT_EQ(ftruncate(not_sealed, 4096), 0);
  EXPECT_THAT(adopted(not_sealed, 4096), HasSubstr("not shared memory that keeps its size"));
  std::string path = ::testing::TempDir() + "/shared-memory-XXXXXX";
  const int file = mkstemp(path.data());
  ASSERT_GE(file, 0);
  unlink(path.c_str());
  ASSERT_EQ(ftruncate(file, 4096), 0);
  EXPECT_THAT(adopted(file, 4096), HasSubstr("not shared memory that keeps its size"));
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  EXPECT_THAT(adopted(ends[0], 4096), HasSubstr("not shared memory that keeps its size"));
  EXPECT_THAT(adopted(ends[1], 4096), HasSubstr("not shared memory that keeps its size"));
}

}  // namespace
}  // namespace psring
