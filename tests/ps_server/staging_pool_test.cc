#include "ps_server/staging_pool.h"

#include <gtest/gtest.h>

namespace psring {
namespace {

TEST(StagingPoolTest, UsesAgainWhatCameBackAndMakesNoMoreThanItMay) {
  const auto device = MakeCpuDevice();
  const auto pool = std::make_shared<StagingPool>(*device, 64, 2);
  auto first = *pool->Take();
  const auto second = *pool->Take();
  EXPECT_NE(first->data(), second->data());
  EXPECT_EQ(pool->Take().status().code(), absl::StatusCode::kResourceExhausted);
  const void* memory = first->data();
  first.reset();
  EXPECT_EQ((*pool->Take())->data(), memory);
}

TEST(StagingPoolTest, ABufferMayOutliveItsPoolsOwner) {
  const auto device = MakeCpuDevice();
  auto pool = std::make_shared<StagingPool>(*device, 64, 1);
  auto buffer = *pool->Take();
  pool.reset();
  static_cast<char*>(buffer->data())[63] = 1;
  buffer.reset();
}

}  // namespace
}  // namespace psring
