// Elementwise arithmetic of training, written once for CPUs and GPUs: the CPU's loops (cpu_kernels.cc) and
// the GPU's kernels (gpu_kernels.h) call it. C++17, since CUDA's compilers read it too.
//
// Every operation is rounded separately. Both sides are compiled without contraction to fused multiply-adds,
// so results of +, -, *, / and square roots have the same bits on both.
#pragma once

#include <cmath>
#include <cstdint>

#include "common/device/host_device.h"
#include "common/reduce/sixteen_bits.h"

namespace psring::elementwise {

// Arguments as in ops.h; `w` and the state (velocity, mean, variance) are updated in place.
PSRING_HOST_DEVICE inline void Sgd(float scale, float rate, float& w, float gradient) {
  w -= rate * (gradient * scale);
}

PSRING_HOST_DEVICE inline void Momentum(float scale, float rate, float momentum, float& w, float gradient,
                                        float& velocity) {
  const float v = momentum * velocity + gradient * scale;
  velocity = v;
  w -= rate * v;
}

PSRING_HOST_DEVICE inline void Adagrad(float scale, float rate, float epsilon, float& w, float gradient,
                                       float& sum) {
  const float g = gradient * scale;
  const float s = sum + g * g;
  sum = s;
  w -= rate * g / (std::sqrt(s) + epsilon);
}

// Adam's constants for one step, including the bias corrections.
struct AdamRates {
  float scale, beta1, beta2, epsilon, rate, root_correction, kept;
};

PSRING_HOST_DEVICE inline void Adam(const AdamRates& r, float& w, float gradient, float& mean,
                                    float& variance) {
  const float g = gradient * r.scale;
  const float m = r.beta1 * mean + (1 - r.beta1) * g;
  const float v = r.beta2 * variance + (1 - r.beta2) * (g * g);
  mean = m;
  variance = v;
  w = w * r.kept - r.rate * m / (std::sqrt(v) * r.root_correction + r.epsilon);
}

// The maximum of a window's four values (the first on a tie) and its index. `value_of`: the value to compare.
template <typename T, typename ValueOf>
PSRING_HOST_DEVICE inline T HighestOfFour(T a, T b, T c, T d, uint32_t& where, ValueOf value_of) {
  T best = a;
  where = 0;
  where = value_of(b) > value_of(best) ? 1 : where;
  best = value_of(b) > value_of(best) ? b : best;
  where = value_of(c) > value_of(best) ? 2 : where;
  best = value_of(c) > value_of(best) ? c : best;
  where = value_of(d) > value_of(best) ? 3 : where;
  best = value_of(d) > value_of(best) ? d : best;
  return best;
}

// One sample: its loss, and whether the highest logit (the first on a tie) is the label's. `d`: as in
// Ops::SoftmaxCrossEntropy. `label` must be below `classes`. Computed in float32.
template <typename T>
PSRING_HOST_DEVICE inline double SoftmaxCrossEntropy(int classes, const T* z, int label, T* d, bool& right) {
  int best = 0;
  for (int c = 1; c < classes; ++c) best = Load(z[c]) > Load(z[best]) ? c : best;
  const float highest = Load(z[best]);  // subtracted, so that exp cannot overflow
  float sum = 0;
  for (int c = 0; c < classes; ++c) sum += std::exp(Load(z[c]) - highest);
  const double loss = std::log(sum) - (Load(z[label]) - highest);
  right = best == label;
  if (d != nullptr) {
    for (int c = 0; c < classes; ++c) {
      d[c] = Store<T>(std::exp(Load(z[c]) - highest) / sum - (c == label ? 1.0f : 0.0f));
    }
  }
  return loss;
}

}  // namespace psring::elementwise
