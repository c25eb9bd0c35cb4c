#pragma once

#include <memory>
#include <vector>

#include "trainer/layers/layer.h"
#include "trainer/models/model.h"

namespace psring {

// A model of consecutive layers, with softmax cross-entropy after the last.
class Sequence : public Model {
 public:
  // `layers` have added their parameters to `layout`, in order. `inputs`: elements of a sample. `ops`
  // outlives the model.
  static absl::StatusOr<std::unique_ptr<Model>> Create(ParameterLayout layout,
                                                       std::vector<std::unique_ptr<Layer>> layers,
                                                       size_t inputs, int max_batch, Device& device,
                                                       Ops& ops);

  const ParameterLayout& parameters() const override { return layout_; }
  std::vector<float> InitialWeights(uint64_t seed) const override;
  void Forward(ConstSpan weights, const Batch& batch, BatchScore* score, Stream& stream) override;
  ConstSpan Outputs(ConstSpan weights, const Batch& batch, Stream& stream) override;
  Span OutputGradient(int batch) override { return layers_.back()->output_gradient(batch); }
  void Backward(ConstSpan weights, const Batch& batch, Span gradient, Stream& stream,
                const GradientReady& ready) override;

 private:
  Sequence(ParameterLayout layout, std::vector<std::unique_ptr<Layer>> layers, int max_batch, Ops& ops);

  const ParameterLayout layout_;
  const std::vector<std::unique_ptr<Layer>> layers_;
  // What the first layer reads.
  ConstSpan InputsOf(const Batch& batch) const;

  const int max_batch_;
  Ops& ops_;
  Buffer inputs_;  // of the last Forward, if layers do not read float32
};

}  // namespace psring
