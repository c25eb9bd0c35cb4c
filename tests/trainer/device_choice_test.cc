#include "trainer/device_choice.h"

#include <gtest/gtest.h>

#include "absl/strings/match.h"

namespace psring {
namespace {

TEST(CheckSharing, EveryRankHasAGpuOfItsOwnUnlessItIsSaidThatTheyMayShare) {
  EXPECT_TRUE(CheckSharing({"", "", ""}, false).ok()) << "CPUs are shared";
  EXPECT_TRUE(CheckSharing({"a", "b"}, false).ok());
  EXPECT_TRUE(CheckSharing({"a", "b", "a"}, true).ok());
  const absl::Status refused = CheckSharing({"a", "b", "a"}, false);
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  for (const char* part : {"ranks 0, 2", "2 GPUs for 3 ranks", "--oversubscribe", "--device cpu"}) {
    EXPECT_TRUE(absl::StrContains(refused.message(), part)) << part << " in " << refused;
  }
  EXPECT_TRUE(absl::StrContains(CheckSharing({"a", "a"}, false).message(), "is 1 GPU for 2 ranks"));
}

}  // namespace
}  // namespace psring
