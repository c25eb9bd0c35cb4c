// A model that is a graph of layers, with softmax cross-entropy after the last; or stages of one.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "trainer/layers/layer.h"
#include "trainer/layers/tensor_axis.h"
#include "trainer/layers/vocabulary_loss.h"
#include "trainer/models/memory_plan.h"
#include "trainer/models/model.h"
#include "trainer/models/model_stages.h"

namespace psring {

class Network : public Model {
 public:
  // Adds layers in the order of forward.
  class Builder {
   public:
    // The ranks of `place` divide the classes, and whatever the layers divide.
    explicit Builder(const SampleSpec& samples, const TensorPlace& place = {})
        : samples_(samples), classes_(place.ShareOf(samples.classes).count) {
      if (place.ranks > 1) loss_.emplace(place, samples.classes);
    }

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
    // `ops` outlives the model. The last layer's output has samples.labels elements for each of this rank's
    // classes.
    std::unique_ptr<Model> Build(Ops& ops);

   private:
    friend class Network;
    const SampleSpec samples_;
    const int classes_;                   // on this rank
    std::optional<VocabularyLoss> loss_;  // of divided classes
    ParameterLayout layout_;
    std::vector<std::unique_ptr<Layer>> layers_;
    std::vector<LayerPlace> places_;
    std::vector<LayerRange> units_;
  };

  const ParameterLayout& parameters() const override { return layout_; }
  size_t layers() const override { return layers_.size(); }
  std::vector<ReadyRange> CompleteAfterLayers() const override;
  std::vector<size_t> EarlyElements() const override;
  std::vector<ReadyRange> LayerParameters() const override;
  std::vector<LayerRange> RecomputedUnits() const override;
  std::vector<float> InitialWeights(uint64_t seed) const override;
  void DrawWeights(uint64_t seed, const TakeWeights& take) const override;
  size_t PieceBytes(int max_batch) const override;
  size_t ExchangeBytes(int max_batch) const override;
  double SentBytes(LayerRange stage, int batch, bool recomputes) const override;
  std::vector<bool> ExchangingLayers() const override;
  absl::StatusOr<Activations> NewActivations(int max_batch, Keep keep, Device& device) const override;
  absl::StatusOr<Span> ForwardUnit(LayerRange unit, const ModelState& state, const Batch& batch,
                                   Activations& activations, Stream& stream) override;
  absl::Status Loss(const Batch& batch, Activations& activations, BatchScore* score, Stream& stream) override;
  absl::Status BackwardUnit(LayerRange unit, const ModelState& state, const Batch& batch,
                            Activations& activations, Span gradient, Stream& stream) override;
  // Empty also if the network has tables.
  std::vector<size_t> CutPoints() const override;
  size_t BoundaryElements(size_t layer) const override { return whole_.layers_[layer - 1]->traits().outputs; }
  absl::StatusOr<std::unique_ptr<Model>> TakeStages(const std::vector<LayerRange>& stages) && override;
  StageEdges EdgesOf(size_t stage, Activations& activations, int size) const override;

 private:
  // Layers that are computed together: all, or those of a stage.
  struct Stage {
    LayerRange whole = {};   // in the whole network
    size_t first = 0;        // of its layers, here
    size_t first_value = 0;  // in Activations
    // Values are numbered within the stage, its inputs first, and layers of units from its first one.
    std::vector<size_t> inputs = {};  // elements: of the samples' inputs, or of the stage's
    std::vector<LayerPlace> places = {};
    std::vector<LayerRange> units = {};
    GradientPlan plan = {}, plan_for_weights = {};  // the second for Keep::kForWeights

    size_t values() const { return inputs.size() + places.size(); }
    size_t ElementsOf(size_t value) const {
      return value < inputs.size() ? inputs[value] : places[value - inputs.size()].traits->outputs;
    }
  };
  struct PlacedLayer {
    const Layer* layer = nullptr;
    size_t stage = 0;
    ReadyRange parameters = {}, buffers = {};  // in layout_
    // Whether its parameters are complete after it in backward, because no layer before it in forward shares
    // them; and whether a layer after it does.
    bool completes = false, adds = false;
  };

  Network(Builder whole, const std::vector<LayerRange>& stages, Ops& ops);
  Stage StageOf(const LayerRange& range) const;
  void PlaceLayers();  // sets layout_ and what depends on it
  bool is_whole() const { return stages_.size() == 1 && layers_.size() == whole_.layers_.size(); }
  bool reads_samples(const Stage& stage) const { return stage.whole.first == 0; }
  bool has_loss(const Stage& stage) const { return stage.whole.end == whole_.layers_.size(); }

  // The memory of layer `l` in forward; `values` of the activations include converted inputs.
  LayerPass PassOf(size_t l, const ModelState& state, const Batch& batch, Activations& activations,
                   Stream& stream) const;
  // Before backward of layer `l`: what forward did not keep of the unit that ends with it, if one does.
  absl::Status Recompute(size_t l, const ModelState& state, const Batch& batch, Activations& activations,
                         Stream& stream) const;

  Builder whole_;  // which the stages are of
  Ops& ops_;
  std::vector<Stage> stages_;
  std::vector<PlacedLayer> layers_;
  ParameterLayout layout_;
  LayoutPart tensors_;  // of layout_, in that of the whole network
};

}  // namespace psring
