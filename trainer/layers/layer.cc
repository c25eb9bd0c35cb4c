#include "trainer/layers/layer.h"

#include <cmath>

namespace psring {

WeightAndBias WeightAndBias::In(ParameterLayout& layout, const std::string& name,
                                std::vector<int> weight_shape, ImageShape image, bool has_bias) {
  const int outputs = weight_shape.front();
  WeightAndBias parameters;
  parameters.weight = layout.tensors()[layout.Add(name + ".weight", std::move(weight_shape), image)];
  if (has_bias) parameters.bias = layout.tensors()[layout.Add(name + ".bias", {outputs})];
  return parameters;
}

void InitializeUniform(const WeightAndBias& parameters, Random& random, float* own) {
  const size_t inputs = parameters.weight.count / static_cast<size_t>(parameters.weight.shape.front());
  const float bound = 1 / std::sqrt(static_cast<float>(inputs));
  for (const Tensor* tensor : {&parameters.weight, &parameters.bias}) {
    for (size_t i = 0; i < tensor->count; ++i) {
      own[tensor->first - parameters.weight.first + i] = random.Uniform(-bound, bound);
    }
  }
}

void InitializeNormal(const Tensor& tensor, float deviation, Random& random, float* values) {
  for (size_t i = 0; i < tensor.count; ++i) values[i] = deviation * random.Normal();
}

}  // namespace psring
