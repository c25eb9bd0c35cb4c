#include "trainer/error_feedback.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "common/reduce.h"

namespace psring {
namespace {

std::vector<float> Decoded(ConstSpan encoded) {
  std::vector<float> values(encoded.count);
  cpu::Convert(encoded.type, encoded.data, DType::kFloat32, values.data(), values.size());
  return values;
}

class ErrorFeedbackTest : public testing::TestWithParam<DType> {
 protected:
  ErrorFeedback Make(size_t count) {
    return *ErrorFeedback::Create(GetParam(), count, /*shared=*/false, *device_);
  }
  static ConstSpan View(const std::vector<float>& values) { return {values.data(), values.size()}; }

  std::unique_ptr<Device> device_ = MakeCpuDevice();
};
INSTANTIATE_TEST_SUITE_P(Types, ErrorFeedbackTest, testing::Values(DType::kBFloat16, DType::kFloat16),
                         [](const auto& info) { return std::string(Name(info.param)); });

TEST_P(ErrorFeedbackTest, WhatWasSentAndWhatIsLeftAddUpToTheGradientsExactly) {
  ErrorFeedback feedback = Make(10'000);
  std::mt19937 random(3);
  std::vector<double> all(10'000), sent(10'000);
  for (int step = 0; step < 50; ++step) {
    // Multiples of 2^-12 below 4: sums and differences of them are exact.
    std::vector<float> gradient(10'000);
    for (float& value : gradient) value = (static_cast<float>(random() % (1 << 15)) - (1 << 14)) / (1 << 12);
    const std::vector<float> arrived = Decoded(feedback.Encode(0, View(gradient)));
    for (size_t i = 0; i < gradient.size(); ++i) {
      all[i] += gradient[i];
      sent[i] += arrived[i];
    }
  }
  for (size_t i = 0; i < all.size(); ++i) {
    ASSERT_EQ(sent[i] + feedback.residual().floats()[i], all[i]) << i;
    ASSERT_LE(std::abs(feedback.residual().floats()[i]), 4. / 256);  // half of the coarser type's last place
  }
}

TEST_P(ErrorFeedbackTest, AGradientTooSmallToChangeTheLastPlaceArrivesInTheEnd) {
  ErrorFeedback feedback = Make(1);
  const float step = 1 + 1.0f / 4096;  // rounds to 1 in both types
  double sent = 0;
  for (int i = 0; i < 4096; ++i) sent += Decoded(feedback.Encode(0, View({step})))[0];
  EXPECT_NEAR(sent, 4097, 1. / 64);
}

TEST_P(ErrorFeedbackTest, EachRangeHasItsOwn) {
  ErrorFeedback feedback = Make(8);
  const std::vector<float> gradient(4, 1 + 1.0f / 4096);
  feedback.Encode(4, View(gradient));
  EXPECT_EQ(feedback.residual().floats()[3], 0);
  EXPECT_EQ(feedback.residual().floats()[4], 1.0f / 4096);
}

TEST_P(ErrorFeedbackTest, WhatIsTakenBackLeavesTheResidualAsItWas) {
  ErrorFeedback feedback = Make(2);
  const std::vector<float> first = {1 + 1.0f / 4096, -3}, dropped = {2 + 1.0f / 1024, 5};
  feedback.Encode(0, View(first));
  const float before = feedback.residual().floats()[0];
  feedback.Encode(0, View(dropped));
  feedback.TakeBack(0, View(dropped));
  EXPECT_EQ(feedback.residual().floats()[0], before);
  EXPECT_EQ(feedback.residual().floats()[1], 0);
}

TEST(ErrorFeedback, WhatFloat16CannotHoldIsSentLater) {
  const auto device = MakeCpuDevice();
  ErrorFeedback feedback = *ErrorFeedback::Create(DType::kFloat16, 1, false, *device);
  const std::vector<float> large = {100'000}, nothing = {0};
  EXPECT_EQ(Decoded(feedback.Encode(0, {large.data(), 1}))[0], 65504);
  EXPECT_EQ(Decoded(feedback.Encode(0, {nothing.data(), 1}))[0], 34496);
}

}  // namespace
}  // namespace psring
