// GPU kernels: structs of arguments with a function of the element's number. Elements are independent, so a
// plain loop computes the same, which is how tests run them without a GPU. C++17, since CUDA's compilers read
// it too. This file has the elementwise kernels and sums; those of layers are in gpu_layer_kernels.h.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <variant>

#include "common/cuda/gpu_layer_kernels.h"
#include "common/cuda/gpu_packs.h"
#include "common/kernels/elementwise.h"
#include "common/kernels/sixteen_bits.h"

namespace psring::gpu {

// rule(values of `updated`, value of `from`) for each element; rules as those of optimizers (elementwise.h).
template <typename Rule>
struct Update {
  using Element = float;
  static constexpr int n = 1 + Rule::kSlots;
  Rule rule;
  const float* from;
  float* updated[n];

  PSRING_HOST_DEVICE void operator()(size_t i) const {
    float values[n];
    for (int k = 0; k < n; ++k) values[k] = updated[k][i];
    rule(values, from[i]);
    for (int k = 0; k < n; ++k) updated[k][i] = values[k];
  }
  PSRING_HOST_DEVICE void Wide(size_t at) const {
    const Pack<float> read = PackAt(from + at);
    Pack<float> packs[n];
    for (int k = 0; k < n; ++k) packs[k] = PackAt(updated[k] + at);
    for (int j = 0; j < 4; ++j) {
      float values[n];
      for (int k = 0; k < n; ++k) values[k] = packs[k].at[j];
      rule(values, read.at[j]);
      for (int k = 0; k < n; ++k) packs[k].at[j] = values[k];
    }
    for (int k = 0; k < n; ++k) PackAt(updated[k] + at) = packs[k];
  }
  std::array<const void*, n + 1> walks() const {
    std::array<const void*, n + 1> all = {from};
    for (int k = 0; k < n; ++k) all[static_cast<size_t>(k) + 1] = updated[k];
    return all;
  }
};

struct AddTo {
  static constexpr int kSlots = 0;
  PSRING_EVERYWHERE void operator()(float* x, float more) const { x[0] += more; }
};

// to[i] += the value of from[i]. (float32 uses Update.)
template <typename From>
struct Add {
  float* to;
  const From* from;
  PSRING_HOST_DEVICE void operator()(size_t i) const { to[i] += elementwise::Load(from[i]); }
};

// to[i] = the value of from[i], rounded to nearest even.
template <typename From, typename To>
struct Convert {
  const From* from;
  To* to;
  PSRING_HOST_DEVICE void operator()(size_t i) const {
    to[i] = elementwise::Store<To>(elementwise::Load(from[i]));
  }
};

// Rounds weights before a matrix product.
template <typename To>
struct Convert<float, To> {
  using Element = float;
  const float* from;
  To* to;
  PSRING_HOST_DEVICE void operator()(size_t i) const { to[i] = elementwise::Store<To>(from[i]); }
  PSRING_HOST_DEVICE void Wide(size_t at) const {
    const Pack<float> values = PackAt(from + at);
    for (int k = 0; k < 4; ++k) to[at + k] = elementwise::Store<To>(values.at[k]);
  }
  std::array<const void*, 1> walks() const { return {from}; }
};

// *found = 1 if value i is NaN or infinite. Several threads may write this value, and nothing else is
// written.
template <typename T>
struct FindNotFinite {
  const T* values;
  uint32_t* found;
  PSRING_HOST_DEVICE void operator()(size_t i) const {
    const float value = elementwise::Load(values[i]);
    if (!(value - value == 0)) *found = 1;
  }
};

// sums[i] = the sum of part i of `count` values, in parts of `length`. The order is fixed, so the bits are
// reproducible.
struct SumParts {
  size_t count, length;
  const double* values;
  double* sums;
  PSRING_HOST_DEVICE void operator()(size_t i) const {
    const size_t first = i * length, end = count - first < length ? count : first + length;
    double sum = 0;
    for (size_t at = first; at < end; ++at) sum += values[at];
    sums[i] = sum;
  }
};

// sums[i] = the sum of squares of values i, i + stride, i + 2 stride ...
struct SumSquares {
  size_t count, stride;
  const float* values;
  double* sums;
  PSRING_HOST_DEVICE void operator()(size_t i) const {
    double sum = 0;
    for (size_t at = i; at < count; at += stride) sum += double{values[at]} * double{values[at]};
    sums[i] = sum;
  }
};

// One thread: adds up the partial sums.
struct AddScore {
  uint32_t count;
  const double *losses, *rights;
  double* loss_sum;
  int64_t* correct;
  PSRING_HOST_DEVICE void operator()(size_t) const {
    double loss = 0, right = 0;
    for (uint32_t i = 0; i < count; ++i) {
      loss += losses[i];
      right += rights[i];
    }
    *loss_sum += loss;
    *correct += static_cast<int64_t>(right);
  }
};

struct AddSum {
  uint32_t count;
  const double* parts;
  double* sum;
  PSRING_HOST_DEVICE void operator()(size_t) const {
    double total = 0;
    for (uint32_t i = 0; i < count; ++i) total += parts[i];
    *sum += total;
  }
};

using elementwise::BFloat16;
using elementwise::Float16;

using Kernel =
    std::variant<Update<AddTo>, Update<SgdStep>, Update<MomentumStep>, Update<AdagradStep>, Update<AdamStep>,
                 Add<BFloat16>, Add<Float16>, Convert<BFloat16, float>, Convert<Float16, float>,
                 Convert<float, BFloat16>, Convert<float, Float16>, FindNotFinite<float>,
                 FindNotFinite<BFloat16>, FindNotFinite<Float16>, GradientAndSumColumns<float>,
                 GradientAndSumColumns<BFloat16>, Gelu<float>, Gelu<BFloat16>, SumChunks, GatherTaps<float>,
                 GatherTaps<BFloat16>, SumTaps<float>, SumTaps<BFloat16>, MaxPool<float>, MaxPool<BFloat16>,
                 AveragePool<float>, AveragePool<BFloat16>, AveragePoolGradient<float>,
                 AveragePoolGradient<BFloat16>, MaxPoolGradient<float>, MaxPoolGradient<BFloat16>,
                 CrossEntropy<float>, CrossEntropy<BFloat16>, SumParts, SumSquares, AddScore, AddSum>;

}  // namespace psring::gpu
