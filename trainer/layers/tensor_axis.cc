#include "trainer/layers/tensor_axis.h"

#include "common/base/check.h"

namespace psring {

template <typename Call>
absl::Status TensorAxis::Run(const Call& call, Stream& stream) {
  auto& [begin_ns, end_ns] = waits_.emplace_back();
  stream.Stamp(begin_ns);
  PSRING_RETURN_IF_ERROR(call(stream));
  stream.Stamp(end_ns);
  return absl::OkStatus();
}

template <typename Call>
absl::Status TensorAxis::Begin(const Call& call, Stream& stream) {
  lane_->WaitFor(stream.Record());
  auto& [begin_ns, end_ns] = busy_.emplace_back();
  lane_->Stamp(begin_ns);
  PSRING_RETURN_IF_ERROR(call(*lane_));
  lane_->Stamp(end_ns);
  done_ = lane_->Record();
  return absl::OkStatus();
}

void TensorAxis::Finish(Stream& stream) {
  auto& [begin_ns, end_ns] = waits_.emplace_back();
  stream.Stamp(begin_ns);
  stream.WaitFor(done_);
  stream.Stamp(end_ns);
}

absl::Status TensorAxis::Reduce(Span values, ReduceOp op, Stream& stream) {
  return Run([&](Stream& on) { return group_.AllReduce(values, values, op, on); }, stream);
}

absl::Status TensorAxis::Gather(ConstSpan own, Span all, Stream& stream) {
  return Run([&](Stream& on) { return group_.AllGather(own, all, on); }, stream);
}

absl::Status TensorAxis::SumOwn(ConstSpan all, Span own, Stream& stream) {
  return Run([&](Stream& on) { return group_.ReduceScatter(all, own, ReduceOp::kSum, on); }, stream);
}

absl::Status TensorAxis::BeginSum(Span values, Stream& stream) {
  return Begin([&](Stream& on) { return group_.AllReduce(values, values, ReduceOp::kSum, on); }, stream);
}

absl::Status TensorAxis::BeginGather(ConstSpan own, Span all, Stream& stream) {
  return Begin([&](Stream& on) { return group_.AllGather(own, all, on); }, stream);
}

absl::Status TensorAxis::BeginSumOwn(ConstSpan all, Span own, Stream& stream) {
  return Begin([&](Stream& on) { return group_.ReduceScatter(all, own, ReduceOp::kSum, on); }, stream);
}

absl::Status TensorAxis::Reserve(size_t bytes) {
  if (bytes == 0) return absl::OkStatus();
  PSRING_ASSIGN_OR_RETURN(pieces_, device_.Allocate(bytes));
  auto* const scratch = dynamic_cast<ScatterScratch*>(&group_);
  return scratch != nullptr ? scratch->ReserveScratch(bytes / kPieces) : absl::OkStatus();
}

size_t TensorAxis::reserved_bytes() const {
  const auto* const scratch = dynamic_cast<const ScatterScratch*>(&group_);
  return pieces_.bytes() + (scratch != nullptr ? scratch->scratch_bytes() : 0);
}

Span TensorAxis::Piece(size_t piece, size_t count, DType type) {
  const size_t bytes = pieces_.bytes() / kPieces;
  PSRING_CHECK(piece < kPieces && count * SizeOf(type) <= bytes);
  return {static_cast<std::byte*>(pieces_.data()) + piece * bytes, count, type};
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
