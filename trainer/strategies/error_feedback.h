// Gradients in 16 bits on their way to a server or other ranks, without losing what the rounding takes away:
// it is kept, and added to the next gradient of the same bucket (Seide et al. 2014, "1-bit stochastic
// gradient descent"; Karimireddy et al. 2019, "Error feedback fixes SignSGD").
//
// The *residual* is what is still to be sent. A step reads what the steps before it have left and writes its
// own beside it, so that both are there until the next step begins: whoever has to go on with the step that
// is under way, because others never got there, finds what that step began with.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "absl/status/statusor.h"
#include "common/device/device.h"

namespace psring {

class ErrorFeedback {
 public:
  // For gradients of `count` elements that travel as `wire`, a type of 16 bits. `shared`: in memory that
  // other processes may map.
  static absl::StatusOr<ErrorFeedback> Create(DType wire, size_t count, bool shared, Device& device);

  // The encoded gradient, of all buckets: where Encode's results stand.
  Span encoded() const { return {encoded_.data(), count_, wire_}; }
  int encoded_fd() const { return encoded_.shared_fd(); }

  // Before the first step: what training goes on with; nothing is left to be sent otherwise.
  void Load(ConstSpan residual);

  // Between two steps, with no Encode under way. Every range is encoded once a step.
  void BeginStep(int64_t step);

  // Elements [first, first + gradient.count) of the gradient, plus what the steps before have left of them,
  // to nearest even; what float16 cannot hold is cut to its largest number. Stays until the next Encode of
  // the same range. Host memory; different ranges from different threads at once.
  ConstSpan Encode(size_t first, ConstSpan gradient);

  // The step's Encode of the range was not used: as if it had not been made.
  void TakeBack(size_t first, size_t count);

  // What is still to be sent when `step` begins: the step under way, or a later one where all ranges of that
  // are encoded. Until the next BeginStep.
  ConstSpan Before(int64_t step) const;

  // Keeps a copy of Before(step); of those kept the newest few. GoBackTo(step): the next step is `step` once
  // more. False: it is not known any more; then nothing is left to be sent.
  void Keep(int64_t step);
  bool GoBackTo(int64_t step);

 private:
  Span left(int half) const { return halves_[half].span(); }

  DType wire_ = DType::kBFloat16;
  size_t count_ = 0;
  Buffer encoded_;
  Buffer halves_[2];
  int newest_ = 0;     // the half that the step under way writes; before the first one, what it begins with
  int64_t step_ = -1;  // under way
  std::map<int64_t, std::vector<float>> kept_;
};

}  // namespace psring
