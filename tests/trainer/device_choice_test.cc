#include "trainer/device_choice.h"

#include <gtest/gtest.h>

#include "absl/strings/match.h"

namespace psring {
namespace {

TEST(DeviceOfRank, RanksTakeTheGpusOfTheirHostInTurn) {
  EXPECT_EQ(DeviceOfRank("cuda", 0, 2), "cuda:0");
  EXPECT_EQ(DeviceOfRank("cuda", 1, 2), "cuda:1");
  EXPECT_EQ(DeviceOfRank("cuda", 2, 2), "cuda:0");
  EXPECT_EQ(DeviceOfRank("auto", 3, 4), "cuda:3");
}

TEST(DeviceOfRank, AutoIsTheCpuWhereThereIsNoGpu) {
  EXPECT_EQ(DeviceOfRank("auto", 1, 0), "cpu");
  EXPECT_EQ(DeviceOfRank("cuda", 1, 0), "cuda") << "making it says why there is none";
}

TEST(DeviceOfRank, WhatIsNamedStays) {
  EXPECT_EQ(DeviceOfRank("cpu", 1, 4), "cpu");
  EXPECT_EQ(DeviceOfRank("cuda:2", 0, 4), "cuda:2");
}

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
