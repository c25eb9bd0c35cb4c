#include "common/ops/gradient_norm.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

namespace psring {
namespace {

TEST(SumOfSquares, AddsEveryElementOnceInDouble) {
  for (const size_t count : {0, 1, 7, 8, 9, 1000}) {
    std::vector<float> values(count);
    double expected = 0;
    for (size_t i = 0; i < count; ++i) {
      values[i] = static_cast<float>(i) - 3;
      expected += double{values[i]} * values[i];
    }
    EXPECT_EQ(SumOfSquares(values.data(), count), expected);
  }
  const std::vector<float> huge(3, 1e30f);  // its square is beyond float32
  EXPECT_NEAR(SumOfSquares(huge.data(), 3) / 3e60, 1, 1e-6);
}

TEST(ClipFactor, ScalesTheMeanGradientDownToTheBoundAndNeverUp) {
  // A sum of norm 20 over 4 samples has a mean of norm 5.
  EXPECT_DOUBLE_EQ(*ClipFactor(1, 400, 4), .2);
  EXPECT_EQ(*ClipFactor(5, 400, 4), 1);
  EXPECT_EQ(*ClipFactor(6, 400, 4), 1);
  EXPECT_EQ(*ClipFactor(6, 0, 4), 1);
  EXPECT_EQ(*ClipFactor(0, 400, 4), 1);
}

TEST(ClipFactor, RejectsAGradientThatIsNotFinite) {
  for (const double none : {std::numeric_limits<double>::infinity(), std::nan("")})
    EXPECT_EQ(ClipFactor(1, none, 4).status().code(), absl::StatusCode::kOutOfRange);
}

}  // namespace
}  // namespace psring
