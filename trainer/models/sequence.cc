#include "trainer/models/sequence.h"

namespace psring {

Sequence::Sequence(ParameterLayout layout, std::vector<std::unique_ptr<Layer>> layers, int max_batch,
                   Ops& ops)
    : layout_(std::move(layout)), layers_(std::move(layers)), max_batch_(max_batch), ops_(ops) {}

absl::StatusOr<std::unique_ptr<Model>> Sequence::Create(ParameterLayout layout,
                                                        std::vector<std::unique_ptr<Layer>> layers,
                                                        size_t inputs, int max_batch, Device& device,
                                                        Ops& ops) {
  const DType type = ops.activations();
  for (const auto& layer : layers) PSRING_RETURN_IF_ERROR(layer->Allocate(max_batch, type, device));
  auto model = std::unique_ptr<Sequence>(new Sequence(std::move(layout), std::move(layers), max_batch, ops));
  if (type != DType::kFloat32) {
    PSRING_ASSIGN_OR_RETURN(model->inputs_, device.Allocate(max_batch * inputs * SizeOf(type)));
  }
  return model;
}

ConstSpan Sequence::InputsOf(const Batch& batch) const {
  if (inputs_.data() == nullptr) return batch.inputs;
  return inputs_.span(ops_.activations()).Slice(0, batch.inputs.count);
}

std::vector<float> Sequence::InitialWeights(uint64_t seed) const {
  std::vector<float> weights(layout_.count());
  Random random(seed, /*stream=*/4);
  for (const auto& layer : layers_) layer->Initialize(random, weights);
  return weights;
}

ConstSpan Sequence::Outputs(ConstSpan weights, const Batch& batch, Stream& stream) {
  PSRING_CHECK(batch.size <= max_batch_);
  if (batch.size == 0) return {};  // a rank's share of a short last batch may be empty
  ConstSpan x = InputsOf(batch);
  if (x.type != batch.inputs.type) {
    ops_.Convert(batch.inputs, inputs_.span(x.type).Slice(0, x.count), stream);
  }
  for (const auto& layer : layers_) {
    layer->Forward(batch.size, weights, x, ops_, stream);
    x = layer->output(batch.size);
  }
  return x;
}

void Sequence::Forward(ConstSpan weights, const Batch& batch, BatchScore* score, Stream& stream) {
  const ConstSpan outputs = Outputs(weights, batch, stream);
  if (batch.size == 0) return;
  ops_.families().loss->SoftmaxCrossEntropy(batch.size, static_cast<int>(layers_.back()->outputs()), outputs,
                                            batch.labels, OutputGradient(batch.size), &score->loss_sum,
                                            &score->correct, stream);
}

void Sequence::Backward(ConstSpan weights, const Batch& batch, Span gradient, Stream& stream,
                        const GradientReady& ready) {
  if (batch.size == 0) {
    stream.Zero(gradient.data, gradient.bytes());
    ready({0, gradient.count});
    return;
  }
  for (size_t i = layers_.size(); i-- > 0;) {
    // The gradient of the images is not needed.
    const ConstSpan x = i > 0 ? ConstSpan(layers_[i - 1]->output(batch.size)) : InputsOf(batch);
    const Span dx = i > 0 ? layers_[i - 1]->output_gradient(batch.size) : Span{};
    layers_[i]->Backward(batch.size, weights, x, dx, gradient, ops_, stream);
    if (layers_[i]->parameters().count > 0) ready(layers_[i]->parameters());
  }
}

}  // namespace psring
