#include <algorithm>
#include <cmath>

#include "common/kernels/elementwise_math.h"
#include "common/kernels/lanes.h"
#include "common/ops/cpu_layers.h"

namespace psring {
namespace {

using cpu::kLanes;
using cpu::LoadVector;
using cpu::SumOfLanes;
using cpu::Vector;
using elementwise::Exp;
using elementwise::Load;
using elementwise::Store;

// One row; its loss.
template <typename T>
PSRING_INLINE double RowLoss(size_t classes, const T* z, size_t label, T* d, bool& right) {
  const size_t whole = classes / kLanes * kLanes;
  float highest = Load(z[0]);
  if (whole > 0) {
    Vector best = LoadVector(z);
    for (size_t c = kLanes; c < whole; c += kLanes) {
      const Vector other = LoadVector(z + c);
      best = other > best ? other : best;
    }
    for (size_t lane = 0; lane < kLanes; ++lane) highest = best[lane] > highest ? best[lane] : highest;
  }
  for (size_t c = whole; c < classes; ++c) highest = Load(z[c]) > highest ? Load(z[c]) : highest;
  right = Load(z[label]) == highest;
  for (size_t c = 0; right && c < label; ++c) right = Load(z[c]) != highest;
  Vector sums = {};
  for (size_t c = 0; c < whole; c += kLanes) {
    float exponentials[kLanes];
    for (size_t lane = 0; lane < kLanes; ++lane) exponentials[lane] = Exp(Load(z[c + lane]) - highest);
    sums += LoadVector(exponentials);
  }
  float sum = SumOfLanes(sums);
  float last[kLanes] = {};  // the exponentials after the whole vectors
  for (size_t c = whole; c < classes; ++c) {
    last[c - whole] = Exp(Load(z[c]) - highest);
    sum += last[c - whole];
  }
  const double loss = std::log(double{sum}) - (double{Load(z[label])} - highest);
  if (d == nullptr) return loss;
  const float inverse = 1.0f / sum;
  const float label_exponential = label < whole ? Exp(Load(z[label]) - highest) : last[label - whole];
#pragma GCC ivdep
  for (size_t c = 0; c < whole; ++c) d[c] = Store<T>(Exp(Load(z[c]) - highest) * inverse);
  for (size_t c = whole; c < classes; ++c) d[c] = Store<T>(last[c - whole] * inverse);
  d[label] = Store<T>(label_exponential * inverse - 1.0f);
  return loss;
}

// As RowLoss, of rows of two classes: several rows together, which the compiler makes vectors of.
template <typename T>
PSRING_INLINE void LossesOfPairs(size_t rows, const T* z, const int32_t* labels, T* d, double& loss,
                                 int64_t& hits) {
  constexpr size_t kRows = 64;
  for (size_t first = 0; first < rows; first += kRows) {
    const size_t count = std::min(kRows, rows - first);
    float sums[kRows], highest[kRows], of_label[kRows], gradients[2 * kRows];
    for (size_t i = 0; i < count; ++i) {
      const float a = Load(z[2 * (first + i)]), b = Load(z[2 * (first + i) + 1]), most = b > a ? b : a;
      const float of_a = Exp(a - most), of_b = Exp(b - most), sum = of_a + of_b, inverse = 1.0f / sum;
      const int32_t label = labels[first + i];
      sums[i] = sum;
      highest[i] = most;
      of_label[i] = label == 0 ? a : b;
      const bool counts = label != kIgnoredLabel;
      gradients[2 * i] = counts ? of_a * inverse - (label == 0 ? 1.0f : 0.0f) : 0.0f;
      gradients[2 * i + 1] = counts ? of_b * inverse - (label == 1 ? 1.0f : 0.0f) : 0.0f;
    }
    for (size_t i = 0; i < count; ++i) {
      const int32_t label = labels[first + i];
      if (label == kIgnoredLabel) continue;
      loss += std::log(double{sums[i]}) - (double{of_label[i]} - highest[i]);
      hits += of_label[i] == highest[i] && (label == 0 || Load(z[2 * (first + i)]) != highest[i]);
    }
    if (d == nullptr) continue;
    for (size_t i = 0; i < 2 * count; ++i) d[2 * first + i] = Store<T>(gradients[i]);
  }
}

template <typename T>
PSRING_INLINE void Losses(int batch, size_t classes, const T* z, const int32_t* labels, T* d,
                          double* loss_sum, int64_t* correct) {
  double loss = 0;
  int64_t hits = 0;
  if (classes == 2) LossesOfPairs(size_t(batch), z, labels, d, loss, hits);
  for (int row = 0; row < batch && classes != 2; ++row) {
    const size_t at = size_t(row) * classes;
    if (labels[row] == kIgnoredLabel) {
      if (d != nullptr) std::fill_n(d + at, classes, T{});
      continue;
    }
    bool right = false;
    loss += RowLoss(classes, z + at, labels[row], d == nullptr ? nullptr : d + at, right);
    hits += right;
  }
  *loss_sum += loss;
  *correct += hits;
}

PSRING_MULTIVERSION void AllLosses(int batch, int classes, ConstSpan logits, const int32_t* labels,
                                   Span dlogits, double* loss_sum, int64_t* correct) {
  WithActivations(logits.type, [&]<typename T>(T) PSRING_INLINED {
    Losses(batch, classes, Elements<T>(logits), labels, Elements<T>(dlogits), loss_sum, correct);
  });
}

class CpuLoss : public CpuFamily<LossOps> {
 public:
  using CpuFamily::CpuFamily;

  void SoftmaxCrossEntropy(int batch, int classes, ConstSpan logits, const int32_t* labels, Span dlogits,
                           double* loss_sum, int64_t* correct, Stream& stream) override {
    CheckLoss(batch, classes, logits, dlogits);
    CheckActivations({logits, dlogits});
    stream.Run([=] {
      for (int row = 0; row < batch; ++row) {
        const int32_t label = labels[row];
        if (label != kIgnoredLabel && (label < 0 || label >= classes)) {
          return LabelOutside(classes, row, label);
        }
      }
      AllLosses(batch, classes, logits, labels, dlogits, loss_sum, correct);
      return absl::OkStatus();
    });
  }
};

}  // namespace

std::unique_ptr<LossOps> MakeCpuLoss(DType activations) { return std::make_unique<CpuLoss>(activations); }

}  // namespace psring
