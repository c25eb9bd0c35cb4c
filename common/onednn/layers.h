// Linear and convolution layers of one shape on oneDNN: their primitives, made once, and what goes between
// them. Constructors and calls throw dnnl::error. Borrow the workplace.
#pragma once

#include <optional>

#include "common/onednn/kernel.h"
#include "common/onednn/primitives.h"
#include "common/ops.h"

namespace psring::onednn {

class LinearForward {
 public:
  LinearForward(const LinearShape& shape, Workplace& workplace);
  void Run(const float* x, const float* weight, const float* bias, float* y);

 private:
  Kernel multiply_;
};

class LinearBackward {
 public:
  LinearBackward(const LinearShape& shape, Workplace& workplace);
  // Arguments as in Ops; dx may be null.
  void Run(const float* x, const float* weight, const float* y, float* dy, float* dx, float* dweight,
           float* dbias);

 private:
  LinearShape shape_;
  Kernel data_, weights_;
};

// A filter in the layout that a primitive asked for.
class OrderedFilter {
 public:
  // From `plain` to `ordered`, or back.
  OrderedFilter(const Desc& plain, const Desc& ordered, bool back, Workplace& workplace);

  void FromPlain(const float* plain) { reorder_.Run({{DNNL_ARG_FROM, plain}, {DNNL_ARG_TO, data()}}); }
  void ToPlain(float* plain) { reorder_.Run({{DNNL_ARG_FROM, data()}, {DNNL_ARG_TO, plain}}); }
  float* data() const { return static_cast<float*>(memory_.get_data_handle()); }
  size_t count() const { return memory_.get_desc().get_size() / sizeof(float); }

 private:
  dnnl::memory memory_;
  Kernel reorder_;
};

class ConvForward {
 public:
  ConvForward(const ConvShape& shape, Workplace& workplace);
  void Run(const float* x, const float* weight, const float* bias, float* y);

 private:
  dnnl::convolution_forward::primitive_desc desc_;
  Kernel convolve_;
  OrderedFilter filter_;
};

// Works on a few pictures at a time: masks dy, then reads it for dx and dweight while it is in the cache.
class ConvBackward {
 public:
  ConvBackward(const ConvShape& shape, int threads, Workplace& workplace);
  // Arguments as in Ops; dx may be null.
  void Run(const float* x, const float* weight, const float* y, float* dy, float* dx, float* dweight,
           float* dbias);

 private:
  struct Data {
    Data(const ConvShape& shape, Workplace& workplace);
    dnnl::convolution_backward_data::primitive_desc desc;
    Kernel convolve;
    OrderedFilter filter;
  };
  struct Weights {
    Weights(const ConvShape& shape, Workplace& workplace);
    dnnl::convolution_backward_weights::primitive_desc desc;
    Kernel convolve;
    OrderedFilter filter_sum;   // over the groups so far
    dnnl::memory filter, bias;  // of a group
  };

  const ConvShape shape_;
  const ConvShape group_shape_;  // of the pictures that are worked on together
  Workplace& workplace_;
  Weights weights_;
  std::optional<Data> data_;  // made when a dx is first asked for: a first layer never does
};

}  // namespace psring::onednn
