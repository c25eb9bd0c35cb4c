#include "common/cuda_ops/gpu_layers.h"
#include "common/ops/ops_common.h"

namespace psring {

void GpuLinear::Forward(const LinearShape& s, ConstSpan x, ConstSpan weight, ConstSpan bias, Span y,
                        Stream& stream) {
  CheckForward(s, x, weight, bias, y);
  context_.CheckTypes({x, y});
  context_.math().Enqueue(stream, "linear forward", [=, this]() -> absl::Status {
    PSRING_ASSIGN_OR_RETURN(const GpuWeights w, context_.Rounded(weight, bias));
    return context_.Forward(s, x.data, w, y.data);
  });
}

void GpuLinear::BackwardInput(const LinearShape& s, ConstSpan weight, ConstSpan saved, Span dy, Span dx,
                              Span dbias, Stream& stream) {
  CheckBackwardInput(s, weight, saved, dy, dx, dbias);
  context_.CheckTypes({saved, dy, dx});
  const void* const mask = s.activation == Activation::kRelu ? saved.data : nullptr;
  context_.math().Enqueue(stream, "linear backward, input", [=, this]() -> absl::Status {
    PSRING_RETURN_IF_ERROR(context_.MaskAndSum(s.batch, s.outputs, mask, dy, dbias));
    if (dx.data == nullptr) return absl::OkStatus();
    PSRING_ASSIGN_OR_RETURN(const GpuWeights w, context_.Rounded(weight, {}));
    return context_.InputGradient(s, dy.data, w, context_.activations(), dx.data);
  });
}

void GpuLinear::BackwardWeight(const LinearShape& s, ConstSpan x, ConstSpan dy, Span dweight,
                               Stream& stream) {
  CheckBackwardWeight(s, x, dy, dweight);
  context_.CheckTypes({x, dy});
  context_.math().Enqueue(stream, "linear backward, weight", [=, this] {
    return context_.WeightGradient(s, x.data, dy.data, dweight.floats(), /*add=*/false);
  });
}

}  // namespace psring
