#pragma once

#include "trainer/layers/layer.h"

namespace psring {

// Products of vectors; see DotOps. Inputs: a [width], b [others][width].
class DotLayer : public Layer {
 public:
  DotLayer(Dots kind, int others, int width)
      : Layer({.outputs = DotShape{kind, 0, others, width}.outputs(),
               .inputs = {InputGradient::kWritten, InputGradient::kWritten}}),
        shape_{kind, 0, others, width} {}

  void Initialize(Random&, std::vector<float>&) const override {}
  absl::Status Forward(const LayerPass& pass) const override {
    pass.ops.families().dots->Forward(ShapeFor(pass), pass.x[0], pass.x[1], pass.y, pass.stream);
    return absl::OkStatus();
  }
  absl::Status BackwardInput(const LayerPass& pass) const override {
    pass.ops.families().dots->Backward(ShapeFor(pass), pass.x[0], pass.x[1], pass.dy, pass.dx[0], pass.dx[1],
                                       pass.stream);
    return absl::OkStatus();
  }
  absl::Status BackwardWeight(const LayerPass&) const override { return absl::OkStatus(); }

 private:
  DotShape ShapeFor(const LayerPass& pass) const {
    DotShape shape = shape_;
    shape.batch = pass.batch;
    return shape;
  }

  const DotShape shape_;
};

}  // namespace psring
