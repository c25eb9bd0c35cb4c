// Linear and convolution layers of one shape on oneDNN: their primitives, created once, and the reordering
// between them. Constructors and calls throw dnnl::error. They borrow the workplace.
#pragma once

#include <optional>

#include "common/ops/onednn_kernel.h"
#include "common/ops/onednn_primitives.h"
#include "common/ops/ops.h"

namespace psring::onednn {

// Weights in the layout and type that a primitive chose.
class OrderedWeights {
 public:
  // From `plain`, which is float32, to `ordered`, or back.
  OrderedWeights(const Desc& plain, const Desc& ordered, bool back, Workplace& workplace);

  void FromPlain(const float* plain) { reorder_.Run({{DNNL_ARG_FROM, plain}, {DNNL_ARG_TO, data()}}); }
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

class LinearForward {
 public:
  LinearForward(const LinearShape& shape, Workplace& workplace);
  void Run(const void* x, const float* weight, const float* bias, void* y);

 private:
  dnnl::matmul::primitive_desc desc_;
  Kernel multiply_;
  std::optional<OrderedWeights> weights_;  // if the primitive cannot read them directly
};

class LinearBackward {
 public:
  LinearBackward(const LinearShape& shape, Workplace& workplace);
  void Run(const void* x, const float* weight, const void* y, void* dy, void* dx, float* dweight,
           float* dbias);

 private:
  LinearShape shape_;
  DType type_;
  dnnl::inner_product_backward_data::primitive_desc desc_;
  Kernel data_, weights_;
  std::optional<OrderedWeights> ordered_;  // if the primitive cannot write them directly
};

class ConvForward {
 public:
  ConvForward(const ConvShape& shape, Workplace& workplace);
  void Run(const void* x, const float* weight, const float* bias, void* y);

 private:
  dnnl::convolution_forward::primitive_desc desc_;
  Kernel convolve_;
  OrderedWeights filter_;
};

// Processes a few pictures at a time: masks dy, then reads it for dx and dweight while it is in the cache.
class ConvBackward {
 public:
  ConvBackward(const ConvShape& shape, Workplace& workplace);
  void Run(const void* x, const float* weight, const void* y, void* dy, void* dx, float* dweight,
           float* dbias);

 private:
  struct Data {
    Data(const ConvShape& shape, Workplace& workplace);
    dnnl::convolution_backward_data::primitive_desc desc;
    Kernel convolve;
    OrderedWeights filter;
  };
  struct Weights {
    Weights(const ConvShape& shape, Workplace& workplace);
    dnnl::convolution_backward_weights::primitive_desc desc;
    Kernel convolve;
    OrderedWeights filter_sum;  // over the groups so far; float32
    dnnl::memory filter, bias;  // of a group
  };

  const ConvShape shape_;
  const ConvShape group_shape_;  // of the pictures that are processed together
  Workplace& workplace_;
  Weights weights_;
  std::optional<Data> data_;  // created when a dx is first requested: a first layer never needs it
};

}  // namespace psring::onednn
