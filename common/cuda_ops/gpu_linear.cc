#include "common/cuda_ops/gpu_context.h"

namespace psring {
namespace {

class GpuLinear : public LinearOps {
 public:
  explicit GpuLinear(GpuContext& context) : context_(context) {}

  void Forward(const LinearShape& s, ConstSpan x, ConstSpan weight, ConstSpan bias, ConstSpan residual,
               Span y, Span saved, Stream& stream) override {
    CheckForward(s, x, weight, bias, residual, y, saved);
    context_.CheckActivations({x, residual, y, saved});
    const bool gelu = s.activation == Activation::kGelu, add = residual.data != nullptr;
    if (add) stream.Copy(y.data, residual.data, y.bytes());
    context_.math().Enqueue(stream, "linear forward", [=, this]() -> absl::Status {
      PSRING_ASSIGN_OR_RETURN(const GpuWeights w, context_.Rounded(weight, bias));
      PSRING_RETURN_IF_ERROR(context_.Forward(s, x.data, w, gelu ? saved.data : y.data, add));
      if (!gelu) return absl::OkStatus();
      return context_.Launch(y.count, [&]<typename T>(T) {
        return gpu::Gelu<T>{Elements<T>(saved), Elements<T>(y)};
      });
    });
  }

  void BackwardInput(const LinearShape& s, ConstSpan weight, ConstSpan saved, Span dy, Span dx, Span dbias,
                     Stream& stream) override {
    CheckBackwardInput(CountsOf(s), s.activation, weight, saved, dy, dx, dbias);
    context_.CheckActivations({saved, dy, dx});
    context_.math().Enqueue(stream, "linear backward, input", [=, this]() -> absl::Status {
      PSRING_RETURN_IF_ERROR(context_.ActivationGradient(s.activation, s.batch, s.outputs, saved, dy, dbias));
      if (dx.data == nullptr) return absl::OkStatus();
      PSRING_ASSIGN_OR_RETURN(const GpuWeights w, context_.Rounded(weight, {}));
      return context_.InputGradient(s, dy.data, w, context_.activations(), dx.data);
    });
  }

  void BackwardWeight(const LinearShape& s, ConstSpan x, ConstSpan dy, Span dweight,
                      Stream& stream) override {
    CheckBackwardWeight(CountsOf(s), x, dy, dweight);
    context_.CheckActivations({x, dy});
    context_.math().Enqueue(stream, "linear backward, weight", [=, this] {
      return context_.WeightGradient(s, x.data, dy.data, dweight.floats(), /*add=*/false);
    });
  }

 private:
  GpuContext& context_;
};

}  // namespace

std::unique_ptr<LinearOps> MakeGpuLinear(GpuContext& context) { return std::make_unique<GpuLinear>(context); }

}  // namespace psring
