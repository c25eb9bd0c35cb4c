// What linear layers and convolutions on oneDNN share: layers of one shape, created once, and the reordering
// of their weights. They borrow the workplace.
#pragma once

#include <omp.h>

#include <map>
#include <memory>
#include <string>
#include <utility>

#include "common/base/errors.h"
#include "common/ops/onednn_kernel.h"
#include "common/ops/ops_common.h"

namespace psring::onednn {

std::unique_ptr<LinearOps> MakeLinear(Workplace& workplace);
std::unique_ptr<ConvolutionOps> MakeConvolution(Workplace& workplace);

// Weights in the layout and type that a primitive chose.
class OrderedWeights {
 public:
  // From `plain`, which is float32, to `ordered`, or back.
  OrderedWeights(const Desc& plain, const Desc& ordered, bool back, Workplace& workplace)
      : memory_(ordered, workplace.engine()),
        reorder_(dnnl::reorder::primitive_desc(workplace.engine(), back ? ordered : plain, workplace.engine(),
                                               back ? plain : ordered, Attributes()),
                 workplace) {}

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

// A forward pass; as a key, its place in a map.
template <typename Shape>
struct ForwardShape {
  Shape layer;
  bool has_bias, has_residual = false;
  auto operator<=>(const ForwardShape&) const = default;
};

// For errors.
std::string NameOf(const LinearShape& s);
std::string NameOf(const ConvShape& s);
template <typename Shape>
std::string NameOf(const ForwardShape<Shape>& s) {
  return NameOf(s.layer);
}

// Layers of one kind, by shape; each is created when it is first used. Borrows the workplace.
template <typename Shape, typename Layer>
class Layers {
 public:
  explicit Layers(Workplace& workplace) : workplace_(workplace) {}

  // Calls `work` with the layer of this shape. Converts oneDNN's exceptions to a status.
  template <typename Work>
  void Enqueue(const Shape& shape, Stream& stream, Work work) {
    stream.Run([this, shape, work = std::move(work)] {
      // Of the thread that runs the stream, which may not be the caller.
      omp_set_num_threads(workplace_.threads());
      try {
        std::unique_ptr<Layer>& layer = layers_[shape];
        if (layer == nullptr) layer = std::make_unique<Layer>(shape, workplace_);
        work(*layer);
      } catch (const dnnl::error& error) {
        return Internal("oneDNN: ", NameOf(shape), ": ", error.what());
      }
      return absl::OkStatus();
    });
  }

 private:
  Workplace& workplace_;
  std::map<Shape, std::unique_ptr<Layer>> layers_;
};

// What the backward passes of `Family`, linear layers or convolutions, share.
template <typename Family, typename Shape, typename InputLayer, typename WeightLayer>
class BackwardOps : public Family {
 public:
  void BackwardWeight(const Shape& shape, ConstSpan x, ConstSpan dy, Span dweight, Stream& stream) override {
    CheckBackwardWeight(CountsOf(shape), x, dy, dweight);
    CheckTypes(type_, {x, dy});
    weight_.Enqueue(shape, stream, [=](WeightLayer& layer) { layer.Run(x.data, dy.data, dweight.floats()); });
  }

 protected:
  explicit BackwardOps(Workplace& workplace)
      : type_(workplace.activations()), input_(workplace), weight_(workplace) {}
  DType type() const { return type_; }

  // `more`: further arguments of the layer's Run.
  template <typename... More>
  void EnqueueInput(const Shape& shape, ConstSpan weight, ConstSpan saved, Span dy, Span dx, Span dbias,
                    Stream& stream, More... more) {
    CheckBackwardInput(CountsOf(shape), shape.activation, weight, saved, dy, dx, dbias);
    CheckTypes(type_, {saved, dy, dx});
    input_.Enqueue(shape, stream, [=](InputLayer& layer) {
      layer.Run(weight.floats(), saved.data, dy.data, dx.data, dbias.floats(), more...);
    });
  }

 private:
  const DType type_;
  Layers<Shape, InputLayer> input_;
  Layers<Shape, WeightLayer> weight_;
};

}  // namespace psring::onednn
