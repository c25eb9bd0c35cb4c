// Runs a schedule over a transport.

#include <algorithm>
#include <deque>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "ring_worker/groups/groups.h"

namespace psring {
namespace {

// Segments on their way at one time. Enough that the next one's bytes lie ready whenever one is done; more
// would only fill socket buffers.
constexpr size_t kMostInFlight = 16;

// Elements [first, first + length) of the buffer that a transfer in flight reads or writes.
struct Touch {
  size_t first, length;
  bool writes;

  bool ConflictsWith(const Touch& other) const {
    return (writes || other.writes) && first < other.first + other.length && other.first < first + length;
  }
};

struct Segment {
  Tag tag;
  std::vector<Touch> touches;

  bool ConflictsWith(const Segment& other) const {
    for (const Touch& mine : touches) {
      for (const Touch& theirs : other.touches) {
        if (mine.ConflictsWith(theirs)) return true;
      }
    }
    return false;
  }
};

// One call. Every rank starts its transfers in the same order, by round and then by segment, each as soon as
// no earlier one still reads what it writes or writes what it touches: for a ring, segment s of round r + 1
// goes out when segment s of round r has come in, while the rest of round r is still on its way. The earliest
// unfinished segment of all ranks waits for nothing but its own transfers, so this cannot deadlock.
class Execution {
 public:
  Execution(const Schedule& schedule, Transport& transport, const GroupOptions& options,
            uint32_t call, Span data)
      : schedule_(schedule), transport_(transport), options_(options), call_(call), data_(data) {}

  absl::Status Run() {
    std::vector<Transfer> transfers;
    for (int round = 0; round < schedule_.rounds(rank()); ++round) {
      schedule_.Round(rank(), round, transfers);
      size_t segments = 0;
      for (const Transfer& t : transfers) segments = std::max(segments, SegmentsOf(t));
      for (size_t s = 0; s < segments; ++s) {
        PSRING_RETURN_IF_ERROR(Start({call_, uint32_t(round), uint32_t(s)}, transfers));
      }
    }
    return FinishOldest(in_flight_.size());
  }

 private:
  int rank() const { return transport_.rank(); }

  ChunkRange RangeOf(const Transfer& t) const {
    return ChunkBounds(data_.count, schedule_.chunks(), t.first_chunk, t.chunk_count);
  }

  // At least one: an empty transfer still says that its sender got here.
  size_t SegmentsOf(const Transfer& t) const {
    const size_t bytes = RangeOf(t).length * SizeOf(data_.type);
    return std::max<size_t>(1, (bytes + options_.segment_bytes - 1) / options_.segment_bytes);
  }

  // Both sides of a transfer know its chunks, so they cut it at the same places.
  bool SegmentOf(const Transfer& t, uint32_t segment, ChunkRange& range) const {
    const size_t segments = SegmentsOf(t);
    if (segment >= segments) return false;
    const ChunkRange whole = RangeOf(t);
    range = ChunkBounds(whole.length, int(segments), int(segment));
    range.first += whole.first;
    return true;
  }

  absl::Status Start(const Tag& tag, const std::vector<Transfer>& transfers) {
    Segment segment = {tag, {}};
    ChunkRange range;
    for (const Transfer& t : transfers) {
      if (SegmentOf(t, tag.segment, range)) {
        // An empty transfer keeps its place in the order too: a barrier is made of nothing else.
        segment.touches.push_back(
            {range.first, std::max<size_t>(range.length, 1), t.action != Action::kSend});
      }
    }
    size_t to_finish = in_flight_.size() >= kMostInFlight ? in_flight_.size() - kMostInFlight + 1 : 0;
    for (size_t i = in_flight_.size(); i > to_finish; --i) {
      if (in_flight_[i - 1].ConflictsWith(segment)) to_finish = i;
    }
    PSRING_RETURN_IF_ERROR(FinishOldest(to_finish));

    for (const Transfer& t : transfers) {
      if (!SegmentOf(t, tag.segment, range)) continue;
      const Span slice = data_.Slice(range.first, range.length);
      if (t.action == Action::kSend) {
        transport_.Send(t.peer, tag, slice);
      } else {
        transport_.Receive(t.peer, tag, slice, t.action == Action::kReceive ? Combine::kCopy : Combine::kAdd);
      }
    }
    in_flight_.push_back(std::move(segment));
    return absl::OkStatus();
  }

  absl::Status FinishOldest(size_t count) {
    for (; count > 0; --count) {
      PSRING_RETURN_IF_ERROR(transport_.Wait(in_flight_.front().tag, absl::Now() + options_.timeout));
      in_flight_.pop_front();
    }
    return absl::OkStatus();
  }

  const Schedule& schedule_;
  Transport& transport_;
  const GroupOptions& options_;
  const uint32_t call_;
  const Span data_;
  std::deque<Segment> in_flight_;
};

// A schedule may let a rank send and receive the same chunk in one round, and means what stood there before.
// That needs a copy of what is sent; no schedule of ours does it yet.
absl::Status RequireSeparateSends(const Schedule& schedule, int rank) {
  std::vector<Transfer> transfers;
  for (int round = 0; round < schedule.rounds(rank); ++round) {
    schedule.Round(rank, round, transfers);
    for (const Transfer& send : transfers) {
      for (const Transfer& receive : transfers) {
        if (send.action == Action::kSend && receive.action != Action::kSend &&
            send.first_chunk < receive.first_chunk + receive.chunk_count &&
            receive.first_chunk < send.first_chunk + send.chunk_count) {
          return absl::UnimplementedError(absl::StrCat("schedule ", schedule.name(), " makes rank ", rank,
                                                       " send and receive one chunk in round ", round));
        }
      }
    }
  }
  return absl::OkStatus();
}

class ScheduledGroup final : public ProcessGroup {
 public:
  ScheduledGroup(std::unique_ptr<Transport> transport, std::unique_ptr<Schedule> all_reduce,
                 const GroupOptions& options)
      : ProcessGroup({transport->rank(), transport->size(), "native", all_reduce->name(), transport->name()}),
        transport_(std::move(transport)),
        all_reduce_(std::move(all_reduce)),
        options_(options) {}

  void Abort(absl::Status why) override { transport_->Abort(std::move(why)); }
  Traffic traffic() const override { return transport_->traffic(); }

 private:
  absl::Status Enqueue(const CollectiveCall& call, Stream& stream) override {
    if (call.collective == Collective::kBroadcast) {
      PSRING_ASSIGN_OR_RETURN(auto schedule,
                              MakeSchedule("star", call.collective, {.ranks = size(), .root = call.root}));
      Run(std::move(schedule), absl::StrCat("from ", call.root), call.out, stream);
      return absl::OkStatus();
    }
    if (call.collective != Collective::kAllReduce) return absl::UnimplementedError(Name(call.collective));
    if (call.in.data != call.out.data && call.in.count > 0) {
      stream.Copy(call.out.data, call.in.data, call.in.bytes());
    }
    Run(all_reduce_, "all-reduce", call.out, stream);
    return absl::OkStatus();
  }

  absl::Status EnqueueBarrier(Stream& stream) override {
    Run(all_reduce_, "barrier", Span{}, stream);
    return absl::OkStatus();
  }

  void Run(std::shared_ptr<const Schedule> schedule, const std::string& what, Span data, Stream& stream) {
    const CallInfo call = {next_call_++, absl::StrCat(schedule->name(), " ", what), data.count};
    stream.Run([this, schedule, call, data] {
      transport_->BeginCall(call);
      absl::Status status = Execution(*schedule, *transport_, options_, call.number, data).Run();
      if (!status.ok()) transport_->Abort(status);  // so that the peers need not run into their deadlines
      return status;
    });
  }

  const std::unique_ptr<Transport> transport_;
  const std::shared_ptr<const Schedule> all_reduce_;
  const GroupOptions options_;
  uint32_t next_call_ = 0;
};

}  // namespace

BackendRow NativeBackend() {
  return {.name = "native",
          .summary = "psring's own schedules and transports",
          .available = true,
          .missing = "",
          .algorithms = AlgorithmsFor,
          .transports = {"auto", "shm", "tcp"}};
}

absl::StatusOr<std::unique_ptr<ProcessGroup>> MakeScheduledGroup(std::unique_ptr<Transport> transport,
                                                                 const GroupOptions& options) {
  GroupOptions used = options;
  if (used.algorithm.empty()) used.algorithm = "ring";
  if (used.segment_bytes == 0) used.segment_bytes = 256 << 10;
  PSRING_ASSIGN_OR_RETURN(
      std::unique_ptr<Schedule> schedule,
      MakeSchedule(used.algorithm, Collective::kAllReduce, {.ranks = transport->size()}));
  PSRING_RETURN_IF_ERROR(RequireSeparateSends(*schedule, transport->rank()));
  return std::make_unique<ScheduledGroup>(std::move(transport), std::move(schedule), used);
}

}  // namespace psring
