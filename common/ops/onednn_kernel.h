// A oneDNN primitive that is created once and called often, on any memory.
#pragma once

#include <cstddef>
#include <oneapi/dnnl/dnnl.hpp>
#include <unordered_map>
#include <vector>

#include "absl/types/span.h"
#include "common/device/device.h"

namespace psring::onednn {

class Kernel;

// An argument of a primitive, such as DNNL_ARG_SRC, and its memory.
struct Argument {
  int id;
  const void* data;
};

// An execution of a kernel.
struct Call {
  Kernel* kernel;
  std::vector<Argument> arguments;
};

// The stream and scratch memory of all kernels. The scratch grows to the largest need and is kept. One thread
// at a time.
//
// oneDNN's GEMM does not use the scratch memory. It computes float32 linear layers on processors without
// AVX-512, and allocates aligned buffers in each call; no attribute prevents this. posix_memalign of glibc
// 2.36 cuts such a buffer out of a larger block. If a small allocation that is never freed takes the
// remainder, the freed buffer is too small for the next call and the heap grows. So code that runs in every
// step must not leave a small block on the heap each time: reserve a vector instead.
class Workplace {
 public:
  // `threads`: the cores that one kernel uses. `activations`: what layers read and write; float32 or
  // bfloat16.
  Workplace(int threads, DType activations) : threads_(threads), activations_(activations) {}

  int threads() const { return threads_; }
  DType activations() const { return activations_; }
  dnnl::memory::data_type activation_type() const {
    return activations_ == DType::kBFloat16 ? dnnl::memory::data_type::bf16 : dnnl::memory::data_type::f32;
  }
  dnnl::engine& engine() { return engine_; }
  dnnl::stream& stream() { return stream_; }

  // At least as much as any Reserve so far has requested.
  void* scratch() const { return bytes_ == 0 ? nullptr : scratch_.get_data_handle(); }
  void Reserve(size_t bytes);

  // From now on kernels append their calls; null: they do not.
  void Record(std::vector<Call>* calls) { calls_ = calls; }
  std::vector<Call>* calls() const { return calls_; }

 private:
  const int threads_;
  const DType activations_;
  dnnl::engine engine_{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream_{engine_};
  dnnl::memory scratch_;
  size_t bytes_ = 0;
  std::vector<Call>* calls_ = nullptr;
};

// Borrows the workplace. All calls throw dnnl::error.
class Kernel {
 public:
  Kernel(const dnnl::primitive_desc_base& desc, Workplace& workplace);

  // Takes every argument of the primitive, in the layouts of its descriptor. Returns when it is done.
  void Run(absl::Span<const Argument> arguments);

  // A matrix product or a convolution, in contrast to a change of layout.
  bool is_product() const { return desc_.get_kind() != dnnl::primitive::kind::reorder; }

 private:
  dnnl::memory& Memory(int id);

  dnnl::primitive_desc_base desc_;
  dnnl::primitive primitive_;
  Workplace& workplace_;
  std::unordered_map<int, dnnl::memory> memories_;
};

}  // namespace psring::onednn
