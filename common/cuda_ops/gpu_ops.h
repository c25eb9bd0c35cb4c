// The ops as GPUs compute them: linear layers are matrix products, convolutions a library's or products, too,
// all else is a kernel that computes an element a thread. Pure in the sense that it decides what is launched,
// in which order and on which memory; who multiplies, convolves and launches is a GpuMath: CUDA's in
// cuda_math.cc, a plain loop in the tests.
//
// A convolution that no library takes gathers, for each output position, the inputs under the filter, and
// multiplies that matrix; it does so for as many pictures at a time as keep the matrix small. With bfloat16
// activations each op rounds the float32 weights on their way in, and products that are gradients of weights
// leave in float32. A column sum or a norm goes in two or
// three launches, in an order that never changes, so that the same inputs give the same bits.
#pragma once

#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/cuda/gpu_kernels.h"
#include "common/device/device.h"
#include "common/ops/ops.h"

namespace psring {

// c [m][n] = a b + bias, row-major, added up in float32. a is [m][k], b is [k][n]; where it says transposed,
// memory holds the transposed matrix.
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
  bool relu = false;           // with a bias
  bool add = false;            // to what c holds; without a bias
};

// What a library of convolutions is asked for: one of the three products of a layer (see ConvShape), added up
// in float32.
struct Convolution {
  enum class Part : uint8_t {
    kForward,         // x and weight to y, with bias and what shape.relu says
    kWeightGradient,  // x and dy to dweight
    kInputGradient,   // dy and weight to dx
  };
  Part part;
  ConvShape shape;
  DType type = DType::kFloat32;  // of everything
  const void* from;              // x, x, dy
  const void* with;              // weight, dy, weight
  void* to;                      // y, dweight, dx
  const void* bias = nullptr;    // forward
};

// One thread and one stream at a time.
class GpuMath {
 public:
  virtual ~GpuMath() = default;
  virtual std::string_view name() const = 0;
  // Puts what `work` launches and multiplies on `stream`. `what` lives as long as the program.
  virtual void Enqueue(Stream& stream, const char* what, std::function<absl::Status()> work) = 0;
  // Inside such work.
  virtual absl::Status Launch(size_t count, const gpu::Kernel& kernel) = 0;
  virtual absl::Status Multiply(const MatrixProduct& product) = 0;
  // False where there is no library for it: then nothing was done.
  virtual absl::StatusOr<bool> Convolve(const Convolution& /*convolution*/) { return false; }
  virtual std::string_view convolver() const { return ""; }  // the library's name, once it has convolved
};

struct GpuOpsOptions {
  DType activations = DType::kFloat32;      // or bfloat16
  size_t scratch_bytes = size_t{64} << 20;  // about what a gathered convolution's matrix may take
};

// `device` gives the scratch memory, and must outlive the ops.
std::unique_ptr<Ops> MakeGpuOps(Device& device, std::unique_ptr<GpuMath> math,
                                const GpuOpsOptions& options = {});

}  // namespace psring
