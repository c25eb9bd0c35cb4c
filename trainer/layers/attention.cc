#include "trainer/layers/attention.h"

namespace psring {

AttentionLayer::AttentionLayer(int context, int heads, int head_size)
    : Layer({.outputs = size_t{1} * context * heads * head_size,
             .kept_bytes = sizeof(float) * context * heads}),
      context_(context),
      heads_(heads),
      head_size_(head_size) {}

AttentionShape AttentionLayer::ShapeFor(int batch) const {
  return {.batch = batch, .context = context_, .heads = heads_, .head_size = head_size_};
}

Span AttentionLayer::LogSumsOf(const LayerPass& pass) const {
  return {pass.kept, size_t{1} * pass.batch * context_ * heads_, DType::kFloat32};
}

absl::Status AttentionLayer::Forward(const LayerPass& pass) const {
  pass.ops.families().attention->Forward(ShapeFor(pass.batch), pass.x[0], pass.y, LogSumsOf(pass),
                                         pass.stream);
  return absl::OkStatus();
}

absl::Status AttentionLayer::BackwardInput(const LayerPass& pass) const {
  pass.ops.families().attention->Backward(ShapeFor(pass.batch), pass.x[0], pass.y, LogSumsOf(pass), pass.dy,
                                          pass.dx[0], pass.stream);
  return absl::OkStatus();
}

}  // namespace psring
