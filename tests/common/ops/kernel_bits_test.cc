// Sums of rows, products of vectors and losses have the bits of plain loops in the documented order, whatever
// instruction set the kernels are compiled for. CMakeLists.txt builds this test for several.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "common/kernels/elementwise_math.h"
#include "common/ops/cpu_layers.h"
#include "tests/common/ops/ops_testing.h"

namespace psring {
namespace {

using elementwise::BFloat16;
using elementwise::Load;
using elementwise::Store;

constexpr int kWidths[] = {1, 15, 16, 17, 33, 64, 65, 128, 200};  // all sizes of blocks, and what remains

// Of magnitudes so different that the order of a sum matters, with zeros of both signs.
template <typename T>
std::vector<T> Values(size_t count, int seed) {
  const Floats uniform = Random(count, seed);
  std::vector<T> values;
  for (size_t i = 0; i < count; ++i) {
    const float value = i % 7 == 3 ? 0.0f : i % 7 == 5 ? -0.0f : std::ldexp(uniform[i], int(i % 11) - 5);
    values.push_back(Store<T>(value));
  }
  return values;
}

template <typename T>
Span View(std::vector<T>& values) {
  return {values.data(), values.size(), sizeof(T) == sizeof(float) ? DType::kFloat32 : DType::kBFloat16};
}

template <typename T>
void ExpectSameBits(const std::vector<T>& actual, const std::vector<T>& expected, const char* what) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i)
    ASSERT_EQ(std::memcmp(&actual[i], &expected[i], sizeof(T)), 0)
        << what << ", element " << i << ": " << Load(actual[i]) << " instead of " << Load(expected[i]);
}

template <typename T>
class KernelBits : public testing::Test {
 protected:
  ~KernelBits() override { EXPECT_EQ(stream_->Synchronize(), absl::OkStatus()); }

  const DType type_ = sizeof(T) == sizeof(float) ? DType::kFloat32 : DType::kBFloat16;
  const std::unique_ptr<Stream> stream_ = MakeCpuDevice()->NewStream(StreamKind::kCompute, "test");
};
using Types = testing::Types<float, BFloat16>;
TYPED_TEST_SUITE(KernelBits, Types);

TYPED_TEST(KernelBits, OfBagsAreThoseOfSumsInTheOrderOfLookups) {
  using T = TypeParam;
  for (const int width : kWidths) {
    SCOPED_TRACE(testing::Message() << "width " << width);
    const BagShape s{5, /*lookups=*/17, /*first=*/2, /*bags=*/2, /*per_bag=*/7, /*rows=*/50, width, 4, 1};
    const size_t columns = size_t(width);
    std::vector<int32_t> at(size_t(s.batch) * s.lookups);
    for (size_t i = 0; i < at.size(); ++i) at[i] = static_cast<int32_t>(i * i % 50);
    std::vector<float> values = Values<float>(50 * columns, 1);
    values[4 * columns + columns / 2] = NAN;
    std::vector<T> y = Values<T>(size_t(s.batch) * s.all_bags * columns, 2), expected = y;
    for (int sample = 0; sample < s.batch; ++sample) {
      for (int bag = 0; bag < s.bags; ++bag) {
        const int first = sample * s.lookups + s.first + bag * s.per_bag;
        for (size_t c = 0; c < columns; ++c) {
          float sum = 0;
          for (int k = first; k < first + s.per_bag; ++k) sum += values[size_t(at[k]) * columns + c];
          expected[size_t(sample * s.all_bags + s.first_bag + bag) * columns + c] = Store<T>(sum);
        }
      }
    }
    MakeCpuBags(this->type_)->Forward(s, at.data(), ViewOf(values), View(y), *this->stream_);
    ExpectSameBits(y, expected, "y");
  }
}

TYPED_TEST(KernelBits, OfGradientsOfRowsAreThoseOfSumsInTheOrderOfBags) {
  using T = TypeParam;
  const std::vector<int32_t> slots = {0, 2, 3}, begin = {0, 1, 6, 8}, bags = {4, 0, 0, 3, 1, 4, 1, 2};
  for (const int width : kWidths) {
    SCOPED_TRACE(testing::Message() << "width " << width);
    const size_t columns = size_t(width);
    std::vector<T> dy = Values<T>(5 * columns, 3);
    std::vector<float> gradient = Values<float>(4 * columns, 4), expected = gradient;
    for (size_t i = 0; i < slots.size(); ++i) {
      for (size_t c = 0; c < columns; ++c) {
        float sum = 0;
        for (int k = begin[i]; k < begin[i + 1]; ++k) sum += Load(dy[size_t(bags[size_t(k)]) * columns + c]);
        expected[size_t(slots[i]) * columns + c] += sum;
      }
    }
    MakeCpuBags(this->type_)
        ->Backward(width, {slots, begin, bags}, View(dy), ViewOf(gradient), *this->stream_);
    ExpectSameBits(gradient, expected, "gradient");
  }
}

// In 16 lanes and then lane by lane.
template <typename T>
float Dot(size_t width, const T* a, const T* b) {
  float lanes[16] = {}, sum = 0;
  const size_t whole = width / 16 * 16;
  for (size_t c = 0; c < whole; ++c) lanes[c % 16] += Load(a[c]) * Load(b[c]);
  for (const float lane : lanes) sum += lane;
  for (size_t c = whole; c < width; ++c) sum += Load(a[c]) * Load(b[c]);
  return sum;
}

// Products of pairs of the vectors of one sample, 0: a.
template <typename T>
struct Sample {
  const DotShape& s;
  const T *a, *b;

  const T* operator[](int i) const { return i == 0 ? a : b + size_t(i - 1) * s.width; }
  // Of pair (j, i), i < j: where its product is, or -1.
  int Output(int j, int i) const {
    if (s.kind == Dots::kAllPairs) return s.width + j * (j - 1) / 2 + i;
    return i == 0 ? 2 * j - 1 : -1;
  }
  void Forward(T* y) const {
    std::fill_n(y, s.outputs(), Store<T>(0));
    if (s.kind == Dots::kAllPairs) std::copy_n(a, s.width, y);
    for (int j = 1; j <= s.others; ++j) {
      for (int i = 0; i < j; ++i) {
        if (const int at = Output(j, i); at >= 0) y[at] = Store<T>(Dot<T>(s.width, (*this)[i], (*this)[j]));
      }
    }
  }
  // Of vector `of`: the others in their order.
  void Gradient(int of, const T* dy, T* to) const {
    for (int c = 0; c < s.width; ++c) {
      float sum = of == 0 && s.kind == Dots::kAllPairs ? Load(dy[c]) : 0.0f;
      for (int other = 0; other <= s.others; ++other) {
        const int at = other == of ? -1 : Output(std::max(of, other), std::min(of, other));
        if (at >= 0) sum += Load(dy[at]) * Load((*this)[other][c]);
      }
      to[c] = Store<T>(sum);
    }
  }
};

TYPED_TEST(KernelBits, OfProductsAreThoseOfLanesAndOfSumsInTheOrderOfVectors) {
  using T = TypeParam;
  for (const Dots kind : {Dots::kAllPairs, Dots::kFirstWithOthers}) {
    for (const int width : kWidths) {
      for (const int others : {1, 6, 8}) {
        SCOPED_TRACE(testing::Message() << "kind " << int(kind) << ", " << others << " x " << width);
        const DotShape s{.kind = kind, .batch = 3, .others = others, .width = width};
        const size_t of_a = size_t(width), of_b = of_a * size_t(others);
        std::vector<T> a = Values<T>(3 * of_a, 1), b = Values<T>(3 * of_b, 2),
                       dy = Values<T>(3 * s.outputs(), 3);
        std::vector<T> y = Values<T>(dy.size(), 4), da = Values<T>(a.size(), 5), db = Values<T>(b.size(), 6);
        std::vector<T> expected_y = y, expected_da = da, expected_db = db;
        for (size_t i = 0; i < 3; ++i) {
          const Sample<T> sample{s, a.data() + i * of_a, b.data() + i * of_b};
          const T* const d = dy.data() + i * s.outputs();
          sample.Forward(expected_y.data() + i * s.outputs());
          sample.Gradient(0, d, expected_da.data() + i * of_a);
          for (int other = 1; other <= others; ++other)
            sample.Gradient(other, d, expected_db.data() + i * of_b + size_t(other - 1) * of_a);
        }
        const auto ops = MakeCpuDots(this->type_);
        ops->Forward(s, View(a), View(b), View(y), *this->stream_);
        ops->Backward(s, View(a), View(b), View(dy), View(da), View(db), *this->stream_);
        ExpectSameBits(y, expected_y, "y");
        ExpectSameBits(da, expected_da, "da");
        ExpectSameBits(db, expected_db, "db");
      }
    }
  }
}

// One row: its loss, and the gradient in the place of the logits.
template <typename T>
double Loss(int classes, T* z, int label) {
  float highest = Load(z[0]), lanes[16] = {}, sum = 0;
  for (int c = 0; c < classes; ++c) highest = std::max(highest, Load(z[c]));
  const auto exponential = [&](int c) { return elementwise::Exp(Load(z[c]) - highest); };
  const int whole = classes / 16 * 16;
  for (int c = 0; c < whole; ++c) lanes[c % 16] += exponential(c);
  for (const float lane : lanes) sum += lane;
  for (int c = whole; c < classes; ++c) sum += exponential(c);
  const double loss = std::log(double{sum}) - (double{Load(z[label])} - highest);
  const float inverse = 1.0f / sum;
  for (int c = 0; c < classes; ++c)
    z[c] = Store<T>(c == label ? exponential(c) * inverse - 1.0f : exponential(c) * inverse);
  return loss;
}

TYPED_TEST(KernelBits, OfLossesAreThoseOfSumsInLanes) {
  using T = TypeParam;
  constexpr size_t kRows = 70;
  for (const int classes : {1, 2, 10, 16, 31, 80, 100}) {
    SCOPED_TRACE(testing::Message() << classes << " classes");
    const size_t width = size_t(classes);
    std::vector<T> logits = Values<T>(kRows * width, 7), expected = logits, gradient(logits.size());
    std::vector<int32_t> labels;
    double expected_loss = 0;
    int64_t expected_correct = 0;
    for (size_t row = 0; row < kRows; ++row) {
      T* const of_row = expected.data() + row * width;
      labels.push_back(row % 9 == 4 ? kIgnoredLabel : static_cast<int32_t>(row * row % width));
      if (row % 9 == 4) {
        std::fill_n(of_row, width, Store<T>(0));
      } else {
        const T* const best =
            std::max_element(of_row, of_row + width, [](T a, T b) { return Load(a) < Load(b); });
        expected_correct += best - of_row == labels.back();
        expected_loss += Loss(classes, of_row, labels.back());
      }
    }
    for (std::vector<T>* const to : {&gradient, &logits}) {  // the last time in place
      double loss = 0;
      int64_t correct = 0;
      MakeCpuLoss(this->type_)
          ->SoftmaxCrossEntropy(kRows, classes, View(logits), labels.data(), View(*to), &loss, &correct,
                                *this->stream_);
      EXPECT_EQ(loss, expected_loss);
      EXPECT_EQ(correct, expected_correct);
      ExpectSameBits(*to, expected, "gradient");
    }
  }
}

}  // namespace
}  // namespace psring
