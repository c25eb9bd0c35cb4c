// oneDNN 2: a primitive descriptor is built from an operation descriptor.
#include "common/ops/onednn_primitives.h"

namespace psring::onednn {
namespace {

using dnnl::algorithm;
using dnnl::prop_kind;

dnnl::primitive_attr Attributes(bool relu = false) {
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  if (relu) {
    dnnl::post_ops post_ops;
    post_ops.append_eltwise(/*scale=*/1, algorithm::eltwise_relu, /*alpha=*/0, /*beta=*/0);
    attributes.set_post_ops(post_ops);
  }
  return attributes;
}

const dnnl::memory::dims kStride = {1, 1};
const dnnl::memory::dims kPadding = {0, 0};

// Weights of the type that forward reads with such an x; their gradient may have another type.
Desc ForForward(const Desc& dweight, const Desc& x) {
  if (dweight.data_type() == x.data_type()) return dweight;
  return Desc(dweight.dims(), x.data_type(), dnnl::memory::format_tag::any);
}

}  // namespace

dnnl::matmul::primitive_desc DescribeMatMul(const dnnl::engine& engine, const Desc& a, const Desc& b,
                                            const Desc& bias, const Desc& y, bool relu) {
  return {{a, b, bias, y}, Attributes(relu), engine};
}

dnnl::inner_product_backward_data::primitive_desc DescribeLinearBackwardData(const dnnl::engine& engine,
                                                                             const Desc& dx,
                                                                             const Desc& weight,
                                                                             const Desc& dy) {
  const dnnl::inner_product_forward::primitive_desc forward({prop_kind::forward_training, dx, weight, dy},
                                                            engine);
  return {{dx, weight, dy}, Attributes(), engine, forward};
}

dnnl::inner_product_backward_weights::primitive_desc DescribeLinearBackwardWeights(
    const dnnl::engine& engine, const Desc& x, const Desc& dweight, const Desc& dbias, const Desc& dy) {
  const dnnl::inner_product_forward::primitive_desc forward(
      {prop_kind::forward_training, x, ForForward(dweight, x), dbias, dy}, engine);
  return {{x, dweight, dbias, dy}, Attributes(), engine, forward};
}

dnnl::convolution_forward::primitive_desc DescribeConvForward(const dnnl::engine& engine, const Desc& x,
                                                              const Desc& weight, const Desc& bias,
                                                              const Desc& y, bool relu) {
  return {{prop_kind::forward_training, algorithm::convolution_direct, x, weight, bias, y, kStride, kPadding,
           kPadding},
          Attributes(relu),
          engine};
}

dnnl::convolution_backward_data::primitive_desc DescribeConvBackwardData(const dnnl::engine& engine,
                                                                         const Desc& dx, const Desc& weight,
                                                                         const Desc& dy) {
  const dnnl::convolution_forward::primitive_desc forward(
      {prop_kind::forward_training, algorithm::convolution_direct, dx, weight, dy, kStride, kPadding,
       kPadding},
      engine);
  return {{algorithm::convolution_direct, dx, weight, dy, kStride, kPadding, kPadding},
          Attributes(),
          engine,
          forward};
}

dnnl::convolution_backward_weights::primitive_desc DescribeConvBackwardWeights(
    const dnnl::engine& engine, const Desc& x, const Desc& dweight, const Desc& dbias, const Desc& dy) {
  const dnnl::convolution_forward::primitive_desc forward(
      {prop_kind::forward_training, algorithm::convolution_direct, x, ForForward(dweight, x), dbias, dy,
       kStride, kPadding, kPadding},
      engine);
  return {{algorithm::convolution_direct, x, dweight, dbias, dy, kStride, kPadding, kPadding},
          Attributes(),
          engine,
          forward};
}

dnnl::reorder::primitive_desc DescribeReorder(const dnnl::engine& engine, const Desc& from, const Desc& to) {
  return {engine, from, engine, to, Attributes()};
}

}  // namespace psring::onednn
