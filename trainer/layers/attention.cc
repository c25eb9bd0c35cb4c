#include "trainer/layers/layers.h"

namespace psring {
namespace {

class AttentionLayer : public LayerWithoutParameters {
 public:
  AttentionLayer(int context, int heads, int head_size)
      : LayerWithoutParameters({.outputs = size_t{1} * context * heads * head_size,
                                .kept_bytes = sizeof(float) * context * heads}),
        shape_{.batch = 0, .context = context, .heads = heads, .head_size = head_size} {}

  absl::Status Forward(const LayerPass& pass) const override {
    pass.ops.families().attention->Forward(ForBatch(shape_, pass.batch), pass.x[0], pass.y, LogSumsOf(pass),
                                           pass.stream);
    return absl::OkStatus();
  }
  absl::Status BackwardInput(const LayerPass& pass) const override {
    pass.ops.families().attention->Backward(ForBatch(shape_, pass.batch), pass.x[0], pass.y, LogSumsOf(pass),
                                            pass.dy, pass.dx[0], pass.stream);
    return absl::OkStatus();
  }

 private:
  Span LogSumsOf(const LayerPass& pass) const {
    return {pass.kept, size_t{1} * pass.batch * shape_.context * shape_.heads, DType::kFloat32};
  }

  const AttentionShape shape_;
};

}  // namespace

std::unique_ptr<Layer> MakeAttention(int context, int heads, int head_size) {
  return std::make_unique<AttentionLayer>(context, heads, head_size);
}

}  // namespace psring
