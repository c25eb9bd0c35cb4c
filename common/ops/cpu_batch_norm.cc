// Batch normalization on CPUs: one pass over memory for each function, with adjacent channels in vectors.
// Sums are in double: gradients of offsets can cancel almost entirely, and float32 would lose their digits.
#include <algorithm>
#include <cmath>
#include <type_traits>
#include <vector>

#include "common/ops/cpu_layers.h"

namespace psring {
namespace {

using elementwise::Load;
using elementwise::Store;

constexpr size_t kTogether = 4;  // rows that are added before a sum is written to memory

// Calls add(n, row) for rows in order, where n rows begin at `row`: kTogether, then 1 for each of the last.
template <typename Add>
PSRING_INLINE void ForRowsTogether(size_t rows, const Add& add) {
  size_t row = 0;
  for (; row + kTogether <= rows; row += kTogether) add(std::integral_constant<size_t, kTogether>(), row);
  for (; row < rows; ++row) add(std::integral_constant<size_t, 1>(), row);
}

// sums: of the distances from the first row, and of their squares.
template <typename T>
PSRING_INLINE void SumDistances(size_t rows, size_t channels, const T* __restrict x,
                                double* __restrict sums) {
  double* __restrict const squares = sums + channels;
  ForRowsTogether(rows, [&](auto together, size_t row) {
    const T* __restrict const from = x + row * channels;
    for (size_t c = 0; c < channels; ++c) {
      const float first = Load(x[c]);
      double sum = 0, square = 0;
      for (size_t r = 0; r < together; ++r) {
        const float distance = Load(from[r * channels + c]) - first;
        sum += double{distance};
        square += double{distance * distance};
      }
      sums[c] += sum;
      squares[c] += square;
    }
  });
}

template <typename T>
PSRING_INLINE void ScaleAndShift(size_t rows, size_t channels, const T* __restrict x,
                                 const float* __restrict factor, const float* __restrict summand,
                                 const T* __restrict residual, bool relu, T* __restrict y) {
  const float lowest = relu ? 0.0f : -INFINITY;
  for (size_t row = 0; row < rows; ++row, x += channels, y += channels) {
    for (size_t c = 0; c < channels; ++c) {
      float value = Load(x[c]) * factor[c] + summand[c];
      if (residual != nullptr) value += Load(residual[c]);
      y[c] = Store<T>(value < lowest ? lowest : value);
    }
    if (residual != nullptr) residual += channels;
  }
}

// sums: of dy, and of dy times the distance of x from the mean. y may be null.
template <typename T>
PSRING_INLINE void MaskAndSumGradients(size_t rows, size_t channels, const T* __restrict x,
                                       const float* __restrict mean, const T* __restrict y, T* __restrict dy,
                                       double* __restrict sums) {
  double* __restrict const products = sums + channels;
  ForRowsTogether(rows, [&](auto together, size_t row) {
    const size_t begin = row * channels;
    if (y != nullptr) {
      for (size_t i = begin; i < begin + together * channels; ++i) dy[i] = Load(y[i]) > 0 ? dy[i] : T{};
    }
    for (size_t c = 0; c < channels; ++c) {
      double sum = 0, product = 0;
      for (size_t r = 0; r < together; ++r) {
        const float gradient = Load(dy[begin + r * channels + c]);
        sum += double{gradient};
        product += double{gradient * (Load(x[begin + r * channels + c]) - mean[c])};
      }
      sums[c] += sum;
      products[c] += product;
    }
  });
}

// dx = dy a + x b + c for each channel.
template <typename T>
PSRING_INLINE void Combine(size_t rows, size_t channels, const T* __restrict x, const T* __restrict dy,
                           const float* __restrict a, const float* __restrict b, const float* __restrict c,
                           T* __restrict dx) {
  for (size_t row = 0; row < rows; ++row, x += channels, dy += channels, dx += channels) {
    for (size_t i = 0; i < channels; ++i) dx[i] = Store<T>(Load(dy[i]) * a[i] + Load(x[i]) * b[i] + c[i]);
  }
}

PSRING_MULTIVERSION void BatchStatistics(const BatchNormShape& s, ConstSpan x, double* sums) {
  WithActivations(
      x.type, [&]<typename T>(T) PSRING_INLINED { SumDistances(s.rows, s.channels, Elements<T>(x), sums); });
}

PSRING_MULTIVERSION void BatchNormalize(const BatchNormShape& s, ConstSpan x, const float* factor,
                                        const float* summand, ConstSpan residual, Span y) {
  WithActivations(x.type, [&]<typename T>(T) PSRING_INLINED {
    ScaleAndShift(s.rows, s.channels, Elements<T>(x), factor, summand, Elements<T>(residual), s.relu,
                  Elements<T>(y));
  });
}

PSRING_MULTIVERSION void BatchGradientSums(const BatchNormShape& s, ConstSpan x, const float* mean,
                                           ConstSpan y, Span dy, double* sums) {
  WithActivations(x.type, [&]<typename T>(T) PSRING_INLINED {
    MaskAndSumGradients(s.rows, s.channels, Elements<T>(x), mean, Elements<T>(y), Elements<T>(dy), sums);
  });
}

PSRING_MULTIVERSION void BatchInputGradient(const BatchNormShape& s, ConstSpan x, ConstSpan dy,
                                            const float* a, const float* b, const float* c, Span dx) {
  WithActivations(x.type, [&]<typename T>(T) PSRING_INLINED {
    Combine(s.rows, s.channels, Elements<T>(x), Elements<T>(dy), a, b, c, Elements<T>(dx));
  });
}

double InverseDeviation(float variance, float epsilon) { return 1 / std::sqrt(double{variance} + epsilon); }

void CheckBatchNorm(const BatchNormShape& shape, ConstSpan x, ConstSpan y, ConstSpan weight,
                    ConstSpan statistics) {
  const size_t channels = shape.channels;
  PSRING_CHECK(x.count == shape.rows * channels && (y.data == nullptr || y.count == x.count));
  PSRING_CHECK(weight.count == channels && statistics.count == 2 * channels);
}

class CpuBatchNorm : public CpuFamily<BatchNormOps> {
 public:
  using CpuFamily::CpuFamily;

  void Statistics(const BatchNormShape& s, ConstSpan x, Span statistics, Stream& stream) override {
    PSRING_CHECK(s.rows > 0);
    CheckBatchNorm(s, x, {}, statistics.Slice(0, s.channels), statistics);
    CheckActivations({x});
    RunOnCpu(stream, [=, this] {
      const size_t channels = s.channels;
      sums_.assign(2 * channels, 0);
      BatchStatistics(s, x, sums_.data());
      for (size_t c = 0; c < channels; ++c) {
        const float first = WithActivations(type(), [&]<typename T>(T) { return Load(Elements<T>(x)[c]); });
        const double distance = sums_[c] / s.rows;
        statistics.floats()[c] = static_cast<float>(first + distance);
        statistics.floats()[channels + c] =
            static_cast<float>(std::max(0.0, sums_[channels + c] / s.rows - distance * distance));
      }
    });
  }

  void UpdateRunning(const BatchNormShape& s, float momentum, ConstSpan statistics, Span running,
                     Stream& stream) override {
    PSRING_CHECK(statistics.count == size_t(2) * s.channels && running.count == statistics.count);
    RunOnCpu(stream, [=] {
      const float unbiased = s.rows > 1 ? float(s.rows) / float(s.rows - 1) : 1.0f;
      for (int i = 0; i < 2 * s.channels; ++i) {
        const float value = statistics.floats()[i] * (i < s.channels ? 1.0f : unbiased);
        running.floats()[i] += momentum * (value - running.floats()[i]);
      }
    });
  }

  void Forward(const BatchNormShape& s, ConstSpan x, ConstSpan weight, ConstSpan bias, ConstSpan residual,
               ConstSpan statistics, Span y, Stream& stream) override {
    CheckBatchNorm(s, x, y, weight, statistics);
    PSRING_CHECK(bias.count == weight.count && (residual.data == nullptr || residual.count == x.count));
    CheckActivations({x, residual, y});
    RunOnCpu(stream, [=, this] {
      const size_t channels = s.channels;
      factors_.resize(2 * channels);
      for (size_t c = 0; c < channels; ++c) {
        const double factor =
            InverseDeviation(statistics.floats()[channels + c], s.epsilon) * weight.floats()[c];
        factors_[c] = static_cast<float>(factor);
        factors_[channels + c] = static_cast<float>(bias.floats()[c] - statistics.floats()[c] * factor);
      }
      BatchNormalize(s, x, factors_.data(), factors_.data() + channels, residual, y);
    });
  }

  void BackwardSums(const BatchNormShape& s, ConstSpan x, ConstSpan statistics, ConstSpan y, Span dy,
                    Span dweight, Span dbias, Stream& stream) override {
    CheckBatchNorm(s, x, dy, dweight, statistics);
    PSRING_CHECK(dbias.count == dweight.count && (!s.relu || y.count == x.count));
    CheckActivations({x, y, dy});
    RunOnCpu(stream, [=, this] {
      const size_t channels = s.channels;
      sums_.assign(2 * channels, 0);
      BatchGradientSums(s, x, statistics.floats(), s.relu ? y : ConstSpan{}, dy, sums_.data());
      for (size_t c = 0; c < channels; ++c) {
        dbias.floats()[c] = static_cast<float>(sums_[c]);
        dweight.floats()[c] = static_cast<float>(
            sums_[channels + c] * InverseDeviation(statistics.floats()[channels + c], s.epsilon));
      }
    });
  }

  // dx = weight / deviation (dy - mean(dy) - n mean(dy n)), with n = (x - mean) / deviation.
  void BackwardInput(const BatchNormShape& s, ConstSpan x, ConstSpan weight, ConstSpan statistics,
                     ConstSpan dy, ConstSpan dweight, ConstSpan dbias, Span dx, Stream& stream) override {
    CheckBatchNorm(s, x, dy, weight, statistics);
    PSRING_CHECK(dx.count == x.count && dweight.count == weight.count && dbias.count == weight.count);
    CheckActivations({x, dy, dx});
    RunOnCpu(stream, [=, this] {
      const size_t channels = s.channels;
      factors_.resize(3 * channels);
      for (size_t c = 0; c < channels; ++c) {
        const double inverse = InverseDeviation(statistics.floats()[channels + c], s.epsilon);
        const double a = weight.floats()[c] * inverse, b = -a * inverse * dweight.floats()[c] / s.rows;
        factors_[c] = static_cast<float>(a);
        factors_[channels + c] = static_cast<float>(b);
        factors_[2 * channels + c] =
            static_cast<float>(-a * dbias.floats()[c] / s.rows - b * statistics.floats()[c]);
      }
      BatchInputGradient(s, x, dy, factors_.data(), factors_.data() + channels,
                         factors_.data() + 2 * channels, dx);
    });
  }

 private:
  std::vector<double> sums_;    // two per channel
  std::vector<float> factors_;  // one or two and a summand per channel
};

}  // namespace

std::unique_ptr<BatchNormOps> MakeCpuBatchNorm(DType activations) {
  return std::make_unique<CpuBatchNorm>(activations);
}

}  // namespace psring
