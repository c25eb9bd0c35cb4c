#include "trainer/strategies/wire_codec.h"

#include <memory>

#include "common/base/check.h"
#include "common/reduce/reduce.h"

namespace psring {

absl::StatusOr<WireCodec> WireCodec::Create(DType wire, size_t count, const GroupInfo& group) {
  WireCodec codec(group.size);
  if (wire == DType::kFloat32) return codec;
  if (group.on_gpu) {
    return absl::InvalidArgumentError(
        "--wire with 16 bits rounds gradients on the host, but NCCL moves them directly between GPUs; omit "
        "it, or give --backend native");
  }
  const std::unique_ptr<Device> host = MakeCpuDevice();
  PSRING_ASSIGN_OR_RETURN(codec.feedback_, ErrorFeedback::Create(wire, count, /*shared=*/false, *host));
  return codec;
}

Span WireCodec::Encode(size_t first, Span gradient, Stream& stream) {
  if (!rounds()) return gradient;
  stream.Run([this, first, gradient] {
    cpu::Scale(gradient.type, gradient.count, gradient.data, 1 / ranks_);
    feedback_->Encode(first, gradient);
    return absl::OkStatus();
  });
  return feedback_->encoded().Slice(first, gradient.count);
}

void WireCodec::Decode(Span sent, Span gradient, Stream& stream) {
  if (!rounds()) return;
  stream.Run([this, sent, gradient] {
    cpu::Convert(sent.type, sent.data, gradient.type, gradient.data, gradient.count);
    cpu::Scale(gradient.type, gradient.count, gradient.data, ranks_);
    return absl::OkStatus();
  });
}

}  // namespace psring
