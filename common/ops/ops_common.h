// What the implementations of Ops share: checks, and spans as elements of C++ types.
#pragma once

#include <algorithm>
#include <initializer_list>

#include "absl/status/status.h"
#include "common/kernels/sixteen_bits.h"
#include "common/kernels/threefry.h"
#include "common/ops/ops.h"

namespace psring {

// The elements of a layer's spans.
struct LayerCounts {
  size_t x, weight, bias, y;
};
LayerCounts CountsOf(const LinearShape& shape);
LayerCounts CountsOf(const ConvShape& shape);

// PSRING_CHECK that the spans of a layer fit its shape.
void CheckForward(const LayerCounts& counts, Activation activation, ConstSpan x, ConstSpan weight,
                  ConstSpan bias, ConstSpan y);
void CheckForward(const LinearShape& shape, ConstSpan x, ConstSpan weight, ConstSpan bias, ConstSpan residual,
                  ConstSpan y, ConstSpan saved);
void CheckBackwardInput(const LayerCounts& counts, Activation activation, ConstSpan weight, ConstSpan saved,
                        ConstSpan dy, ConstSpan dx, ConstSpan dbias);
void CheckBackwardWeight(const LayerCounts& counts, ConstSpan x, ConstSpan dy, ConstSpan dweight);
void CheckLoss(int batch, int classes, ConstSpan logits, ConstSpan dlogits);
void CheckAverage(const PoolShape& shape, ConstSpan full, ConstSpan pooled);
// The pooled side has a quarter of the elements.
void CheckPool(const PoolShape& shape, size_t pooled, size_t full);
// The counts of Ops::Apply.
void CheckStep(const OptimizerStep& step, Span weights, ConstSpan gradient, const std::array<Span, 2>& slots);

// That all spans that have data are of `type`.
void CheckTypes(DType type, std::initializer_list<ConstSpan> spans);

// Of the whole table.
int RowsOfAll(const EmbeddingShape& shape);
// The errors of indices and labels that are out of range.
absl::Status IndexOutside(const EmbeddingShape& shape, int position, int32_t index);
absl::Status RowOutside(int rows, int lookup, int32_t row);
absl::Status LabelOutside(int classes, int row, int32_t label);

// What dropout keeps of one sample. 16 counters of Threefry give the bits of 64 elements: element i has word
// i / 16 % 4 of counter i / 64 * 16 + i % 16, so that a vector of counters yields four vectors of elements.
struct DropoutMask {
  static constexpr size_t kLanes = 16;

  DropoutMask(const DropoutShape& shape, uint64_t seed)
      : key({static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32), shape.layer, 0}),
        threshold(static_cast<uint32_t>(std::min(shape.probability * 0x1p32 + .5, 0x1p32 - 1))),
        scale(static_cast<float>(1 / (1 - shape.probability))) {}

  bool Keeps(size_t element) const {
    const size_t counter = element / (4 * kLanes) * kLanes + element % kLanes;
    const Words4 bits = Threefry({static_cast<uint32_t>(counter), 0, 0, 0}, key);
    const uint32_t words[] = {bits.w0, bits.w1, bits.w2, bits.w3};
    return words[element / kLanes % 4] >= threshold;
  }

  ThreefryKey key;
  uint32_t threshold;  // an element is dropped if its 32 bits are below it
  float scale;
};

// f(T()) with T the C++ type of activations, float or BFloat16.
template <typename F>
PSRING_INLINE auto WithActivations(DType type, const F& f) {
  if (type == DType::kFloat32) return f(float{});
  return f(elementwise::BFloat16{});
}

// The elements of a span of T.
template <typename T>
PSRING_INLINE const T* Elements(ConstSpan span) {
  return static_cast<const T*>(span.data);
}
template <typename T>
PSRING_INLINE T* Elements(Span span) {
  return static_cast<T*>(span.data);
}

}  // namespace psring
