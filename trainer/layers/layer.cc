#include "trainer/layers/layer.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace psring {

WeightAndBias WeightAndBias::In(ParameterLayout& layout, const std::string& name,
                                std::vector<int> weight_shape, ImageShape image, bool has_bias) {
  const int outputs = weight_shape.front();
  WeightAndBias parameters;
  parameters.weight = layout.tensors()[layout.Add(name + ".weight", std::move(weight_shape), image)];
  if (has_bias) parameters.bias = layout.tensors()[layout.Add(name + ".bias", {outputs})];
  return parameters;
}

void InitializeUniform(const WeightAndBias& parameters, Random& random, std::vector<float>& weights) {
  const size_t inputs = parameters.weight.count / static_cast<size_t>(parameters.weight.shape.front());
  const float bound = 1 / std::sqrt(static_cast<float>(inputs));
  for (const Tensor* tensor : {&parameters.weight, &parameters.bias}) {
    for (size_t i = 0; i < tensor->count; ++i) weights[tensor->first + i] = random.Uniform(-bound, bound);
  }
}

void InitializeNormal(const Tensor& tensor, float deviation, Random& random, std::vector<float>& weights) {
  for (size_t i = 0; i < tensor.count; ++i) weights[tensor.first + i] = deviation * random.Normal();
}

void Fill(const Tensor& tensor, float value, std::vector<float>& weights) {
  std::fill_n(weights.begin() + static_cast<std::ptrdiff_t>(tensor.first), tensor.count, value);
}

}  // namespace psring
