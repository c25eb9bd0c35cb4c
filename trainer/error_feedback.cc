#include "trainer/error_feedback.h"

#include <algorithm>
#include <cstring>

#include "common/check.h"
#include "common/reduce.h"

namespace psring {
namespace {

constexpr size_t kBlock = 4096;  // elements that stay in the first cache from one pass to the next
constexpr float kLargestFloat16 = 65504;

}  // namespace

absl::StatusOr<ErrorFeedback> ErrorFeedback::Create(DType wire, size_t count, bool shared, Device& device) {
  PSRING_CHECK(SizeOf(wire) == 2);
  ErrorFeedback feedback;
  feedback.wire_ = wire;
  const size_t bytes = count * SizeOf(wire);
  PSRING_ASSIGN_OR_RETURN(feedback.encoded_, shared ? device.AllocateShared(bytes) : device.Allocate(bytes));
  PSRING_ASSIGN_OR_RETURN(feedback.residual_, device.Allocate(count * sizeof(float)));
  std::memset(feedback.residual_.data(), 0, feedback.residual_.bytes());
  return feedback;
}

ConstSpan ErrorFeedback::Encode(size_t first, ConstSpan gradient) {
  const Span to = encoded().Slice(first, gradient.count);
  float* const residual = residual_.span().floats() + first;
  for (size_t begin = 0; begin < gradient.count; begin += kBlock) {
    const size_t count = std::min(kBlock, gradient.count - begin);
    const float* const from = gradient.floats() + begin;
    float* const left = residual + begin;
    float values[kBlock];
    for (size_t i = 0; i < count; ++i) left[i] += from[i];
    std::copy_n(left, count, values);
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

void ErrorFeedback::TakeBack(size_t first, ConstSpan gradient) {
  const Span sent = encoded().Slice(first, gradient.count);
  float* const residual = residual_.span().floats() + first;
  for (size_t begin = 0; begin < gradient.count; begin += kBlock) {
    const size_t count = std::min(kBlock, gradient.count - begin);
    float values[kBlock];
    cpu::Convert(wire_, sent.Slice(begin, count).data, DType::kFloat32, values, count);
    for (size_t i = 0; i < count; ++i) residual[begin + i] += values[i] - gradient.floats()[begin + i];
  }
}

}  // namespace psring
