#include "trainer/layers/layer.h"

#include <cmath>

namespace psring {

WeightAndBias WeightAndBias::In(ParameterLayout& layout, const std::string& name,
                                std::vector<int> weight_shape, ImageShape image, bool has_bias,
                                TensorPart weight_part, TensorPart bias_part) {
  const int outputs = weight_shape.front();
  const int weight = layout.Add(name + ".weight", std::move(weight_shape), image, weight_part);
  WeightAndBias parameters{.weight = layout.tensors()[weight], .bias = {}};
  if (has_bias) parameters.bias = layout.tensors()[layout.Add(name + ".bias", {outputs}, {}, bias_part)];
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
  const TensorPart& part = tensor.part;
  const size_t inner = tensor.inner(), whole = tensor.is_part() ? part.whole : 1;
  const size_t first = tensor.is_part() ? part.first : 0, count = tensor.is_part() ? part.count : 1;
  for (size_t outer = 0; outer < part.outer; ++outer) {
    for (size_t at = 0; at < whole; ++at) {
      float* const own = at >= first && at < first + count ? values : nullptr;
      for (size_t i = 0; i < inner; ++i) {
        const float drawn = deviation * random.Normal();
        if (own != nullptr) own[i] = drawn;
      }
      if (own != nullptr) values += inner;
    }
  }
}

}  // namespace psring
