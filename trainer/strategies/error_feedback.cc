#include "trainer/strategies/error_feedback.h"

#include <algorithm>
#include <cstring>

#include "common/base/check.h"
#include "common/kernels/reduce.h"

namespace psring {
namespace {

constexpr size_t kBlock = 4096;  // elements that stay in the first-level cache between passes
constexpr float kLargestFloat16 = 65504;
// A server keeps its newest two checkpoints, several servers three.
constexpr size_t kMaxKept = 3;

}  // namespace

absl::StatusOr<ErrorFeedback> ErrorFeedback::Create(DType wire, size_t count, bool shared, Device& device) {
  PSRING_CHECK(SizeOf(wire) == 2);
  ErrorFeedback feedback;
  feedback.wire_ = wire;
  feedback.count_ = count;
  const size_t bytes = count * SizeOf(wire);
  PSRING_ASSIGN_OR_RETURN(feedback.encoded_, shared ? device.AllocateShared(bytes) : device.Allocate(bytes));
  for (Buffer& half : feedback.halves_) {
    PSRING_ASSIGN_OR_RETURN(half, device.Allocate(count * sizeof(float)));
    std::memset(half.data(), 0, half.bytes());
  }
  return feedback;
}

void ErrorFeedback::Load(ConstSpan residual) {
  PSRING_CHECK(step_ < 0 && residual.count == count_);
  std::memcpy(left(newest_).data, residual.data, residual.bytes());
}

void ErrorFeedback::BeginStep(int64_t step) {
  if (step == step_) return;  // repeated: it reads the same half again
  newest_ = 1 - newest_;
  step_ = step;
}

ConstSpan ErrorFeedback::Encode(size_t first, ConstSpan gradient) {
  const Span to = encoded().Slice(first, gradient.count);
  const float* const before = left(1 - newest_).floats() + first;
  float* const after = left(newest_).floats() + first;
  for (size_t begin = 0; begin < gradient.count; begin += kBlock) {
    const size_t count = std::min(kBlock, gradient.count - begin);
    const float* const from = gradient.floats() + begin;
    float* const left = after + begin;
    float values[kBlock];
    for (size_t i = 0; i < count; ++i) values[i] = left[i] = before[begin + i] + from[i];
    if (wire_ == DType::kFloat16) {
      for (size_t i = 0; i < count; ++i) {
        values[i] = values[i] > kLargestFloat16 ? kLargestFloat16 : values[i];
        values[i] = values[i] < -kLargestFloat16 ? -kLargestFloat16 : values[i];
      }
    }
    void* const sent = to.Slice(begin, count).data;
    cpu::Convert(DType::kFloat32, values, wire_, sent, count);
    cpu::Convert(wire_, sent, DType::kFloat32, values, count);
    for (size_t i = 0; i < count; ++i) left[i] -= values[i];
  }
  return to;
}

void ErrorFeedback::TakeBack(size_t first, size_t count) {
  const Span before = left(1 - newest_).Slice(first, count);
  std::memcpy(left(newest_).Slice(first, count).data, before.data, before.bytes());
}

ConstSpan ErrorFeedback::Before(int64_t step) const {
  return step_ >= 0 && step <= step_ ? left(1 - newest_) : left(newest_);
}

void ErrorFeedback::Keep(int64_t step) {
  const ConstSpan now = Before(step);
  kept_[step].assign(now.floats(), now.floats() + now.count);
  if (kept_.size() > kMaxKept) kept_.erase(kept_.begin());
}

bool ErrorFeedback::GoBackTo(int64_t step) {
  kept_.erase(kept_.upper_bound(step), kept_.end());
  if (step == step_ || step == step_ + 1) return true;  // both halves already fit
  const auto found = kept_.find(step);
  step_ = step - 1;
  std::memset(left(newest_).data, 0, left(newest_).bytes());
  if (found == kept_.end()) return false;
  std::memcpy(left(newest_).data, found->second.data(), left(newest_).bytes());
  return true;
}

}  // namespace psring
