#include "common/ops/optimizer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <vector>

#include "common/ops/gradient_norm.h"
#include "tests/common/ops/ops_testing.h"

namespace psring {
namespace {

const OptimizerKind kKinds[] = {OptimizerKind::kSgd, OptimizerKind::kMomentum, OptimizerKind::kAdam,
                                OptimizerKind::kAdamW, OptimizerKind::kAdagrad};

TEST(OptimizerNameTest, NamesAndKindsCorrespond) {
  for (const OptimizerKind kind : kKinds) EXPECT_EQ(ParseOptimizer(OptimizerName(kind)).value(), kind);
  const auto unknown = ParseOptimizer("rmsprop");
  ASSERT_FALSE(unknown.ok());
  EXPECT_NE(unknown.status().message().find("use sgd, momentum, adagrad, adam or adamw"), std::string::npos);
}

TEST(LearningRate, FollowsItsScheduleInSamples) {
  const LrSchedule constant{.base = .1, .scale = 4}, warm_up{.base = .1, .scale = 4, .warmup_samples = 1000},
      linear{.decay = LrDecay::kLinear, .base = .1, .scale = 2, .warmup_samples = 100, .total_samples = 1100},
      cosine{.decay = LrDecay::kCosine, .base = .2, .warmup_samples = 100, .total_samples = 1100},
      short_run{
          .decay = LrDecay::kLinear, .base = .1, .scale = 3, .warmup_samples = 100, .total_samples = 50};
  const struct {
    const char* what;
    const LrSchedule& schedule;
    int64_t samples;
    double rate;
  } cases[] = {{"the scaled base", constant, 0, .4},
               {"the scaled base", constant, 1'000'000, .4},
               {"warm-up from the unscaled base", warm_up, 0, .1},
               {"warm-up", warm_up, 500, .25},
               {"after warm-up", warm_up, 1000, .4},
               {"linear decay from the end of warm-up", linear, 100, .2},
               {"linear decay", linear, 600, .1},
               {"linear decay, one sample before its end", linear, 1099, .2 / 1000},
               {"linear decay to 0", linear, 1100, 0},
               {"after linear decay", linear, 5000, 0},
               {"a warm-up longer than the run", short_run, 50, .2},
               {"a warm-up longer than the run has no decay", short_run, 100, 0},
               {"a cosine rises from 0", cosine, 0, 0},
               {"a cosine's warm-up", cosine, 50, .1},
               {"a cosine's peak", cosine, 100, .2},
               {"a cosine", cosine, 600, .11},
               {"a cosine falls to a tenth", cosine, 1100, .02},
               {"after a cosine", cosine, 2000, .02}};
  for (const auto& [what, schedule, samples, rate] : cases)
    EXPECT_NEAR(LearningRate(schedule, samples), rate, 1e-15) << what << ", " << samples << " samples";
}

class OptimizerTest : public testing::TestWithParam<OptimizerKind> {
 protected:
  Optimizer Make(size_t count) { return Optimizer::Create({.kind = GetParam()}, *device_, count).value(); }

  // `updates` updates of all weights, cut into slices at `cuts`; the weights and slots that result. `shift`
  // moves the weights and gradients off their alignment.
  Floats Train(size_t count, const std::vector<size_t>& cuts, Ops& ops, size_t shift = 0) {
    const Optimizer optimizer = Make(count);
    Floats weights = Random(count + shift, 1);
    std::copy_n(Random(count, 1).begin(), count, weights.begin() + shift);
    for (int update = 1; update <= 3; ++update) {
      Floats gradient = Random(count, 10 + update);
      gradient.insert(gradient.begin(), shift, 0);
      size_t first = 0;
      for (size_t i = 0; i <= cuts.size(); ++i) {
        const size_t end = i < cuts.size() ? cuts[i] : count;
        optimizer.Apply(first, ViewOf(weights).Slice(shift + first, end - first),
                        ConstSpan(ViewOf(gradient)).Slice(shift + first, end - first), 128, 0.05, update, ops,
                        *stream_);
        first = end;
      }
    }
    EXPECT_EQ(stream_->Synchronize(), absl::OkStatus());
    Floats state(weights.begin() + shift, weights.end());
    for (const Span slot : optimizer.slots())
      state.insert(state.end(), slot.floats(), slot.floats() + slot.count);
    return state;
  }

  std::unique_ptr<Device> device_ = MakeCpuDevice();
  std::unique_ptr<Stream> stream_ = device_->NewStream(StreamKind::kCompute, "test");
};

INSTANTIATE_TEST_SUITE_P(Kinds, OptimizerTest, testing::ValuesIn(kKinds),
                         [](const auto& info) { return OptimizerName(info.param); });

TEST_P(OptimizerTest, BitsDoNotDependOnSlicesOrAlignment) {
  constexpr size_t kCount = 1003;
  const auto ops = MakeOneDnnOps(1);
  const Floats whole = Train(kCount, {}, *ops);
  std::vector<size_t> every;
  for (size_t i = 1; i < kCount; ++i) every.push_back(i);
  // One element at a time: what a scalar loop computes, without vectors.
  EXPECT_EQ(Train(kCount, every, *ops), whole);
  EXPECT_EQ(Train(kCount, {1, 2, 18, 500, 999}, *ops), whole);
  for (const size_t shift : {1, 3, 7, 15}) EXPECT_EQ(Train(kCount, {17, 333}, *ops, shift), whole);
}

// The definition, each operation rounded separately; `volatile` prevents the compiler from fusing a product
// with the following sum.
TEST_P(OptimizerTest, EveryOperationIsRoundedSeparately) {
  constexpr size_t kCount = 200;
  Floats w = Random(kCount, 1), m(kCount), v(kCount);
  for (int t = 1; t <= 3; ++t) {
    const Floats gradient = Random(kCount, 10 + t);
    const double beta1 = 0.9f, beta2 = 0.999f;
    const float rate = 0.05f / static_cast<float>(1 - std::pow(beta1, t));
    const float root_correction = 1 / std::sqrt(static_cast<float>(1 - std::pow(beta2, t)));
    for (size_t i = 0; i < kCount; ++i) {
      volatile float a, b, change;
      volatile float g = gradient[i] * (1.0f / 128);
      if (GetParam() == OptimizerKind::kSgd) {
        change = 0.05f * g;
      } else if (GetParam() == OptimizerKind::kMomentum) {
        a = 0.9f * m[i];
        m[i] = a + g;
        change = 0.05f * m[i];
      } else if (GetParam() == OptimizerKind::kAdagrad) {
        a = g * g;
        m[i] = m[i] + a;
        a = std::sqrt(m[i]);
        a = a + 1e-10f;
        b = 0.05f * g;
        change = b / a;
      } else {
        a = 0.9f * m[i];
        b = (1 - 0.9f) * g;
        m[i] = a + b;
        a = 0.999f * v[i];
        b = g * g;
        b = (1 - 0.999f) * b;
        v[i] = a + b;
        a = std::sqrt(v[i]) * root_correction;
        a = a + 1e-8f;
        b = rate * m[i];
        change = b / a;
      }
      volatile float kept = w[i] * (GetParam() == OptimizerKind::kAdamW ? float(1 - 0.05 * 0.01) : 1.0f);
      w[i] = kept - change;
    }
  }
  Floats state = Train(kCount, {}, *MakeOneDnnOps(1));
  state.resize(kCount);
  EXPECT_EQ(state, w);
}

TEST_P(OptimizerTest, DoesNotChangeElementsOutsideTheSlice) {
  const Optimizer optimizer = Make(10);
  Floats weights(4, 1), gradient(4, 128);
  const auto ops = MakeOneDnnOps(1);
  optimizer.Apply(3, ViewOf(weights), ViewOf(gradient), 128, 0.5, 1, *ops, *stream_);
  for (const float weight : weights) EXPECT_LT(weight, 1);
  for (const Span slot : optimizer.slots()) {
    for (size_t i = 0; i < 10; ++i) EXPECT_EQ(slot.floats()[i] != 0, i >= 3 && i < 7) << i;
  }
}

TEST_P(OptimizerTest, HasItsSlots) {
  const std::map<OptimizerKind, size_t> slots = {{OptimizerKind::kSgd, 0},
                                                 {OptimizerKind::kMomentum, 1},
                                                 {OptimizerKind::kAdagrad, 1},
                                                 {OptimizerKind::kAdam, 2},
                                                 {OptimizerKind::kAdamW, 2}};
  EXPECT_EQ(Make(7).slots().size(), slots.at(GetParam()));
}

// Ranges without decay have Adam's bits, however the parameters are cut.
TEST(AdamWTest, DecaySparesItsExceptions) {
  const auto device = MakeCpuDevice();
  const auto stream = device->NewStream(StreamKind::kCompute, "test");
  const auto ops = MakeOneDnnOps(1);
  const std::vector<ParameterRange> exceptions = {{2, 3}, {5, 1}, {17, 3}};
  const auto train = [&](const OptimizerConfig& config, const std::vector<size_t>& cuts) {
    const Optimizer optimizer = Optimizer::Create(config, *device, 20).value();
    Floats weights = Random(20, 1), gradient = Random(20, 2);
    for (size_t i = 0; i + 1 < cuts.size(); ++i)
      optimizer.Apply(cuts[i], ViewOf(weights).Slice(cuts[i], cuts[i + 1] - cuts[i]),
                      ConstSpan(ViewOf(gradient)).Slice(cuts[i], cuts[i + 1] - cuts[i]), 1, 0.1, 1, *ops,
                      *stream);
    return weights;
  };
  OptimizerConfig config = {.kind = OptimizerKind::kAdamW, .weight_decay = 0.5};
  const Floats with_decay = train(config, {0, 20}), without = train({.kind = OptimizerKind::kAdam}, {0, 20});
  config.no_decay = exceptions;
  for (const std::vector<size_t>& cuts : {std::vector<size_t>{0, 20}, {0, 1, 4, 18, 20}, {0, 5, 6, 17, 20}}) {
    const Floats weights = train(config, cuts);
    for (size_t i = 0; i < 20; ++i) {
      const bool spared = (i >= 2 && i < 6) || i >= 17;
      EXPECT_EQ(weights[i], spared ? without[i] : with_decay[i]) << i;
      EXPECT_NE(without[i], with_decay[i]);
    }
  }
}

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
