#include "trainer/main/live_rank.h"

#include <gtest/gtest.h>

#include "tests/has.h"

namespace psring {
namespace {

TEST(CheckSharing, EveryRankHasItsOwnGpuUnlessSharingIsAllowed) {
  EXPECT_TRUE(CheckSharing({"", "", ""}, false).ok()) << "CPUs are shared";
  EXPECT_TRUE(CheckSharing({"a", "b"}, false).ok());
  EXPECT_TRUE(CheckSharing({"a", "b", "a"}, true).ok());
  const absl::Status refused = CheckSharing({"a", "b", "a"}, false);
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  for (const char* part : {"ranks 0, 2", "2 GPUs for 3 ranks", "--oversubscribe", "--device cpu"})
    EXPECT_THAT(refused.message(), Has(part));
  EXPECT_THAT(CheckSharing({"a", "a"}, false).message(), Has("is 1 GPU for 2 ranks"));
}

TEST(CheckSharingInProcess, RanksOfOneProcessMayNotShareAGpu) {
  EXPECT_TRUE(CheckSharingInProcess({"a", "b", "a", "b"}, 2).ok());
  EXPECT_TRUE(CheckSharingInProcess({"a", "a", "a"}, 1).ok());
  EXPECT_TRUE(CheckSharingInProcess({"", ""}, 2).ok()) << "CPUs are shared";
  const absl::Status refused = CheckSharingInProcess({"a", "b", "c", "c"}, 2);
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(refused.message(), Has("ranks 2 and 3 of one process share a GPU"));
}

TEST(UseOfMemory, CountsTheRanksWithTheSameMemory) {
  const MemoryUse use = UseOfMemory("host b", {"host a 5", "host b 7", "host b 11"}).value();
  EXPECT_EQ(use.ranks, 2);
  EXPECT_EQ(use.bytes, 18);
  EXPECT_EQ(UseOfMemory("a", {"a"}).status().code(), absl::StatusCode::kInternal);
  EXPECT_EQ(UseOfMemory("a", {"a 1x"}).status().code(), absl::StatusCode::kInternal);
}

}  // namespace
}  // namespace psring
