#include "trainer/strategies/error_feedback.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/kernels/reduce.h"

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

TEST_P(ErrorFeedbackTest, SentValuesAndResidualAddUpToTheGradients) {
  ErrorFeedback feedback = Make(10'000);
  constexpr int kSeed = 3;
  SCOPED_TRACE(absl::StrCat("random seed ", kSeed));
  std::mt19937 random(kSeed);
  std::vector<double> all(10'000), sent(10'000);
  for (int step = 0; step < 50; ++step) {
    feedback.BeginStep(step);
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
    ASSERT_EQ(sent[i] + feedback.Before(50).floats()[i], all[i]) << i;
    ASSERT_LE(std::abs(feedback.Before(50).floats()[i]), 4. / 256);  // half of the coarser type's last place
  }
}

TEST_P(ErrorFeedbackTest, SmallGradientsAreSentEventually) {
  ErrorFeedback feedback = Make(1);
  const float step = 1 + 1.0f / 4096;  // rounds to 1 in both types
  double sent = 0;
  for (int i = 0; i < 4096; ++i) {
    feedback.BeginStep(i);
    sent += Decoded(feedback.Encode(0, View({step})))[0];
  }
  EXPECT_NEAR(sent, 4097, 1. / 64);
}

TEST_P(ErrorFeedbackTest, EachRangeHasItsOwnResidual) {
  ErrorFeedback feedback = Make(8);
  const std::vector<float> gradient(4, 1 + 1.0f / 4096);
  feedback.BeginStep(0);
  feedback.Encode(4, View(gradient));
  EXPECT_EQ(feedback.Before(1).floats()[3], 0);
  EXPECT_EQ(feedback.Before(1).floats()[4], 1.0f / 4096);
}

// A step of two elements.
const std::vector<float> kGradient = {1 + 1.0f / 4096, -3 - 1.0f / 1024};

std::vector<float> Values(ConstSpan span) { return {span.floats(), span.floats() + span.count}; }

TEST_P(ErrorFeedbackTest, TakeBackRestoresTheResidual) {
  ErrorFeedback feedback = Make(2);
  feedback.BeginStep(0);
  feedback.Encode(0, View(kGradient));
  const std::vector<float> before = Values(feedback.Before(1));
  feedback.BeginStep(1);
  feedback.Encode(0, View(kGradient));
  feedback.TakeBack(0, 2);
  EXPECT_EQ(Values(feedback.Before(2)), before);
}

TEST_P(ErrorFeedbackTest, KeepsTheResidualFromTheBeginningOfAStep) {
  ErrorFeedback feedback = Make(2);
  std::vector<std::vector<float>> began;
  for (int step = 0; step < 3; ++step) {
    began.push_back(Values(feedback.Before(step)));
    feedback.BeginStep(step);
    feedback.Encode(1, View({kGradient[1]}));
    EXPECT_EQ(Values(feedback.Before(step)), began[step]);
    feedback.Encode(0, View({kGradient[0]}));
    EXPECT_EQ(Values(feedback.Before(step)), began[step]);
    EXPECT_NE(Values(feedback.Before(step + 1)), began[step]);
  }
}

TEST_P(ErrorFeedbackTest, BeginsWithALoadedResidual) {
  ErrorFeedback whole = Make(2), first = Make(2), second = Make(2);
  for (int step = 0; step < 7; ++step) {
    ErrorFeedback& half = step < 4 ? first : second;
    if (step == 4) second.Load(first.Before(4));
    whole.BeginStep(step);
    half.BeginStep(step);
    EXPECT_EQ(Decoded(half.Encode(0, View(kGradient))), Decoded(whole.Encode(0, View(kGradient))));
  }
  EXPECT_EQ(Values(second.Before(7)), Values(whole.Before(7)));
}

// Going back from every step to every earlier step.
TEST_P(ErrorFeedbackTest, GoBackRestoresTheResidualOfThatStep) {
  for (int from = 0; from < 9; ++from) {
    for (int to = 0; to <= from + 1; ++to) {
      ErrorFeedback feedback = Make(2);
      std::vector<std::vector<float>> began;
      for (int step = 0; step <= from; ++step) {
        began.push_back(Values(feedback.Before(step)));
        if (step % 2 == 0) feedback.Keep(step);
        feedback.BeginStep(step);
        feedback.Encode(0, View(kGradient));
      }
      began.push_back(Values(feedback.Before(from + 1)));
      // The newest three of the even steps are kept; the current step and the next are always known.
      const int newest = from / 2 * 2;
      const bool known = to >= from || (to % 2 == 0 && to >= newest - 4);
      EXPECT_EQ(feedback.GoBackTo(to), known) << from << " to " << to;
      const std::vector<float> expected = known ? began[to] : std::vector<float>{0, 0};
      EXPECT_EQ(Values(feedback.Before(to)), expected) << from << " to " << to;
      feedback.BeginStep(to);
      EXPECT_EQ(Values(feedback.Before(to)), expected) << from << " to " << to;
    }
  }
}

TEST(ErrorFeedback, SendsValuesAboveFloat16sRangeLater) {
  const auto device = MakeCpuDevice();
  ErrorFeedback feedback = *ErrorFeedback::Create(DType::kFloat16, 1, false, *device);
  const std::vector<float> large = {100'000}, nothing = {0};
  feedback.BeginStep(0);
  EXPECT_EQ(Decoded(feedback.Encode(0, {large.data(), 1}))[0], 65504);
  feedback.BeginStep(1);
  EXPECT_EQ(Decoded(feedback.Encode(0, {nothing.data(), 1}))[0], 34496);
}

}  // namespace
}  // namespace psring
