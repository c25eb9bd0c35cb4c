#pragma once

#include <memory>
#include <vector>

#include "trainer/layers/layer.h"
#include "trainer/model.h"

namespace psring {

// A model that is one layer after the other, with softmax cross-entropy behind the last.
class Sequence : public Model {
 public:
  // `layers` have put their parameters into `layout`, in order. `ops` must outlive the model.
  static absl::StatusOr<std::unique_ptr<Model>> Create(ParameterLayout layout,
                                                       std::vector<std::unique_ptr<Layer>> layers,
                                                       int max_batch, Device& device, Ops& ops);

  const ParameterLayout& parameters() const override { return layout_; }
  std::vector<float> InitialWeights(uint64_t seed) const override;
  void Forward(ConstSpan weights, const Batch& batch, BatchScore* score, Stream& stream) override;
  void Backward(ConstSpan weights, const Batch& batch, Span gradient, Stream& stream,
                const GradientReady& ready) override;

 private:
  Sequence(ParameterLayout layout, std::vector<std::unique_ptr<Layer>> layers, int max_batch, Ops& ops);

  const ParameterLayout layout_;
  const std::vector<std::unique_ptr<Layer>> layers_;
  const int max_batch_;
  Ops& ops_;
};

}  // namespace psring
