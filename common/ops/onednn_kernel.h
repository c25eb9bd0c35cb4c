// oneDNN's primitives: their descriptors, and a primitive that is created once and called often, on any
// memory. All calls throw dnnl::error.
#pragma once

#include <cstddef>
#include <oneapi/dnnl/dnnl.hpp>
#include <type_traits>
#include <unordered_map>
#include <vector>

#include "absl/types/span.h"
#include "common/ops/layer_ops.h"

namespace psring::onednn {

using Desc = dnnl::memory::desc;

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

// Borrows the workplace.
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

// Descriptors for oneDNN 2, which builds them from an operation descriptor, and oneDNN 3, which builds them
// directly. The arguments are the same, so the version is recognized by the constructor that exists. Weights
// may be of format `any`: oneDNN then chooses a layout, which the result contains. The caller provides the
// scratch memory (one buffer for all primitives).

// The argument that Attributes' `added` refers to.
constexpr int kAddedArgument = DNNL_ARG_ATTR_MULTIPLE_POST_OP(0) | DNNL_ARG_SRC_1;

// With ReLU, or with a matrix of this layout added to the result.
inline dnnl::primitive_attr Attributes(Activation activation = Activation::kNone,
                                       const Desc* added = nullptr) {
  const auto append_relu = [](auto& operations) {
    constexpr auto kRelu = dnnl::algorithm::eltwise_relu;
    if constexpr (requires { operations.append_eltwise(kRelu, 0.0f, 0.0f); }) {
      operations.append_eltwise(kRelu, /*alpha=*/0.0f, /*beta=*/0.0f);
    } else {
      operations.append_eltwise(/*scale=*/1.0f, kRelu, /*alpha=*/0.0f, /*beta=*/0.0f);
    }
  };
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  dnnl::post_ops operations;
  if (added != nullptr) operations.append_binary(dnnl::algorithm::binary_add, *added);
  if (activation == Activation::kRelu) append_relu(operations);
  attributes.set_post_ops(operations);
  return attributes;
}

// `arguments`: as oneDNN's constructors take them after the engine.
template <typename Primitive, typename... Arguments>
typename Primitive::primitive_desc Describe(const dnnl::engine& engine,
                                            const dnnl::primitive_attr& attributes,
                                            const Arguments&... arguments) {
  using Result = typename Primitive::primitive_desc;
  if constexpr (std::is_constructible_v<Result, const dnnl::engine&, const Arguments&...,
                                        const dnnl::primitive_attr&>) {
    return Result(engine, arguments..., attributes);
  } else {
    return Result(typename Primitive::desc(arguments...), attributes, engine);
  }
}

// `forward`: the descriptor of the forward primitive that this one belongs to.
template <typename Primitive, typename Forward, typename... Arguments>
typename Primitive::primitive_desc DescribeBackward(const dnnl::engine& engine, const Forward& forward,
                                                    const Arguments&... arguments) {
  using Result = typename Primitive::primitive_desc;
  if constexpr (std::is_constructible_v<Result, const dnnl::engine&, const Arguments&..., const Forward&,
                                        const dnnl::primitive_attr&>) {
    return Result(engine, arguments..., forward, Attributes());
  } else {
    return Result(typename Primitive::desc(arguments...), Attributes(), engine, forward);
  }
}

}  // namespace psring::onednn
