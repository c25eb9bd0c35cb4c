// Linear and convolution layers of one shape on oneDNN: their primitives, created once, and the reordering
// between them. Constructors and calls throw dnnl::error. They borrow the workplace.
#pragma once

#include <optional>
#include <vector>

#include "common/ops/onednn_kernel.h"
#include "common/ops/onednn_primitives.h"
#include "common/ops/ops.h"

namespace psring::onednn {

// Weights in the layout and type that a primitive chose.
class OrderedWeights {
 public:
  // From `plain`, which is float32, to `ordered`, or back.
  OrderedWeights(const Desc& plain, const Desc& ordered, bool back, Workplace& workplace);

  void FromPlain(const void* plain) { reorder_.Run({{DNNL_ARG_FROM, plain}, {DNNL_ARG_TO, data()}}); }
  void ToPlain(float* plain) { reorder_.Run({{DNNL_ARG_FROM, data()}, {DNNL_ARG_TO, plain}}); }
  void* data() const { return memory_.get_data_handle(); }
  // The float32 values.
  float* floats() const { return static_cast<float*>(data()); }
  size_t count() const { return memory_.get_desc().get_size() / sizeof(float); }

 private:
  dnnl::memory memory_;
  Kernel reorder_;
};

// Arguments of Run as in Ops: weights and their gradients are float32, dx may be null.

// A forward pass with or without bias and residual; as a key, its place in a map.
struct LinearForwardShape {
  LinearShape layer;
  bool has_bias, has_residual;
  auto operator<=>(const LinearForwardShape&) const = default;
};

class LinearForward {
 public:
  LinearForward(const LinearForwardShape& shape, Workplace& workplace);
  void Run(const void* x, const float* weight, const float* bias, const void* residual, void* y, void* saved);

 private:
  const LinearForwardShape shape_;
  const DType type_;
  dnnl::matmul::primitive_desc desc_;
  Kernel multiply_;
  std::optional<OrderedWeights> weights_;  // if the primitive cannot read them directly
};

// The product of dy with a second matrix, which is first copied if the primitive needs another layout.
class GradientProduct {
 public:
  // The primitive's names for its arguments.
  struct Ids {
    int dy, right, result;
  };
  static constexpr Ids kOfMatmul = {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST};

  // `plain`: the layout in which Run gets the second matrix.
  GradientProduct(const dnnl::primitive_desc_base& desc, const Ids& ids, const Desc& plain,
                  Workplace& workplace);
  void Run(const void* dy, const void* right, void* result);

 private:
  Ids ids_;
  Kernel multiply_;
  std::optional<OrderedWeights> right_;
};

class LinearBackwardInput {
 public:
  LinearBackwardInput(const LinearShape& shape, Workplace& workplace)
      : shape_(shape), workplace_(workplace) {}
  void Run(const float* weight, const void* saved, void* dy, void* dx, float* dbias);

 private:
  const LinearShape shape_;
  Workplace& workplace_;
  std::optional<GradientProduct> product_;  // created when a dx is first requested
};

class LinearBackwardWeight {
 public:
  LinearBackwardWeight(const LinearShape& shape, Workplace& workplace);
  void Run(const void* x, const void* dy, float* dweight) { product_.Run(dy, x, dweight); }

 private:
  GradientProduct product_;
};

struct ConvForwardShape {
  ConvShape layer;
  bool has_bias;
  auto operator<=>(const ConvForwardShape&) const = default;
};

class ConvForward {
 public:
  ConvForward(const ConvForwardShape& shape, Workplace& workplace);
  void Run(const void* x, const float* weight, const float* bias, void* y);

 private:
  const bool has_bias_;
  dnnl::convolution_forward::primitive_desc desc_;
  Kernel convolve_;
  OrderedWeights filter_;
};

// Both process a few pictures at a time, which fit into the cache.
class ConvBackwardInput {
 public:
  ConvBackwardInput(const ConvShape& shape, Workplace& workplace);
  // `add`: to dx.
  void Run(const float* weight, const void* saved, void* dy, void* dx, float* dbias, bool add);

 private:
  struct Data {
    Data(const ConvShape& shape, Workplace& workplace);
    dnnl::convolution_backward_data::primitive_desc desc;
    Kernel convolve;
    OrderedWeights filter;
    std::optional<dnnl::memory> summand;  // the gradient of a group, if it is added to dx
  };

  const ConvShape shape_;
  const ConvShape group_shape_;  // of the pictures that are processed together
  Workplace& workplace_;
  std::vector<float> group_bias_;
  std::optional<Data> data_;  // created when a dx is first requested: a first layer never needs it
};

class ConvBackwardWeight {
 public:
  ConvBackwardWeight(const ConvShape& shape, Workplace& workplace);
  void Run(const void* x, const void* dy, float* dweight);

 private:
  const ConvShape shape_;
  const ConvShape group_shape_;
  Workplace& workplace_;
  dnnl::convolution_backward_weights::primitive_desc desc_;
  Kernel convolve_;
  OrderedWeights filter_sum_;  // over the groups so far; float32
  dnnl::memory group_filter_;
};

}  // namespace psring::onednn
