// Elementwise arithmetic of training, written once for CPUs and GPUs: the CPU's loops (cpu_kernels.cc) and
// the GPU's kernels (gpu_kernels.h) call it. C++17, since CUDA's compilers read it too.
//
// Every operation is rounded separately. Both sides are compiled without contraction to fused multiply-adds,
// so results of +, -, *, / and square roots have the same bits on both.
#pragma once

#include <cmath>
#include <cstdint>

#include "common/kernels/sixteen_bits.h"

namespace psring {

// The rule of one optimizer step: updates x, which holds a weight and its kSlots values of state. `scale`
// (1 / samples) turns the sum of gradients into their mean g.
struct SgdStep {
  static constexpr int kSlots = 0;
  float scale, rate;

  PSRING_EVERYWHERE void operator()(float* x, float gradient) const { x[0] -= rate * (gradient * scale); }
};

struct MomentumStep {  // v = momentum v + g; w -= rate v   (PyTorch's convention, dampening 0)
  static constexpr int kSlots = 1;
  float scale, rate, momentum;

  PSRING_EVERYWHERE void operator()(float* x, float gradient) const {
    x[1] = momentum * x[1] + gradient * scale;
    x[0] -= rate * x[1];
  }
};

struct AdagradStep {  // Duchi et al. 2011: s += g^2; w -= rate g / (sqrt(s) + epsilon)
  static constexpr int kSlots = 1;
  float scale, rate, epsilon;

  PSRING_EVERYWHERE void operator()(float* x, float gradient) const {
    const float g = gradient * scale;
    x[1] += g * g;
    x[0] -= rate * g / (std::sqrt(x[1]) + epsilon);
  }
};

// Kingma & Ba 2015; `rate` and `root_correction` include the bias corrections. The state: mean and variance.
struct AdamStep {
  static constexpr int kSlots = 2;
  float scale, rate, beta1, beta2, epsilon, root_correction;
  // AdamW (Loshchilov & Hutter 2019): w is first multiplied by this, 1 - learning rate * weight decay. With 1
  // the bits are Adam's.
  float kept = 1;

  PSRING_EVERYWHERE void operator()(float* x, float gradient) const {
    const float g = gradient * scale;
    x[1] = beta1 * x[1] + (1 - beta1) * g;
    x[2] = beta2 * x[2] + (1 - beta2) * (g * g);
    x[0] = x[0] * kept - rate * x[1] / (std::sqrt(x[2]) * root_correction + epsilon);
  }
};

}  // namespace psring

namespace psring::elementwise {

// The maximum of a window's four values (the first on a tie) and its index.
template <typename T>
PSRING_HOST_DEVICE inline T HighestOfFour(T a, T b, T c, T d, uint32_t& where) {
  T best = a;
  where = 0;
  where = Load(b) > Load(best) ? 1 : where;
  best = Load(b) > Load(best) ? b : best;
  where = Load(c) > Load(best) ? 2 : where;
  best = Load(c) > Load(best) ? c : best;
  where = Load(d) > Load(best) ? 3 : where;
  best = Load(d) > Load(best) ? d : best;
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
