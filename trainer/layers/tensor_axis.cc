#include "trainer/layers/tensor_axis.h"

namespace psring {

absl::Status TensorAxis::Reduce(Span values, ReduceOp op, Stream& stream) {
  auto& [begin_ns, end_ns] = waits_.emplace_back();
  stream.Stamp(begin_ns);
  PSRING_RETURN_IF_ERROR(group_.AllReduce(values, values, op, stream));
  stream.Stamp(end_ns);
  return absl::OkStatus();
}

absl::Status TensorAxis::BeginSum(Span values, Stream& stream) {
  lane_->WaitFor(stream.Record());
  auto& [begin_ns, end_ns] = busy_.emplace_back();
  lane_->Stamp(begin_ns);
  PSRING_RETURN_IF_ERROR(group_.AllReduce(values, values, ReduceOp::kSum, *lane_));
  lane_->Stamp(end_ns);
  done_ = lane_->Record();
  return absl::OkStatus();
}

void TensorAxis::FinishSum(Stream& stream) {
  auto& [begin_ns, end_ns] = waits_.emplace_back();
  stream.Stamp(begin_ns);
  stream.WaitFor(done_);
  stream.Stamp(end_ns);
}

TensorAxis::Times TensorAxis::Take() {
  Times times{.busy = {busy_.begin(), busy_.end()}, .waits = {waits_.begin(), waits_.end()}};
  // A wait in the compute stream's own sums is their time.
  times.busy.insert(times.busy.end(), waits_.begin(), waits_.end());
  busy_.clear();
  waits_.clear();
  return times;
}

}  // namespace psring
