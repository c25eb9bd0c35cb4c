// A checkpoint of a small model, for tests.
#pragma once

#include <vector>

#include "trainer/checkpoints/checkpoint.h"

namespace psring {

// A convolution of 2 filters over 3 channels, and a linear layer after an image of 2 x 2 with 2 channels. Has
// padding after each tensor.
inline ParameterLayout SmallLayout() {
  ParameterLayout layout;
  layout.Add("conv1.weight", {2, 2, 1, 3}, {.height = 2, .width = 1, .channels = 3});
  layout.Add("conv1.bias", {2});
  layout.Add("fc1.weight", {1, 8}, {.height = 2, .width = 2, .channels = 2});
  layout.Add("fc1.bias", {1});
  return layout;
}

// Distinct values for all parameters, and 0 for the padding.
inline std::vector<float> SmallValues(float scale = 1) {
  const ParameterLayout layout = SmallLayout();
  std::vector<float> flat(layout.count());
  for (const Tensor& tensor : layout.tensors()) {
    for (size_t i = tensor.first; i < tensor.first + tensor.count; ++i)
      flat[i] = scale * static_cast<float>(i + 1);
  }
  return flat;
}

inline TrainingCheckpoint SmallCheckpoint(OptimizerKind kind = OptimizerKind::kAdam) {
  TrainingCheckpoint checkpoint;
  TrainingPosition& p = checkpoint.position;
  p.model = "mlp";
  p.data = "synthetic";
  p.strategy = "ring";
  p.data_count = 1000;
  p.drawn_batch = 32;
  p.workers = 2;
  p.seed = UINT64_MAX;
  p.optimizer.kind = kind;
  p.schedule = {.decay = LrDecay::kLinear, .base = .1, .scale = 2, .warmup_samples = 5, .total_samples = 99};
  p.flags = {"--lr=0.1"};
  p.sequence = 7;
  p.step = 40;
  p.updates = 40;
  p.samples = 1280;
  p.epoch = 1;
  p.epoch_samples = 288;
  p.ready_order = {"fc1.bias", "fc1.weight", "conv1.bias", "conv1.weight"};
  p.worker_steps = {39, 41};
  checkpoint.weights = SmallValues();
  for (size_t slot = 0; slot < OptimizerSlots(kind).size(); ++slot)
    checkpoint.slots.push_back(SmallValues(static_cast<float>(slot) + .25f));
  return checkpoint;
}

}  // namespace psring
