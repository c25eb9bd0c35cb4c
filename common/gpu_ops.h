// The ops as GPUs compute them: linear layers and convolutions are matrix products, all else is a kernel that
// computes an element a thread. Pure in the sense that it decides what is launched, in which order and on
// which memory; who multiplies and launches is a GpuMath: CUDA's in cuda_math.cc, a plain loop in the tests.
//
// A convolution gathers, for each output position, the inputs under the filter, and multiplies that matrix;
// it does so for as many pictures at a time as keep the matrix small. A column sum or a norm goes in two or
// three launches, in an order that never changes, so that the same inputs give the same bits.
#pragma once

#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/device.h"
#include "common/gpu_kernels.h"
#include "common/ops.h"

namespace psring {

// c [m][n] = a b + bias, row-major. a is [m][k], b is [k][n]; where it says transposed, memory holds the
// transposed matrix.
struct MatrixProduct {
  size_t m, n, k;
  const float* a;
  bool a_transposed = false;
  const float* b;
  bool b_transposed = false;
  float* c;
  const float* bias = nullptr;  // [n]; null: none
  bool relu = false;            // with a bias
  bool add = false;             // to what c holds; without a bias
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
};

// `device` gives the scratch memory, and must outlive the ops. `scratch_bytes` is about what a convolution's
// matrix may take.
std::unique_ptr<Ops> MakeGpuOps(Device& device, std::unique_ptr<GpuMath> math,
                                size_t scratch_bytes = size_t{64} << 20);

}  // namespace psring
