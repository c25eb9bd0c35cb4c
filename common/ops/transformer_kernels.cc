#include "common/ops/transformer_kernels.h"

#include <algorithm>
#include <cmath>

#include "common/ops/ops_common.h"
#include "common/reduce/elementwise_math.h"
#include "common/reduce/lanes.h"
#include "common/reduce/sixteen_bits.h"
#include "common/reduce/threefry.h"

// PSRING_MULTIVERSION comes from CMake; see cpu_kernels.cc.

namespace psring::cpu {
namespace {

using elementwise::BFloat16;
using elementwise::BitsAs;
using elementwise::Exp;
using elementwise::Load;
using elementwise::Store;

template <typename T>
PSRING_INLINE const T* Values(ConstSpan span) {
  return static_cast<const T*>(span.data);
}
template <typename T>
PSRING_INLINE T* Values(Span span) {
  return static_cast<T*>(span.data);
}

template <typename T>
PSRING_INLINE void GeluOf(size_t count, const T* __restrict x, T* __restrict y) {
  for (size_t i = 0; i < count; ++i) y[i] = Store<T>(elementwise::Gelu(Load(x[i])));
}

template <typename T>
PSRING_INLINE void GeluGradient(size_t rows, size_t columns, const T* __restrict x, T* __restrict dy,
                                float* __restrict sums) {
  for (size_t row = 0; row < rows; ++row, x += columns, dy += columns) {
    for (size_t c = 0; c < columns; ++c) {
      const T value = Store<T>(Load(dy[c]) * elementwise::GeluSlope(Load(x[c])));
      dy[c] = value;
      sums[c] += Load(value);
    }
  }
}

template <typename T>
PSRING_INLINE void Normalize(const LayerNormShape& s, const T* __restrict x, const float* __restrict weight,
                             const float* __restrict bias, T* __restrict y, float* __restrict statistics) {
  const size_t width = s.width, rows = s.rows, whole = width / kLanes * kLanes;
  for (size_t row = 0; row < rows; ++row, x += width, y += width) {
    Vector sums = {};
    for (size_t c = 0; c < whole; c += kLanes) sums += LoadVector(x + c);
    float sum = SumOfLanes(sums);
    for (size_t c = whole; c < width; ++c) sum += Load(x[c]);
    const float mean = sum / static_cast<float>(width);
    Vector squares = {};
    for (size_t c = 0; c < whole; c += kLanes) {
      const Vector distance = LoadVector(x + c) - mean;
      squares += distance * distance;
    }
    float square = SumOfLanes(squares);
    for (size_t c = whole; c < width; ++c) square += (Load(x[c]) - mean) * (Load(x[c]) - mean);
    const float inverse = 1.0f / std::sqrt(square / static_cast<float>(width) + s.epsilon);
    for (size_t c = 0; c < width; ++c) {
      y[c] = Store<T>((Load(x[c]) - mean) * inverse * weight[c] + bias[c]);
    }
    statistics[row] = mean;
    statistics[rows + row] = inverse;
  }
}

// dx = (g - mean(g) - n mean(g n)) / deviation with g = dy weight and n the normalized x.
template <typename T>
PSRING_INLINE void NormalizeGradient(const LayerNormShape& s, const T* __restrict x,
                                     const float* __restrict weight, const float* __restrict statistics,
                                     const T* __restrict dy, T* __restrict dx, bool add,
                                     float* __restrict dweight, float* __restrict dbias) {
  const size_t width = s.width, rows = s.rows, whole = width / kLanes * kLanes;
  for (size_t row = 0; row < rows; ++row, x += width, dy += width, dx += width) {
    const float mean = statistics[row], inverse = statistics[rows + row];
    Vector sums = {}, products = {};
    for (size_t c = 0; c < whole; c += kLanes) {
      const Vector d = LoadVector(dy + c), n = (LoadVector(x + c) - mean) * inverse;
      const Vector g = d * LoadVector(weight + c);
      sums += g;
      products += g * n;
      StoreVector(LoadVector(dweight + c) + d * n, dweight + c);
      StoreVector(LoadVector(dbias + c) + d, dbias + c);
    }
    float sum = SumOfLanes(sums), product = SumOfLanes(products);
    for (size_t c = whole; c < width; ++c) {
      const float d = Load(dy[c]), n = (Load(x[c]) - mean) * inverse, g = d * weight[c];
      sum += g;
      product += g * n;
      dweight[c] += d * n;
      dbias[c] += d;
    }
    const float g_mean = sum / static_cast<float>(width), gn_mean = product / static_cast<float>(width);
    for (size_t c = 0; c < width; ++c) {
      const float n = (Load(x[c]) - mean) * inverse, g = Load(dy[c]) * weight[c];
      const float before = add ? Load(dx[c]) : 0.0f;
      dx[c] = Store<T>(before + (g - g_mean - n * gn_mean) * inverse);
    }
  }
}

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

template <typename T>
PSRING_INLINE void LookUp(const EmbeddingShape& s, const int32_t* indices, const float* table,
                          const float* positions, T* __restrict y) {
  const size_t width = s.width;
  for (int i = 0; i < s.count; ++i, y += width) {
    const float* __restrict row = table + size_t(indices[i]) * width;
    if (s.context == 0) {
      for (size_t c = 0; c < width; ++c) y[c] = Store<T>(row[c]);
      continue;
    }
    const float* __restrict position = positions + size_t(i % s.context) * width;
    for (size_t c = 0; c < width; ++c) y[c] = Store<T>(row[c] + position[c]);
  }
}

template <typename T>
PSRING_INLINE void AddRows(const EmbeddingShape& s, const int32_t* indices, const T* __restrict dy,
                           float* __restrict dtable, float* __restrict dpositions) {
  const size_t width = s.width;
  for (int i = 0; i < s.count; ++i, dy += width) {
    float* __restrict row = dtable + size_t(indices[i]) * width;
    if (dpositions == nullptr || s.context == 0) {
      for (size_t c = 0; c < width; ++c) row[c] += Load(dy[c]);
      continue;
    }
    float* __restrict position = dpositions + size_t(i % s.context) * width;
    for (size_t c = 0; c < width; ++c) {
      row[c] += Load(dy[c]);
      position[c] += Load(dy[c]);
    }
  }
}

// y[i] = x[i] scale + residual[i], or only the residual; without a branch.
template <bool kAdds, typename T>
PSRING_INLINE void Put(bool keeps, float scale, const T* x, const T* residual, T* y, size_t i) {
  float value = BitsAs<float>(BitsAs<uint32_t>(Load(x[i]) * scale) & (0u - static_cast<uint32_t>(keeps)));
  if constexpr (kAdds) value += Load(residual[i]);
  y[i] = Store<T>(value);
}

// One sample.
template <bool kAdds, typename T>
PSRING_INLINE void Drop(size_t count, const DropoutMask& mask, const T* __restrict x,
                        const T* __restrict residual, T* __restrict y) {
  const ThreefryKey key = mask.key;
  const uint32_t threshold = mask.threshold;
  const float scale = mask.scale;
  constexpr size_t kLanes = DropoutMask::kLanes, kGroup = 4 * kLanes;
  const size_t whole = count / kGroup * kGroup;
  for (size_t first = 0; first < whole; first += kGroup) {
    const uint32_t counter = static_cast<uint32_t>(first / 4);
#pragma GCC ivdep
    for (uint32_t lane = 0; lane < kLanes; ++lane) {
      const Words4 bits = Threefry({counter + lane, 0, 0, 0}, key);
      const size_t i = first + lane;
      Put<kAdds>(bits.w0 >= threshold, scale, x, residual, y, i);
      Put<kAdds>(bits.w1 >= threshold, scale, x, residual, y, i + kLanes);
      Put<kAdds>(bits.w2 >= threshold, scale, x, residual, y, i + 2 * kLanes);
      Put<kAdds>(bits.w3 >= threshold, scale, x, residual, y, i + 3 * kLanes);
    }
  }
  for (size_t i = whole; i < count; ++i) Put<kAdds>(mask.Keeps(i), scale, x, residual, y, i);
}

template <bool kAdds, typename T>
PSRING_INLINE void DropAll(const DropoutShape& shape, const uint64_t* seeds, const void* x,
                           const void* residual, void* y) {
  const T* const from = static_cast<const T*>(x);
  const T* const added = static_cast<const T*>(residual);
  T* const to = static_cast<T*>(y);
  const size_t count = shape.elements;
  if (seeds == nullptr) {
    const size_t all = static_cast<size_t>(shape.batch) * count;
#pragma GCC ivdep
    for (size_t i = 0; i < all; ++i) Put<kAdds>(true, 1, from, added, to, i);
    return;
  }
  for (size_t sample = 0; sample < static_cast<size_t>(shape.batch); ++sample) {
    const size_t at = sample * count;
    Drop<kAdds>(count, DropoutMask(shape, seeds[sample]), from + at, kAdds ? added + at : added, to + at);
  }
}

int FirstOutside(const EmbeddingShape& s, const int32_t* indices) {
  for (int i = 0; i < s.count; ++i) {
    if (indices[i] < 0 || indices[i] >= s.rows) return i;
  }
  return -1;
}

}  // namespace

PSRING_MULTIVERSION void Gelu(ConstSpan x, Span y) {
  if (x.type == DType::kFloat32) return GeluOf(x.count, Values<float>(x), Values<float>(y));
  GeluOf(x.count, Values<BFloat16>(x), Values<BFloat16>(y));
}

PSRING_MULTIVERSION void GeluGradientAndSum(ConstSpan x, Span dy, size_t columns, float* sums) {
  std::fill_n(sums, columns, 0.0f);
  const size_t rows = dy.count / columns;
  if (x.type == DType::kFloat32) {
    return GeluGradient(rows, columns, Values<float>(x), Values<float>(dy), sums);
  }
  GeluGradient(rows, columns, Values<BFloat16>(x), Values<BFloat16>(dy), sums);
}

PSRING_MULTIVERSION void LayerNormForward(const LayerNormShape& shape, ConstSpan x, const float* weight,
                                          const float* bias, Span y, float* statistics) {
  if (x.type == DType::kFloat32) {
    return Normalize(shape, Values<float>(x), weight, bias, Values<float>(y), statistics);
  }
  Normalize(shape, Values<BFloat16>(x), weight, bias, Values<BFloat16>(y), statistics);
}

PSRING_MULTIVERSION void LayerNormBackward(const LayerNormShape& shape, ConstSpan x, const float* weight,
                                           const float* statistics, ConstSpan dy, Span dx, bool add,
                                           float* dweight, float* dbias) {
  std::fill_n(dweight, shape.width, 0.0f);
  std::fill_n(dbias, shape.width, 0.0f);
  if (x.type == DType::kFloat32) {
    return NormalizeGradient(shape, Values<float>(x), weight, statistics, Values<float>(dy),
                             Values<float>(dx), add, dweight, dbias);
  }
  NormalizeGradient(shape, Values<BFloat16>(x), weight, statistics, Values<BFloat16>(dy),
                    Values<BFloat16>(dx), add, dweight, dbias);
}

PSRING_MULTIVERSION void Dropout(const DropoutShape& shape, const uint64_t* seeds, ConstSpan x,
                                 ConstSpan residual, Span y) {
  const bool adds = residual.data != nullptr;
  if (x.type == DType::kFloat32) {
    if (adds) return DropAll<true, float>(shape, seeds, x.data, residual.data, y.data);
    return DropAll<false, float>(shape, seeds, x.data, residual.data, y.data);
  }
  if (adds) return DropAll<true, BFloat16>(shape, seeds, x.data, residual.data, y.data);
  DropAll<false, BFloat16>(shape, seeds, x.data, residual.data, y.data);
}

PSRING_MULTIVERSION int SoftmaxCrossEntropy(int batch, int classes, ConstSpan logits, const int32_t* labels,
                                            Span dlogits, double* loss_sum, int64_t* correct) {
  for (int row = 0; row < batch; ++row) {
    if (labels[row] != kIgnoredLabel && (labels[row] < 0 || labels[row] >= classes)) return row;
  }
  if (logits.type == DType::kFloat32) {
    Losses(batch, classes, Values<float>(logits), labels, Values<float>(dlogits), loss_sum, correct);
  } else {
    Losses(batch, classes, Values<BFloat16>(logits), labels, Values<BFloat16>(dlogits), loss_sum, correct);
  }
  return -1;
}

PSRING_MULTIVERSION int EmbeddingForward(const EmbeddingShape& shape, const int32_t* indices,
                                         const float* table, const float* positions, Span y) {
  if (const int outside = FirstOutside(shape, indices); outside >= 0) return outside;
  if (y.type == DType::kFloat32) {
    LookUp(shape, indices, table, positions, Values<float>(y));
  } else {
    LookUp(shape, indices, table, positions, Values<BFloat16>(y));
  }
  return -1;
}

PSRING_MULTIVERSION int EmbeddingBackward(const EmbeddingShape& shape, const int32_t* indices, ConstSpan dy,
                                          float* dtable, float* dpositions) {
  if (const int outside = FirstOutside(shape, indices); outside >= 0) return outside;
  if (dpositions != nullptr) std::fill_n(dpositions, size_t(shape.context) * shape.width, 0.0f);
  if (dy.type == DType::kFloat32) {
    AddRows(shape, indices, Values<float>(dy), dtable, dpositions);
  } else {
    AddRows(shape, indices, Values<BFloat16>(dy), dtable, dpositions);
  }
  return -1;
}

}  // namespace psring::cpu
