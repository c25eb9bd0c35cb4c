// The differences between oneDNN 2 and 3: how a primitive is described. CMake compiles
// onednn_primitives_v2.cc or onednn_primitives_v3.cc, depending on the headers.
//
// Weights and diff_weights may be of format `any`: oneDNN then chooses a layout, which the result contains.
// The caller provides the scratch memory (one buffer for all primitives). Throws dnnl::error if oneDNN has no
// implementation.
#pragma once

#include <oneapi/dnnl/dnnl.hpp>

namespace psring::onednn {

using Desc = dnnl::memory::desc;

// y = a b + bias; relu: y = max(0, .).
dnnl::matmul::primitive_desc DescribeMatMul(const dnnl::engine& engine, const Desc& a, const Desc& b,
                                            const Desc& bias, const Desc& y, bool relu);

// dx = dy weight.
dnnl::inner_product_backward_data::primitive_desc DescribeLinearBackwardData(const dnnl::engine& engine,
                                                                             const Desc& dx,
                                                                             const Desc& weight,
                                                                             const Desc& dy);
// dweight = dy^T x, dbias = column sums of dy.
dnnl::inner_product_backward_weights::primitive_desc DescribeLinearBackwardWeights(
    const dnnl::engine& engine, const Desc& x, const Desc& dweight, const Desc& dbias, const Desc& dy);

// Stride 1, no padding.
dnnl::convolution_forward::primitive_desc DescribeConvForward(const dnnl::engine& engine, const Desc& x,
                                                              const Desc& weight, const Desc& bias,
                                                              const Desc& y, bool relu);
dnnl::convolution_backward_data::primitive_desc DescribeConvBackwardData(const dnnl::engine& engine,
                                                                         const Desc& dx, const Desc& weight,
                                                                         const Desc& dy);
dnnl::convolution_backward_weights::primitive_desc DescribeConvBackwardWeights(
    const dnnl::engine& engine, const Desc& x, const Desc& dweight, const Desc& dbias, const Desc& dy);

// From one layout to another.
dnnl::reorder::primitive_desc DescribeReorder(const dnnl::engine& engine, const Desc& from, const Desc& to);

}  // namespace psring::onednn
