#include "trainer/layers/sequence.h"

#include <cstring>

namespace psring {

Sequence::Sequence(ParameterLayout layout, std::vector<std::unique_ptr<Layer>> layers, int max_batch,
                   Ops& ops)
    : layout_(std::move(layout)), layers_(std::move(layers)), max_batch_(max_batch), ops_(ops) {}

absl::StatusOr<std::unique_ptr<Model>> Sequence::Create(ParameterLayout layout,
                                                        std::vector<std::unique_ptr<Layer>> layers,
                                                        int max_batch, Device& device, Ops& ops) {
  for (const auto& layer : layers) PSRING_RETURN_IF_ERROR(layer->Allocate(max_batch, device));
  return std::unique_ptr<Model>(new Sequence(std::move(layout), std::move(layers), max_batch, ops));
}

std::vector<float> Sequence::InitialWeights(uint64_t seed) const {
  std::vector<float> weights(layout_.count());
  Random random(seed, /*stream=*/4);
  for (const auto& layer : layers_) layer->Initialize(random, weights);
  return weights;
}

void Sequence::Forward(ConstSpan weights, const Batch& batch, BatchScore* score, Stream& stream) {
  PSRING_CHECK(batch.size <= max_batch_);
  if (batch.size == 0) return;  // a rank's share of a short last batch may be nothing
  ConstSpan x = batch.inputs;
  for (const auto& layer : layers_) {
    layer->Forward(batch.size, weights, x, ops_, stream);
    x = layer->output(batch.size);
  }
  const Layer& last = *layers_.back();
  ops_.SoftmaxCrossEntropy(batch.size, static_cast<int>(last.outputs()), x, batch.labels,
                           last.output_gradient(batch.size), &score->loss_sum, &score->correct, stream);
}

void Sequence::Backward(ConstSpan weights, const Batch& batch, Span gradient, Stream& stream,
                        const GradientReady& ready) {
  if (batch.size == 0) {
    stream.Run([gradient] {
      std::memset(gradient.data, 0, gradient.bytes());
      return absl::OkStatus();
    });
    ready({0, gradient.count});
    return;
  }
  for (size_t i = layers_.size(); i-- > 0;) {
    // Nobody asks for the gradient of the pictures.
    const ConstSpan x = i > 0 ? ConstSpan(layers_[i - 1]->output(batch.size)) : batch.inputs;
    const Span dx = i > 0 ? layers_[i - 1]->output_gradient(batch.size) : Span{};
    layers_[i]->Backward(batch.size, weights, x, dx, gradient, ops_, stream);
    if (layers_[i]->parameters().count > 0) ready(layers_[i]->parameters());
  }
}

}  // namespace psring
