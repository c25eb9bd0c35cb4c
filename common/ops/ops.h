// The arithmetic of training: each op enqueues on a stream and returns. Several implementations share one
// interface and one test suite: oneDNN (onednn_ops.cc), GPUs (gpu_ops.cc) and, for tests, plain C++.
//
// All arguments of an op, including sums and labels, are in memory of the stream's device.
//
// Layouts: row-major; images are NHWC (channels last); filters are [out][kernel_h][kernel_w][in]; the batch
// is the outermost index. All gradients are *sums* over the batch; the caller divides by the number of
// samples, so that a short batch is weighted by its samples. Spans may not overlap unless said otherwise.
//
// Inputs and outputs of layers, and their gradients (x, y, dy, dx, logits, dlogits), have the type
// activations(). Weights, biases and their gradients are always float32: with bfloat16 activations, products
// multiply bfloat16 numbers and add up in float32. Weights are rounded before the product; a GPU rounds
// biases, too.
//
// An Ops caches what it needs per shape, so the first call with a new shape is slow. Use an Ops from one
// thread and on one stream at a time; give every rank its own. Shapes that do not fit the spans are
// programming errors (PSRING_CHECK).
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <variant>

#include "absl/status/statusor.h"
#include "common/device/device.h"
#include "common/kernels/elementwise.h"
#include "common/ops/layer_ops.h"

namespace psring {

// The type in which layers store activations and multiply.
enum class Precision : uint8_t {
  kFloat32,
  kTf32,      // float32 whose products keep 10 mantissa bits, added up in float32; GPUs only
  kBFloat16,  // bfloat16, added up in float32
};
constexpr DType ActivationsOf(Precision precision) {
  return precision == Precision::kBFloat16 ? DType::kBFloat16 : DType::kFloat32;
}
// "float32", "tf32", "bfloat16". InvalidArgument lists them.
absl::StatusOr<Precision> ParsePrecision(const std::string& name);

using OptimizerStep = std::variant<SgdStep, MomentumStep, AdagradStep, AdamStep>;
inline size_t SlotsOf(const OptimizerStep& step) {
  return std::visit([](const auto& rule) { return static_cast<size_t>(rule.kSlots); }, step);
}

class Ops {
 public:
  virtual ~Ops() = default;
  // "reference", "onednn, bfloat16", "cublaslt, tf32, cudnn 9.19.0". On a GPU it includes how convolutions
  // were computed so far: by a library, or as matrix products of gathered inputs ("cublaslt, gathered
  // convolutions").
  virtual std::string name() const = 0;
  virtual DType activations() const { return DType::kFloat32; }

  // The ops of layers.
  const OpFamilies& families() const { return families_; }

  // Converts values, to nearest even, from or to float32.
  virtual void Convert(ConstSpan from, Span to, Stream& stream) = 0;

  // to += from, which may have any type; `to` is float32.
  virtual void Add(Span to, ConstSpan from, Stream& stream) = 0;

  // *found = 1 if one of `values` is NaN or infinite; otherwise unchanged.
  virtual void FindNotFinite(ConstSpan values, uint32_t* found, Stream& stream) = 0;

  // *sum += the squares of `values`, added up in double, in a fixed order of the implementation; on the CPU
  // SumOfSquares of gradient_norm.h.
  virtual void AddSquares(ConstSpan values, double* sum, Stream& stream) = 0;

  // `weights`, `gradient` and the slots that the step needs have the same count.
  virtual void Apply(const OptimizerStep& step, Span weights, ConstSpan gradient,
                     const std::array<Span, 2>& slots, Stream& stream) = 0;

 protected:
  OpFamilies families_;  // set by the constructor of the implementation
};

// `threads`: the number of cores that one op may use. bfloat16 only if BFloat16Support() is not kNone.
std::unique_ptr<Ops> MakeOneDnnOps(int threads, DType activations = DType::kFloat32);

// The CPU's support for bfloat16: with AVX512-BF16 it multiplies them; with AVX-512 only, oneDNN converts
// them, which is slower than float32.
enum class BFloat16 { kNone, kEmulated, kNative };
BFloat16 BFloat16Support();

}  // namespace psring
