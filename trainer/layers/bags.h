#pragma once

#include <memory>
#include <string>
#include <vector>

#include "trainer/layers/layer.h"

namespace psring {

// For each bag of a sample, the sum of its rows of a table: [bags][width]. Its tables read one input of the
// samples, which is the layer's input. The tables are not in the flat buffers: LayerPass::rows has the
// values and the gradient of the rows that a step touches.
class BagLayer : public Layer {
 public:
  // Adds `tables`, all of the same width and input, to `layout`. `lookups`: of the input.
  BagLayer(const std::vector<Table>& tables, int lookups, ParameterLayout& layout);

  void Initialize(Random&, std::vector<float>&) const override {}
  absl::Status Forward(const LayerPass& pass) const override;
  absl::Status BackwardInput(const LayerPass&) const override { return absl::OkStatus(); }
  absl::Status BackwardWeight(const LayerPass& pass) const override;

 private:
  struct Own {
    int number;  // of the table in the layout
    BagShape shape;
  };
  std::vector<Own> own_;
  int input_;
};

}  // namespace psring
