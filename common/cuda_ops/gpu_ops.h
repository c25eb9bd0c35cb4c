// The ops on GPUs: linear layers are matrix products, convolutions are library calls or matrix products
// (their weight gradients always), all else are kernels with one element per thread. This class decides what
// is launched, in which order and on which memory. A GpuMath multiplies, convolves and launches: CUDA's in
// cuda_math.cc, plain loops in the tests.
//
// A convolution without library support gathers, for each output position, the inputs under the filter, and
// multiplies that matrix, for as many images at a time as keep the matrix small. With bfloat16 activations
// each op rounds the float32 weights first, and products that are gradients of weights are written in
// float32. Column sums and norms take two or three launches in a fixed order, so that the same inputs give
// the same bits.
#pragma once

#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "common/cuda/gpu_kernels.h"
#include "common/device/device.h"
#include "common/ops/ops.h"

namespace psring {

// c [m][n] = a b + bias, row-major, added up in float32. a is [m][k], b is [k][n]; a matrix marked as
// transposed is stored transposed.
struct MatrixProduct {
  size_t m, n, k;
  DType inputs = DType::kFloat32;  // of a and b
  const void* a;
  bool a_transposed = false;
  const void* b;
  bool b_transposed = false;
  DType output = DType::kFloat32;  // of c and bias
  void* c;
  const void* bias = nullptr;  // [n]; null: none
  bool relu = false;           // only with a bias
  bool add = false;            // add to c; only without relu
};

// A request to a convolution library: one product of a layer (see ConvShape), added up in float32.
struct Convolution {
  enum class Part : uint8_t {
    kForward,        // x and weight to y, with bias, and ReLU if the shape has it
    kInputGradient,  // dy and weight to dx
  };
  Part part;
  ConvShape shape;
  DType type = DType::kFloat32;  // of everything
  const void* from;              // x or dy
  const void* weight;
  void* to;                    // y or dx
  const void* bias = nullptr;  // forward
};

// One thread and one stream at a time.
class GpuMath {
 public:
  virtual ~GpuMath() = default;
  virtual std::string_view name() const = 0;
  // Runs `work`, which launches and multiplies, in the order of `stream`. `what` must be a string literal.
  virtual void Enqueue(Stream& stream, const char* what, std::function<absl::Status()> work) = 0;
  // Inside such work.
  virtual absl::Status Launch(size_t count, const gpu::Kernel& kernel) = 0;
  virtual absl::Status Multiply(const MatrixProduct& product) = 0;
  // False if there is no library for it; nothing was enqueued then.
  virtual absl::StatusOr<bool> Convolve(const Convolution& /*convolution*/) { return false; }
  virtual std::string_view convolver() const { return ""; }  // the library's name, once it has convolved
};

struct GpuOpsOptions {
  DType activations = DType::kFloat32;      // or bfloat16
  size_t scratch_bytes = size_t{64} << 20;  // approximate limit of a gathered convolution's matrix
};

// `device` allocates the scratch memory and must outlive the ops.
std::unique_ptr<Ops> MakeGpuOps(Device& device, std::unique_ptr<GpuMath> math,
                                const GpuOpsOptions& options = {});

}  // namespace psring
