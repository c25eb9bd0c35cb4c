// Our own backend: a schedule for every collective, run over a transport.

#include <algorithm>
#include <deque>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/mutex.h"
#include "ring_worker/groups/execution.h"
#include "ring_worker/groups/groups.h"
#include "ring_worker/transports/cuda_ipc.h"

namespace psring {
namespace {

constexpr char kGpuTransport[] = "cuda_ipc";

// Up to here a call moves whole transfers: cutting them up would only make more of them.
constexpr size_t kWholeBytes = 64 << 10;

// What an algorithm does not offer another does.
std::string AlgorithmOf(const std::string& algorithm, Collective collective, const ScheduleTable& rows) {
  const std::vector<std::string> offered = AlgorithmsFor(collective, rows);
  if (std::find(offered.begin(), offered.end(), algorithm) != offered.end()) return algorithm;
  return collective == Collective::kBroadcast ? "star" : "ring";
}

const ScheduleTable& SchedulesOf(const GroupOptions& options) {
  return options.schedules != nullptr ? *options.schedules : ScheduleRows();
}

class ScheduledGroup final : public ProcessGroup {
 public:
  // `asked`: the options as the caller gave them, for parts; `options`: as they suit this transport.
  ScheduledGroup(std::unique_ptr<Transport> transport, const GroupOptions& asked, const GroupOptions& options,
                 int ranks_per_node, const std::string& through_host)
      : ProcessGroup({.rank = transport->rank(),
                      .size = transport->size(),
                      .backend = "native",
                      .algorithm = options.algorithm,
                      .transport = transport->name(),
                      .on_gpu = transport->on_gpu(),
                      .through_host = through_host}),
        transport_(std::move(transport)),
        asked_(asked),
        options_(options),
        ranks_per_node_(ranks_per_node),
        pace_{options.segment_bytes, transport_->traits().depth, options.timeout},
        execution_(*transport_) {}

  absl::Status Register(const Buffer& buffer) override { return transport_->Register(buffer); }
  void Unregister(const Buffer& buffer) override { transport_->Unregister(buffer); }
  void NoteRounds(std::vector<RoundTime>* rounds) override { execution_.NoteRounds(rounds); }
  void Abort(absl::Status why) override { transport_->Abort(std::move(why)); }
  Traffic traffic() const override { return transport_->traffic(); }

 private:
  struct Prepared {
    Collective collective;
    int root;
    bool whole;
    std::string algorithm;
    Program program;
  };

  absl::Status Enqueue(const CollectiveCall& call, Stream& stream) override {
    {
      MutexLock lock(mutex_);
      calls_.PushBack() = call;
    }
    transport_->Enqueue(stream, [this] { return RunNext(); });
    return absl::OkStatus();
  }

  // An all-reduce of nothing: every rank hears of every other.
  absl::Status EnqueueBarrier(Stream& stream) override {
    return Enqueue({Collective::kAllReduce, ConstSpan(), Span()}, stream);
  }

  absl::StatusOr<std::unique_ptr<ProcessGroup>> MakePart(Rendezvous* part, int, int) override {
    if (part == nullptr) return nullptr;
    GroupOptions options = asked_;
    options.ranks_per_node = 0;  // of the whole's numbers; a part's nodes are its hosts
    return MakeNativeGroup(*part, options);
  }

  absl::Status RunNext() {
    CollectiveCall call;
    {
      MutexLock lock(mutex_);
      call = calls_.front();
      calls_.PopFront();
    }
    absl::Status status = Run(call);
    if (!status.ok()) transport_->Abort(status);  // so that the peers need not run into their deadlines
    return status;
  }

  absl::Status Run(const CollectiveCall& call) {
    const bool scatter = call.collective == Collective::kReduceScatter;
    CallMemory memory = {.collective = call.collective,
                         .count = scatter ? call.in.count : call.out.count,
                         .type = call.out.type,
                         .op = call.op,
                         .rank = rank(),
                         .size = size(),
                         .in = static_cast<const std::byte*>(call.in.data),
                         .out = static_cast<std::byte*>(call.out.data)};
    const size_t bytes = memory.count * SizeOf(memory.type);
    const bool whole = bytes <= kWholeBytes;
    if (scatter) {
      PSRING_ASSIGN_OR_RETURN(memory.scratch, Scratch(bytes));
    }
    PSRING_ASSIGN_OR_RETURN(const Prepared* prepared, Prepare(call.collective, call.root, whole));

    CallInfo info;
    info.number = next_call_++;
    info.type = memory.type;
    info.op = call.op;
    info.root = static_cast<uint16_t>(call.root);
    info.elements = memory.count;
    prepared->algorithm.copy(info.operation, sizeof info.operation - 1);
    transport_->BeginCall(info);
    return execution_.Run(prepared->program, whole, info.number, memory, pace_);
  }

  absl::StatusOr<const Prepared*> Prepare(Collective collective, int root, bool whole) {
    for (const Prepared& prepared : prepared_) {
      if (prepared.collective == collective && prepared.root == root && prepared.whole == whole)
        return &prepared;
    }
    const std::string algorithm = AlgorithmOf(options_.algorithm, collective, SchedulesOf(options_));
    PSRING_ASSIGN_OR_RETURN(const std::unique_ptr<Schedule> schedule,
                            MakeSchedule(algorithm, collective,
                                         {.ranks = size(), .ranks_per_node = ranks_per_node_, .root = root},
                                         SchedulesOf(options_)));
    prepared_.push_back({collective, root, whole, absl::StrCat(algorithm, " ", Name(collective)),
                         MakeProgram(*schedule, rank(), whole)});
    return &prepared_.back();
  }

  // Kept: mapping memory anew for every call would cost more than the call.
  absl::StatusOr<std::byte*> Scratch(size_t bytes) {
    const size_t present = scratch_.empty() ? 0 : scratch_.back().bytes();
    if (scratch_.empty() || present < bytes) {
      PSRING_ASSIGN_OR_RETURN(Buffer larger, transport_->AllocateScratch(std::max(bytes, 2 * present)));
      PSRING_RETURN_IF_ERROR(transport_->Register(larger));
      scratch_.push_back(std::move(larger));  // peers may still read the one before
    }
    return static_cast<std::byte*>(scratch_.back().data());
  }

  const std::unique_ptr<Transport> transport_;
  const GroupOptions asked_;
  const GroupOptions options_;
  const int ranks_per_node_;
  const Pace pace_;

  // Of the thread that runs the calls:
  Execution execution_;
  std::deque<Prepared> prepared_;
  std::deque<Buffer> scratch_;
  uint32_t next_call_ = 0;

  Mutex mutex_;
  Fifo<CollectiveCall> calls_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

BackendRow NativeBackend() {
  return {.name = "native",
          .summary = "psring's own schedules and transports",
          .available = true,
          .missing = "",
          .algorithms = [](Collective collective) { return AlgorithmsFor(collective); },
          .transports = {"auto", "shm", "tcp", kGpuTransport}};
}

namespace {

// Between GPUs, where the ranks of all reach one another's; else what is null, and `why_not` set.
absl::StatusOr<std::unique_ptr<Transport>> BetweenGpus(Rendezvous& rendezvous, const GroupOptions& options,
                                                       std::string& why_not) {
  PSRING_ASSIGN_OR_RETURN(GpuReach reach, FindGpuReach(rendezvous, options.gpu, ThisProcess()));
  why_not = reach.why_not;
  if (!why_not.empty()) return nullptr;
  CudaIpcParts parts{.gpu = options.gpu, .reach = std::move(reach), .timeout = options.timeout};
  for (std::unique_ptr<Transport>* part : {&parts.loans, &parts.returns}) {
    PSRING_ASSIGN_OR_RETURN(*part, MakeMeshTransport(rendezvous, {.bind_host = options.bind_host,
                                                                  .ranks_per_node = options.ranks_per_node}));
  }
  return MakeCudaIpcTransport(std::move(parts));
}

}  // namespace

absl::StatusOr<std::unique_ptr<ProcessGroup>> MakeNativeGroup(Rendezvous& rendezvous,
                                                              const GroupOptions& options) {
  const bool must = options.transport == kGpuTransport;
  std::string note;
  // Every rank comes here, also one without a GPU: the others must hear of it. A link's rate is kept by TCP.
  if (must || (options.transport == "auto" && options.shaper == nullptr)) {
    std::string why_not;
    PSRING_ASSIGN_OR_RETURN(std::unique_ptr<Transport> between_gpus,
                            BetweenGpus(rendezvous, options, why_not));
    if (between_gpus != nullptr) return MakeScheduledGroup(std::move(between_gpus), options);
    if (must) {
      return absl::FailedPreconditionError(
          absl::StrCat("transport ", kGpuTransport, ": ", why_not, "; choose transport auto"));
    }
    note = why_not;
  }
  PSRING_ASSIGN_OR_RETURN(std::unique_ptr<Transport> transport,
                          MakeMeshTransport(rendezvous, {.transport = options.transport,
                                                         .bind_host = options.bind_host,
                                                         .sockets_per_peer = options.sockets_per_peer,
                                                         .socket_buffer_bytes = options.socket_buffer_bytes,
                                                         .ranks_per_node = options.ranks_per_node,
                                                         .shaper = options.shaper}));
  return MakeScheduledGroup(std::move(transport), options,
                            options.gpu >= 0 && !note.empty() ? note : std::string());
}

absl::StatusOr<std::unique_ptr<ProcessGroup>> MakeScheduledGroup(std::unique_ptr<Transport> transport,
                                                                 const GroupOptions& options,
                                                                 const std::string& through_host) {
  GroupOptions used = options;
  if (used.algorithm.empty()) used.algorithm = "ring";
  const TransportTraits traits = transport->traits();
  if (used.segment_bytes == 0) used.segment_bytes = traits.segment_bytes;
  if (used.segment_bytes > traits.most_segment_bytes) {
    return absl::InvalidArgumentError(absl::StrCat("segments of ", used.segment_bytes, " bytes; ",
                                                   transport->name(), " takes at most ",
                                                   traits.most_segment_bytes));
  }
  const int ranks_per_node = used.ranks_per_node > 0 ? used.ranks_per_node : transport->ranks_per_node();
  // What cannot be made is refused now, not in the first call.
  PSRING_RETURN_IF_ERROR(MakeSchedule(used.algorithm, Collective::kAllReduce,
                                      {.ranks = transport->size(), .ranks_per_node = ranks_per_node},
                                      SchedulesOf(used))
                             .status());
  return std::make_unique<ScheduledGroup>(std::move(transport), options, used, ranks_per_node, through_host);
}

}  // namespace psring
