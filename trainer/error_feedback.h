// Gradients in 16 bits on their way to a server or other ranks, without losing what the rounding takes away:
// it is kept, and added to the next gradient of the same bucket (Seide et al. 2014, "1-bit stochastic
// gradient descent"; Karimireddy et al. 2019, "Error feedback fixes SignSGD").
#pragma once

#include "absl/status/statusor.h"
#include "common/device.h"

namespace psring {

class ErrorFeedback {
 public:
  // For gradients of `count` elements that travel as `wire`, a type of 16 bits. `shared`: in memory that
  // other processes may map.
  static absl::StatusOr<ErrorFeedback> Create(DType wire, size_t count, bool shared, Device& device);

  // The encoded gradient, of all buckets: where Encode's results stand.
  Span encoded() const { return {encoded_.data(), residual_.span().count, wire_}; }
  int encoded_fd() const { return encoded_.shared_fd(); }

  // Elements [first, first + gradient.count) of the gradient, plus what earlier roundings have left of them,
  // to nearest even; what float16 cannot hold is cut to its largest number. Stays until the next Encode of
  // the same range. Host memory; different ranges from different threads at once.
  ConstSpan Encode(size_t first, ConstSpan gradient);

  // The last Encode of the range was not used: as if it had not been made, to within rounding.
  void TakeBack(size_t first, ConstSpan gradient);

  // What is still to be sent.
  ConstSpan residual() const { return residual_.span(); }

 private:
  DType wire_ = DType::kBFloat16;
  Buffer encoded_, residual_;
};

}  // namespace psring
