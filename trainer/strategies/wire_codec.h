// Gradients of an all-reduce in their type on the wire: --wire.
#pragma once

#include <optional>

#include "absl/status/statusor.h"
#include "common/device/device.h"
#include "ring_worker/groups/process_group.h"
#include "trainer/strategies/error_feedback.h"

namespace psring {

// Float32 gradients are sent as they are. For 16 bits each rank's gradient is divided by the number of ranks
// first, so that the sum does not overflow float16, and rounding errors are kept for the next step.
class WireCodec {
 public:
  // For gradients of `count` elements. InvalidArgument: 16 bits, and the group works on GPU memory.
  static absl::StatusOr<WireCodec> Create(DType wire, size_t count, const GroupInfo& group);

  bool rounds() const { return feedback_.has_value(); }
  // Rounding errors; null: gradients are not rounded.
  ErrorFeedback* feedback() { return feedback_.has_value() ? &*feedback_ : nullptr; }
  const ErrorFeedback* feedback() const { return feedback_.has_value() ? &*feedback_ : nullptr; }

  // Both work in stream order, and this object must exist until then. Encode returns what to send for
  // `gradient`, elements from `first` on, in host memory if it is rounded. Decode turns what was received in
  // its place into the sum over all ranks.
  Span Encode(size_t first, Span gradient, Stream& stream);
  void Decode(Span sent, Span gradient, Stream& stream);

 private:
  explicit WireCodec(int ranks) : ranks_(static_cast<float>(ranks)) {}

  float ranks_;
  std::optional<ErrorFeedback> feedback_;
};

}  // namespace psring
