#include "common/ops/transformer_kernels.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "common/reduce/elementwise_math.h"
#include "common/reduce/sixteen_bits.h"

// PSRING_MULTIVERSION comes from CMake; see cpu_kernels.cc. What such a function calls is inlined into each
// of its versions.
#define PSRING_INLINE [[gnu::always_inline]] inline

namespace psring::cpu {
namespace {

using elementwise::BFloat16;
using elementwise::Exp;
using elementwise::Load;
using elementwise::Store;

// The compiler splits it into the registers that an instruction set has.
constexpr size_t kLanes = 16;
typedef float Vector __attribute__((vector_size(kLanes * sizeof(float))));

PSRING_INLINE Vector LoadVector(const float* from) {
  Vector values;
  memcpy(&values, from, sizeof(values));
  return values;
}
PSRING_INLINE Vector LoadVector(const BFloat16* from) {
  typedef uint16_t Halves __attribute__((vector_size(kLanes * sizeof(uint16_t))));
  typedef uint32_t Words __attribute__((vector_size(kLanes * sizeof(uint32_t))));
  Halves halves;
  memcpy(&halves, from, sizeof(halves));
  const Words words = __builtin_convertvector(halves, Words) << 16;
  Vector values;
  memcpy(&values, &words, sizeof(values));
  return values;
}
PSRING_INLINE void StoreVector(Vector values, float* to) { memcpy(to, &values, sizeof(values)); }

PSRING_INLINE float SumOfLanes(const Vector& values) {
  float sum = 0;
  for (size_t lane = 0; lane < kLanes; ++lane) sum += values[lane];
  return sum;
}

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
  for (size_t c = whole; c < classes; ++c) sum += Exp(Load(z[c]) - highest);
  const double loss = std::log(double{sum}) - (double{Load(z[label])} - highest);
  if (d == nullptr) return loss;
  const float label_logit = Load(z[label]), inverse = 1.0f / sum;
#pragma GCC ivdep
  for (size_t c = 0; c < classes; ++c) d[c] = Store<T>(Exp(Load(z[c]) - highest) * inverse);
  d[label] = Store<T>(Exp(label_logit - highest) * inverse - 1.0f);
  return loss;
}

template <typename T>
PSRING_INLINE void Losses(int batch, size_t classes, const T* z, const int32_t* labels, T* d,
                          double* loss_sum, int64_t* correct) {
  double loss = 0;
  int64_t hits = 0;
  for (int row = 0; row < batch; ++row) {
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
    if (s.context == 0) {
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
