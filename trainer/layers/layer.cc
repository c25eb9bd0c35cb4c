#include "trainer/layers/layer.h"

#include <cmath>

namespace psring {

WeightAndBias::WeightAndBias(const std::string& name, std::vector<int> weight_shape, ParameterLayout& layout,
                             ImageShape image) {
  const int outputs = weight_shape.front();
  // By value: the layout's list may move when it grows.
  weight = layout.tensors()[layout.Add(name + ".weight", std::move(weight_shape), image)];
  bias = layout.tensors()[layout.Add(name + ".bias", {outputs})];
  fan_in = weight.count / outputs;
}

void WeightAndBias::Initialize(Random& random, std::vector<float>& weights) const {
  const float bound = 1 / std::sqrt(static_cast<float>(fan_in));
  for (const Tensor* tensor : {&weight, &bias}) {
    for (size_t i = 0; i < tensor->count; ++i) weights[tensor->first + i] = random.Uniform(-bound, bound);
  }
}

}  // namespace psring
