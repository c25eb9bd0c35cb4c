#include "trainer/process/live_rank.h"

#include <gtest/gtest.h>

#include "absl/strings/match.h"

namespace psring {
namespace {

TEST(CheckSharing, EveryRankHasItsOwnGpuUnlessSharingIsAllowed) {
  EXPECT_TRUE(CheckSharing({"", "", ""}, false).ok()) << "CPUs are shared";
  EXPECT_TRUE(CheckSharing({"a", "b"}, false).ok());
  EXPECT_TRUE(CheckSharing({"a", "b", "a"}, true).ok());
  const absl::Status refused = CheckSharing({"a", "b", "a"}, false);
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  for (const char* part : {"ranks 0, 2", "2 GPUs for 3 ranks", "--oversubscribe", "--device cpu"})
    EXPECT_TRUE(absl::StrContains(refused.message(), part)) << part << " in " << refused;
  EXPECT_TRUE(absl::StrContains(CheckSharing({"a", "a"}, false).message(), "is 1 GPU for 2 ranks"));
}

TEST(CheckSharingInProcess, RanksOfOneProcessMayNotShareAGpu) {
  EXPECT_TRUE(CheckSharingInProcess({"a", "b", "a", "b"}, 2).ok());
  EXPECT_TRUE(CheckSharingInProcess({"a", "a", "a"}, 1).ok());
  EXPECT_TRUE(CheckSharingInProcess({"", ""}, 2).ok()) << "CPUs are shared";
  const absl::Status refused = CheckSharingInProcess({"a", "b", "c", "c"}, 2);
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(absl::StrContains(refused.message(), "ranks 2 and 3 of one process share a GPU")) << refused;
}

}  // namespace
}  // namespace psring
