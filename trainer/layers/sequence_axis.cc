#include "trainer/layers/sequence_axis.h"

#include "common/base/check.h"

namespace psring {

void Sequence::Abort(const absl::Status& why) const {
  group->Abort(why);
  for (Channel* const channel : {next, previous}) {
    if (channel != nullptr) channel->Abort(why);
  }
}

Traffic Sequence::traffic() const {
  Traffic all = group->traffic();
  for (const Channel* const channel : {next, previous}) {
    if (channel != nullptr) all = all + channel->traffic();
  }
  return all;
}

SequenceAxis::~SequenceAxis() { FinishStamps(); }

void SequenceAxis::FinishStamps() const {
  for (Channel* const channel : {sequence_.next, sequence_.previous}) {
    if (channel != nullptr) (void)channel->lane().Synchronize();  // the compute stream has its errors
  }
}

absl::Status SequenceAxis::Reserve(size_t bytes, Device& device) {
  PSRING_ASSIGN_OR_RETURN(memory_, device.Allocate(bytes));
  return absl::OkStatus();
}

absl::StatusOr<SequenceAxis::Shift> SequenceAxis::BeginShift(Span out, Span in, Stream& stream) {
  Shift shift;
  const Event ready = stream.Record();
  const auto transfer = [&](Channel& channel, Span data) -> absl::StatusOr<Event> {
    auto& [begin_ns, end_ns] = busy_.emplace_back();
    channel.lane().WaitFor(ready);
    if (!channel.sends()) channel.lane().WaitFor(sent_);
    channel.lane().Stamp(begin_ns);
    PSRING_RETURN_IF_ERROR(channel.Transfer(data));
    channel.lane().Stamp(end_ns);
    return channel.lane().Record();
  };
  PSRING_ASSIGN_OR_RETURN(shift.received, transfer(*sequence_.previous, in));
  PSRING_ASSIGN_OR_RETURN(shift.sent, transfer(*sequence_.next, out));
  sent_ = shift.sent;
  return shift;
}

void SequenceAxis::Await(const Event& event, Stream& stream) {
  auto& [begin_ns, end_ns] = waits_.emplace_back();
  stream.Stamp(begin_ns);
  stream.WaitFor(event);
  stream.Stamp(end_ns);
}

absl::Status SequenceAxis::Exchange(ConstSpan in, Span out, Stream& stream) {
  auto& [begin_ns, end_ns] = exchanges_.emplace_back();
  stream.Stamp(begin_ns);
  PSRING_RETURN_IF_ERROR(sequence_.group->AllToAll(in, out, stream));
  stream.Stamp(end_ns);
  return absl::OkStatus();
}

TensorAxis::Times SequenceAxis::Take() {
  FinishStamps();
  TensorAxis::Times times{.busy = {busy_.begin(), busy_.end()}, .waits = {waits_.begin(), waits_.end()}};
  // The stream waits for all of an exchange.
  times.Add(
      {.busy = {exchanges_.begin(), exchanges_.end()}, .waits = {exchanges_.begin(), exchanges_.end()}});
  exchanges_.clear();
  busy_.clear();
  waits_.clear();
  return times;
}

std::vector<ReadyRange> SequencePlace::PositionsOf(int of, int context) const {
  const size_t chunks = static_cast<size_t>(ranks) * ChunksPerRank(), count = context / chunks;
  const size_t first = static_cast<size_t>(of);
  PSRING_CHECK(count * chunks == static_cast<size_t>(context));
  if (ChunksPerRank() == 1) return {{first * count, count}};
  return {{first * count, count}, {(chunks - 1 - first) * count, count}};
}

}  // namespace psring
