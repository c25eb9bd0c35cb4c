// Rounds gradients to 16 bits for sending. The rounding error, the *residual*, is kept and added to the next
// gradient of the same bucket (Seide et al. 2014, "1-bit stochastic gradient descent"; Karimireddy et al.
// 2019, "Error feedback fixes SignSGD").
//
// A step reads the residual of the steps before it and writes its own to a second buffer. Until the next step
// begins both exist, so a rank can still return to the beginning of a step that other ranks did not finish.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "absl/status/statusor.h"
#include "common/device/device.h"

namespace psring {

class ErrorFeedback {
 public:
  // For gradients of `count` elements that are sent as `wire`, a 16-bit type. `shared`: the encoded gradient
  // is in memory that other processes may map.
  static absl::StatusOr<ErrorFeedback> Create(DType wire, size_t count, bool shared, Device& device);

  // The encoded gradient of all buckets; Encode's results are parts of it.
  Span encoded() const { return {encoded_.data(), count_, wire_}; }
  int encoded_fd() const { return encoded_.shared_fd(); }

  // Before the first step: the residual to begin with; default 0.
  void Load(ConstSpan residual);

  // Between two steps, with no Encode in progress. Every range is encoded once per step.
  void BeginStep(int64_t step);

  // Elements [first, first + gradient.count) of the gradient plus their residual, rounded to nearest even;
  // for float16 clipped to its largest number. Valid until the next Encode of the same range. Host memory;
  // different ranges may be encoded by different threads at once.
  ConstSpan Encode(size_t first, ConstSpan gradient);

  // Undoes the step's Encode of the range, whose result was not used.
  void TakeBack(size_t first, size_t count);

  // The residual at the beginning of `step`: the current step, or the next one if all ranges are encoded.
  // Valid until the next BeginStep.
  ConstSpan Before(int64_t step) const;

  // Keep: stores a copy of Before(step); only the newest few are stored. GoBackTo: the next step is `step`
  // again. False: its residual is no longer stored, and becomes 0.
  void Keep(int64_t step);
  bool GoBackTo(int64_t step);

 private:
  Span left(int half) const { return halves_[half].span(); }

  DType wire_ = DType::kBFloat16;
  size_t count_ = 0;
  Buffer encoded_;
  Buffer halves_[2];
  int newest_ = 0;     // the half that the current step writes; before the first step, what it reads
  int64_t step_ = -1;  // the current one
  std::map<int64_t, std::vector<float>> kept_;
};

}  // namespace psring
