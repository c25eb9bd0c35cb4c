// A model that is a graph of layers, with softmax cross-entropy after the last.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "trainer/layers/layer.h"
#include "trainer/models/memory_plan.h"
#include "trainer/models/model.h"

namespace psring {

class Network : public Model {
 public:
  // Adds layers in the order of forward.
  class Builder {
   public:
    explicit Builder(const SampleSpec& samples) : samples_(samples) {}

    // For the constructors of layers.
    ParameterLayout& layout() { return layout_; }
    // Input i of the samples.
    int Input(int i) const { return i; }
    // A layer that reads these values. Returns its output. A value that several layers read needs an input
    // that can add its gradient (memory_plan.h).
    int Add(std::unique_ptr<Layer> layer, std::vector<int> inputs);
    // The layers that `add` adds are a unit, which Keep::kUnitInputs computes twice. Layers after it read
    // only the output of its last layer.
    void AddUnit(const std::function<void()>& add);
    // `ops` outlives the model. The last layer's output has samples.labels * samples.classes elements.
    std::unique_ptr<Model> Build(Ops& ops);

   private:
    friend class Network;
    const SampleSpec samples_;
    ParameterLayout layout_;
    std::vector<std::unique_ptr<Layer>> layers_;
    std::vector<LayerPlace> places_;
    std::vector<Unit> units_;
  };

  const ParameterLayout& parameters() const override { return parts_.layout_; }
  size_t layers() const override { return parts_.layers_.size(); }
  std::vector<ReadyRange> CompleteAfterLayers() const override;
  std::vector<float> InitialWeights(uint64_t seed) const override;
  absl::StatusOr<Activations> NewActivations(int max_batch, Keep keep, Device& device) const override;
  absl::StatusOr<Span> ForwardUnit(LayerRange unit, const ModelState& state, const Batch& batch,
                                   Activations& activations, Stream& stream) override;
  absl::Status Loss(const Batch& batch, Activations& activations, BatchScore* score, Stream& stream) override;
  absl::Status BackwardUnit(LayerRange unit, const ModelState& state, const Batch& batch,
                            Activations& activations, Span gradient, Stream& stream) override;

 private:
  Network(Builder parts, Ops& ops);

  // The memory of layer `l` in forward; `values` of the activations include converted inputs.
  LayerPass PassOf(size_t l, const ModelState& state, const Batch& batch, Activations& activations,
                   Stream& stream) const;
  size_t ElementsOf(int value) const;
  // Before backward of layer `l`: what forward did not keep of the unit that ends with it, if one does.
  absl::Status Recompute(size_t l, const ModelState& state, const Batch& batch, Activations& activations,
                         Stream& stream) const;

  const Builder parts_;
  Ops& ops_;
  const GradientPlan plan_;
  // By layer: whether its parameters are complete after it in backward, because no layer before it in forward
  // shares them; and whether a layer after it does.
  std::vector<bool> completes_, adds_;
};

}  // namespace psring
