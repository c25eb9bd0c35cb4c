// psring's own backend: a schedule for every collective, run over a transport.

#include <algorithm>
#include <bit>
#include <deque>
#include <map>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/errors.h"
#include "common/base/mutex.h"
#include "common/text/translate.h"
#include "ring_worker/groups/execution.h"
#include "ring_worker/groups/groups.h"
#include "ring_worker/schedules/default_algorithm.h"
#include "ring_worker/transports/copy_choice.h"
#include "ring_worker/transports/cuda/cuda_ipc.h"

namespace psring {
namespace {

constexpr char kGpuTransport[] = "cuda_ipc";

// Up to this many bytes a call does not cut transfers, which would only increase their number.
constexpr size_t kWholeBytes = 64 << 10;

// Up to this many bytes a copy stays in the caches.
constexpr size_t kSmallBytes = 16 << 10;

// An all-to-all's segments in flight, at least. Nothing is forwarded from the caches, and with more of them
// ranks that share a core change places less often. Twice 2 * 3 segments are the slots of a peer.
constexpr int kExchangeDepth = 3;

const ScheduleTable& SchedulesOf(const GroupOptions& options) {
  return options.schedules != nullptr ? *options.schedules : ScheduleRows();
}

std::string ChosenAlgorithm(const GroupOptions& options) {
  return options.algorithm.empty() ? kDefaultAlgorithm : options.algorithm;
}

bool SharesMemory(const TransportInfo& info) { return info.name == "shm"; }

// The schedule of a group's large all-reduces, whose pairs are connected when the group is made.
std::string LargeAlgorithm(const std::string& algorithm, const TransportInfo& info) {
  if (algorithm != kDefaultAlgorithm) return algorithm;
  return DefaultAlgorithm(Collective::kAllReduce, SIZE_MAX / info.size, info.size, SharesMemory(info));
}

// The algorithm of a collective in a group of `algorithm`, which may not offer it.
std::string AlgorithmOf(const std::string& algorithm, Collective collective, const ScheduleTable& rows) {
  const ScheduleRow* const row = FindSchedule(algorithm, rows);
  if (row != nullptr && row->offers(collective)) return algorithm;
  if (collective == Collective::kAllToAll) return "direct";
  return collective == Collective::kBroadcast ? "star" : "ring";
}

absl::StatusOr<std::unique_ptr<Schedule>> AllReduceOf(const std::string& algorithm, int ranks,
                                                      const GroupOptions& options) {
  const ScheduleTable& rows = SchedulesOf(options);
  const bool is_chosen = options.collective == Collective::kAllReduce;
  return MakeSchedule(is_chosen ? algorithm : AlgorithmOf(algorithm, Collective::kAllReduce, rows),
                      Collective::kAllReduce, {.ranks = ranks}, rows);
}

// With everything that determines the rounds: "hierarchical:4" for "hierarchical" on hosts of four ranks.
absl::StatusOr<std::string> CompleteName(const GroupOptions& options, const TransportInfo& info) {
  const std::string chosen = ChosenAlgorithm(options);
  if (!NeedsRanksPerNode(chosen, SchedulesOf(options))) return chosen;
  const int per_node = options.ranks_per_node > 0 ? options.ranks_per_node : info.ranks_per_node;
  if (per_node > 0) return absl::StrCat(chosen, ":", per_node);
  return InvalidTr(
      "$0 needs as many ranks on every machine, with consecutive numbers; give the ranks per machine, as "
      "in $0:2, or use ring",
      chosen);
}

// The same on all ranks.
absl::StatusOr<std::string> AlgorithmHere(const GroupOptions& options, const TransportInfo& info) {
  absl::StatusOr<std::string> name = CompleteName(options, info);
  const bool suits = name.ok() && AllReduceOf(LargeAlgorithm(*name, info), info.size, options).ok();
  if (options.is_part && !suits) return "ring";
  return name;
}

class ScheduledGroup final : public ProcessGroup,
                             public MemoryRegistration,
                             public RoundRecording,
                             public ScatterScratch {
 public:
  ScheduledGroup(std::unique_ptr<Transport> transport, const std::string& algorithm,
                 const GroupOptions& options, size_t segment_bytes, const std::string& through_host)
      : ProcessGroup({.rank = transport->info().rank,
                      .size = transport->info().size,
                      .backend = "native",
                      .algorithm = algorithm,
                      .transport = transport->info().name,
                      .wires = transport->info().wires,
                      .on_gpu = dynamic_cast<DeviceWork*>(transport.get()) != nullptr,
                      .through_host = through_host}),
        transport_(std::move(transport)),
        device_(info().on_gpu ? dynamic_cast<DeviceWork&>(*transport_) : host_),
        options_(options),
        pace_{segment_bytes, transport_->info().traits.depth, options.timeout},
        execution_(*transport_, device_) {}

  absl::Status Register(const Buffer& buffer) override { return transport_->Register(buffer); }
  void Unregister(const Buffer& buffer) override { transport_->Unregister(buffer); }
  void NoteRounds(std::vector<RoundTime>* rounds) override { execution_.NoteRounds(rounds); }
  absl::Status ReserveScratch(size_t bytes) override { return Scratch(bytes).status(); }
  size_t scratch_bytes() const override {
    size_t bytes = 0;
    for (const Buffer& buffer : scratch_) bytes += buffer.bytes();
    return bytes;
  }
  void Abort(absl::Status why) override { transport_->Abort(std::move(why)); }
  Traffic traffic() const override { return transport_->traffic(); }
  // An all-reduce of zero elements: every rank then depends on every other.
  absl::Status Barrier(Stream& stream) override {
    return Enqueue({Collective::kAllReduce, ConstSpan(), Span()}, stream);
  }

 private:
  struct Prepared {
    Collective collective;
    int root;
    bool whole;
    std::string chosen;  // the group's algorithm, or its choice for the size
    std::string operation;
    LoweredSchedule lowered;
  };

  absl::Status Enqueue(const CollectiveCall& call, Stream& stream) override {
    {
      MutexLock lock(mutex_);
      calls_.PushBack() = call;
    }
    device_.Enqueue(stream, [this] { return RunNext(); });
    return absl::OkStatus();
  }

  absl::StatusOr<std::unique_ptr<ProcessGroup>> MakePart(Rendezvous* part, int, int) override {
    if (part == nullptr) return nullptr;
    GroupOptions options = options_;
    options.ranks_per_node = 0;  // refers to this group's ranks; a part's nodes are its hosts
    options.is_part = true;
    return NativeBackend().make(*part, options);
  }

  absl::Status RunNext() {
    CollectiveCall call;
    {
      MutexLock lock(mutex_);
      call = calls_.front();
      calls_.PopFront();
    }
    absl::Status status = Run(call);
    if (!status.ok()) transport_->Abort(status);  // so that the peers do not wait for their deadlines
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
    PSRING_ASSIGN_OR_RETURN(const Prepared* prepared, Prepare(call, bytes, whole));

    CallInfo info;
    info.number = next_call_++;
    info.type = memory.type;
    info.op = call.op;
    info.root = static_cast<uint16_t>(call.root);
    info.elements = memory.count;
    prepared->operation.copy(info.operation, sizeof info.operation - 1);
    Pace pace = pace_;
    const bool exchanges = call.collective == Collective::kAllToAll;
    if (exchanges && !this->info().on_gpu) pace.depth = std::max(pace.depth, kExchangeDepth);
    CopyChoice* const choice = bytes > kSmallBytes ? &ChoiceFor(call, bytes) : nullptr;
    const bool passes = choice != nullptr && choice->passes_caches();
    transport_->PassCaches(passes);
    host_.PassCaches(passes);
    transport_->BeginCall(info);
    const int64_t begin = MonotonicNanos();
    absl::Status status = execution_.Run(prepared->lowered, whole, info.number, memory, pace);
    if (choice != nullptr) choice->Note(MonotonicNanos() - begin);
    return status;
  }

  // Calls of about the same size in the same kinds of memory share a choice.
  CopyChoice& ChoiceFor(const CollectiveCall& call, size_t bytes) {
    const bool in_place = call.in.data == call.out.data;
    const bool in = transport_->IsRegistered(call.in.data), out = transport_->IsRegistered(call.out.data);
    return choices_[{call.collective, in_place, in, out, std::bit_width(bytes)}];
  }

  absl::StatusOr<const Prepared*> Prepare(const CollectiveCall& call, size_t bytes, bool whole) {
    const absl::string_view chosen =
        info().algorithm == kDefaultAlgorithm
            ? DefaultAlgorithm(call.collective, bytes, size(), SharesMemory(transport_->info()))
            : absl::string_view(info().algorithm);
    for (const Prepared& prepared : prepared_) {
      if (prepared.collective == call.collective && prepared.root == call.root && prepared.whole == whole &&
          prepared.chosen == chosen) {
        return &prepared;
      }
    }
    const ScheduleTable& rows = SchedulesOf(options_);
    const std::string algorithm = AlgorithmOf(std::string(chosen), call.collective, rows);
    PSRING_ASSIGN_OR_RETURN(
        const std::unique_ptr<Schedule> schedule,
        MakeSchedule(algorithm, call.collective, {.ranks = size(), .root = call.root}, rows));
    prepared_.push_back({call.collective, call.root, whole, std::string(chosen),
                         absl::StrCat(algorithm, " ", Name(call.collective)),
                         LowerSchedule(*schedule, rank(), MaxRounds(*schedule), whole)});
    if (!schedule->keeps_input()) MarkReplies(prepared_.back().lowered, rank());
    return &prepared_.back();
  }

  // Kept for later calls, because mapping memory would take longer than the call.
  absl::StatusOr<std::byte*> Scratch(size_t bytes) {
    const size_t present = scratch_.empty() ? 0 : scratch_.back().bytes();
    if (scratch_.empty() || present < bytes) {
      PSRING_ASSIGN_OR_RETURN(Buffer larger, device_.Allocate(std::max(bytes, 2 * present)));
      PSRING_RETURN_IF_ERROR(transport_->Register(larger));
      scratch_.push_back(std::move(larger));  // peers may still read the previous one
    }
    return static_cast<std::byte*>(scratch_.back().data());
  }

  // Peers may have it open until the transport, whose destructor waits for them, is gone.
  std::deque<Buffer> scratch_;
  const std::unique_ptr<Transport> transport_;
  HostWork host_;
  DeviceWork& device_;          // the transport on a GPU, otherwise host_
  const GroupOptions options_;  // as given, for parts
  const Pace pace_;

  // Used by the thread that runs the calls:
  Execution execution_;
  std::deque<Prepared> prepared_;
  std::map<std::tuple<Collective, bool, bool, bool, int>, CopyChoice> choices_;
  uint32_t next_call_ = 0;

  Mutex mutex_;
  Fifo<CollectiveCall> calls_ ABSL_GUARDED_BY(mutex_);
};

// A mesh in which the pairs of an all-reduce, and so of a barrier, are connected. Pairs that only other
// collectives use are connected by their first call.
absl::StatusOr<std::unique_ptr<Transport>> MakeMesh(Rendezvous& rendezvous, const GroupOptions& options,
                                                    MeshOptions mesh) {
  mesh.bind_host = options.bind_host;
  mesh.ranks_per_node = options.ranks_per_node;
  mesh.schedule = ChosenAlgorithm(options);
  mesh.first_peers = [&options](const TransportInfo& info) {
    const auto schedule =
        AllReduceOf(LargeAlgorithm(AlgorithmHere(options, info).value_or(""), info), info.size, options);
    // MakeScheduledGroup reports an unsupported algorithm.
    return schedule.ok() ? PeersOf(**schedule, info.rank) : std::vector<int>();
  };
  return MakeMeshTransport(rendezvous, mesh);
}

// A transport between GPUs if all ranks can access each other's; otherwise null, and `why_not` is set.
absl::StatusOr<std::unique_ptr<Transport>> BetweenGpus(Rendezvous& rendezvous, const GroupOptions& options,
                                                       std::string& why_not) {
  PSRING_ASSIGN_OR_RETURN(GpuReach reach, FindGpuReach(rendezvous, options.gpu, ThisProcess()));
  why_not = reach.why_not;
  if (!why_not.empty()) return nullptr;
  CudaIpcParts parts{.gpu = options.gpu, .reach = std::move(reach), .timeout = options.timeout};
  for (std::unique_ptr<Transport>* part : {&parts.exports, &parts.releases}) {
    PSRING_ASSIGN_OR_RETURN(*part, MakeMesh(rendezvous, options, {}));
  }
  return MakeCudaIpcTransport(std::move(parts));
}

absl::StatusOr<std::unique_ptr<ProcessGroup>> MakeNativeGroup(Rendezvous& rendezvous,
                                                              const GroupOptions& options) {
  const bool must = options.transport == kGpuTransport;
  std::string note;
  // Collective, also for ranks without a GPU, so that the others know. Only TCP supports a limited rate.
  if (must || (options.transport == "auto" && options.shaper == nullptr)) {
    std::string why_not;
    PSRING_ASSIGN_OR_RETURN(std::unique_ptr<Transport> between_gpus,
                            BetweenGpus(rendezvous, options, why_not));
    if (between_gpus != nullptr) return MakeScheduledGroup(std::move(between_gpus), options);
    if (must) {
      return FailedPrecondition("transport ", kGpuTransport, ": ", why_not, "; choose transport auto");
    }
    note = why_not;
  }
  PSRING_ASSIGN_OR_RETURN(
      std::unique_ptr<Transport> transport,
      MakeMesh(rendezvous, options, {.transport = options.transport, .shaper = options.shaper}));
  return MakeScheduledGroup(std::move(transport), options, options.gpu >= 0 ? note : "");
}

}  // namespace

BackendRow NativeBackend() {
  return {.name = "native",
          .summary = "psring's own schedules and transports",
          .algorithms =
              [](Collective collective) {
                std::vector<std::string> names = AlgorithmsFor(collective);
                names.emplace_back(kDefaultAlgorithm);
                return names;
              },
          .transports = {"auto", "shm", "tcp", kGpuTransport},
          .make = MakeNativeGroup};
}

absl::StatusOr<std::unique_ptr<ProcessGroup>> MakeScheduledGroup(std::unique_ptr<Transport> transport,
                                                                 const GroupOptions& options,
                                                                 const std::string& through_host) {
  const TransportInfo& info = transport->info();
  const size_t segment_bytes = options.segment_bytes > 0 ? options.segment_bytes : info.traits.segment_bytes;
  if (segment_bytes > info.traits.max_segment_bytes) {
    return InvalidArgument("segments of ", segment_bytes, " bytes; ", info.name, " takes at most ",
                           info.traits.max_segment_bytes);
  }
  PSRING_ASSIGN_OR_RETURN(const std::string algorithm, AlgorithmHere(options, info));
  // Reports an unsupported algorithm now, not in the first call.
  PSRING_RETURN_IF_ERROR(AllReduceOf(LargeAlgorithm(algorithm, info), info.size, options).status());
  return std::make_unique<ScheduledGroup>(std::move(transport), algorithm, options, segment_bytes,
                                          through_host);
}

}  // namespace psring
