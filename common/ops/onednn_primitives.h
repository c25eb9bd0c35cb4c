// Primitive descriptors for oneDNN 2, which builds them from an operation descriptor, and oneDNN 3, which
// builds them directly. The arguments are the same, so the version is recognized by the constructor that
// exists.
//
// Weights may be of format `any`: oneDNN then chooses a layout, which the result contains. The caller
// provides the scratch memory (one buffer for all primitives). Throws dnnl::error if oneDNN has no
// implementation.
#pragma once

#include <oneapi/dnnl/dnnl.hpp>
#include <type_traits>

#include "common/ops/layer_ops.h"

namespace psring::onednn {

using Desc = dnnl::memory::desc;

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
