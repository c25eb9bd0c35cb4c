#include "trainer/main/live_rank.h"

#include <filesystem>
#include <map>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "common/base/check.h"
#include "common/base/deadline.h"
#include "common/base/errors.h"
#include "common/cli/command_line.h"
#include "common/cuda/cuda_device.h"
#include "common/device/memory_limit.h"
#include "common/device_factory/make_device.h"
#include "common/io/hash.h"
#include "common/net/host_identity.h"
#include "common/rendezvous/begin_together.h"
#include "common/rendezvous/rendezvous.h"
#include "trainer/main/resume.h"
#include "trainer/models/replayed_model.h"
#include "trainer/strategies/group_options.h"
#include "trainer/strategies/local_aggregation.h"

namespace psring {
namespace {

// Time after SIGTERM to finish the current step and write a checkpoint.
constexpr absl::Duration kStopWithCheckpoint = absl::Seconds(20);
constexpr absl::Duration kStopOfOthers = absl::Seconds(5);

// How often the only rank of a job checks whether other ranks were rejected.
constexpr absl::Duration kSurplusCheck = absl::Milliseconds(200);

std::string HostHash() {
  const std::string host = absl::StrCat(HostName(), " ", BootId());
  return HashBytes(host.data(), host.size());
}

// Equal for ranks on one GPU, or on one host within the limit that Device::memory() has considered.
std::string SharedMemoryOf(const Device& device) {
  if (!device.unit().empty()) return device.unit();
  std::error_code error;
  return absl::StrCat(HostHash(), std::filesystem::read_symlink("/proc/self/ns/cgroup", error).string(), " ",
                      MemoryScope());
}

absl::StatusOr<std::unique_ptr<ProcessGroup>> ConnectGroup(const TrainerFlags& flags,
                                                           const StrategyRow& strategy, const Device& device,
                                                           Rendezvous& rendezvous, const std::string& address,
                                                           LinkShaper* shaper) {
  GroupOptions options = GroupOptionsOf(strategy, flags.training, device.gpu());
  options.bind_host = address;
  options.shaper = shaper;
  return MakeProcessGroup(rendezvous, options);
}

// The servers of a part of the model (Mesh::RanksWithPart).
absl::StatusOr<std::unique_ptr<PsClient>> ConnectServer(const TrainerFlags& flags, int part,
                                                        Rendezvous* rendezvous, const std::string& address,
                                                        LinkShaper* shaper) {
  if (rendezvous == nullptr) {
    return absl::InvalidArgumentError("a parameter-server strategy needs --rendezvous to find its server");
  }
  PSRING_ASSIGN_OR_RETURN(const Payload payload, ParsePayload(flags.training.transport));
  const int servers = ServersOf(flags.training, rendezvous->options().world_size);
  const int of_a_part = servers / ReplicaRanks(flags.training), first = part * of_a_part;
  const bool returns = ServerReturns(flags.training, servers);
  std::vector<std::unique_ptr<OneServerClient>> clients;
  for (int server = first; server < first + of_a_part; ++server) {
    const std::string whom =
        servers == 1 ? "the parameter server" : absl::StrCat("parameter server ", server, " of ", servers);
    const auto find = [rendezvous, server, whom] {
      return rendezvous->Get(absl::StrCat("ps/", server), whom);
    };
    absl::StatusOr<std::string> found = find();
    // A server that failed before it was found may be restarted.
    const MonotonicTime patience = MonotonicNow() + absl::Seconds(flags.training.timeout_s);
    while (returns && absl::IsUnavailable(found.status()) && MonotonicNow() < patience) {
      PSRING_RETURN_IF_ERROR(rendezvous->CheckRanks(absl::StrCat("before ", whom, " was found")));
      absl::SleepFor(absl::Milliseconds(100));
      found = find();
    }
    PSRING_ASSIGN_OR_RETURN(const std::string server_address, std::move(found));
    clients.push_back(MakeGrpcPsClient(
        server_address, {.secret = rendezvous->options().secret,
                         .payload = payload,
                         .own_connection = flags.training.server_wire == "stream",
                         .reply_timeout = absl::Seconds(flags.training.timeout_s),
                         .patience = returns ? absl::Seconds(flags.training.timeout_s) : absl::ZeroDuration(),
                         .find_again = find,
                         .link = {.shaper = shaper, .source = shaper != nullptr ? address : ""}}));
  }
  return MakeShardedPsClient(std::move(clients));
}

}  // namespace

absl::StatusOr<Kept> ReadKept(const TrainingOptions& training) {
  Kept kept;
  PSRING_ASSIGN_OR_RETURN(kept.bytes,
                          ReadResume(training, [&](const std::string& text) { kept.notes.push_back(text); }));
  PSRING_RETURN_IF_ERROR(OpenCheckpointsOf(training, kept.bytes));
  return kept;
}

absl::StatusOr<const DataSplits*> SharedData::Get() {
  MutexLock lock(mutex_);
  if (!data_.has_value()) data_.emplace(DataOf(options_));
  if (!data_->ok()) return data_->status();
  return &**data_;
}

absl::Status CheckSharing(const std::vector<std::string>& units, bool may_share) {
  std::map<std::string, std::vector<int>> ranks;
  for (size_t rank = 0; rank < units.size(); ++rank) {
    if (!units[rank].empty()) ranks[units[rank]].push_back(static_cast<int>(rank));
  }
  for (const auto& [unit, sharers] : ranks) {
    if (sharers.size() == 1 || may_share) continue;
    const size_t gpus = ranks.size();
    return FailedPrecondition(
        "ranks ", absl::StrJoin(sharers, ", "), " would share a GPU: there ", gpus == 1 ? "is " : "are ",
        gpus, gpus == 1 ? " GPU" : " GPUs", " for ", units.size(),
        " ranks; start fewer, or give --oversubscribe (for functional tests only: timings are "
        "not meaningful) or "
        "--device cpu");
  }
  return absl::OkStatus();
}

absl::Status CheckSharingInProcess(const std::vector<std::string>& units, int ranks_per_process) {
  std::map<std::pair<size_t, std::string>, size_t> first;  // rank on each process's units
  for (size_t rank = 0; rank < units.size() && ranks_per_process > 1; ++rank) {
    if (units[rank].empty()) continue;
    const size_t process = rank / static_cast<size_t>(ranks_per_process);
    const auto [found, is_first] = first.insert({{process, units[rank]}, rank});
    if (is_first) continue;
    return FailedPrecondition(
        "ranks ", found->second, " and ", rank,
        " of one process share a GPU, which NCCL does not support; omit --ranks_per_process, or "
        "give --backend native");
  }
  return absl::OkStatus();
}

absl::StatusOr<MemoryUse> UseOfMemory(const std::string& own, const std::vector<std::string>& all) {
  MemoryUse use{.ranks = 0};
  for (const std::string& one : all) {
    const size_t space = one.rfind(' ');
    size_t bytes = 0;
    if (space == std::string::npos || !absl::SimpleAtoi(one.substr(space + 1), &bytes)) {
      return Internal("a rank says '", one, "' about its memory");
    }
    if (one.substr(0, space) != own) continue;
    ++use.ranks;
    use.bytes += bytes;
  }
  return use;
}

LiveRank::LiveRank(const LiveProcess& process, int index)
    : process_(process),
      flags_(process.flags),
      index_(index),
      is_only_rank_(process.part == nullptr),
      join_(is_only_rank_ ? RendezvousOptions() : process.part->join),
      trace_(join_.rank + index) {
  join_.rank += index;
  join_.local_rank += index;
  if (!is_only_rank_) address_ = process.part->address;
  progress_ = MakeProgress(flags_.progress, join_.rank, join_.world_size,
                           join_.world_size / ReplicaRanks(flags_.training), flags_.training.reads_text());
}

LiveRank::~LiveRank() { process_.stop.OnStop(join_.rank, nullptr); }

void LiveRank::Note(const std::string& text) const {
  if (!progress_->Note(text)) psring::Note("trainer", text);
}

// Checks that the other ranks have equal flags and share only devices that may be shared.
absl::Status LiveRank::Meet() {
  if (is_only_rank_) return absl::OkStatus();
  const TrainingOptions& training = flags_.training;
  PSRING_ASSIGN_OR_RETURN(rendezvous_, Rendezvous::Join(join_));
  PSRING_RETURN_IF_ERROR(RequireEqualFlags(*rendezvous_, SharedArguments(training)));
  PSRING_ASSIGN_OR_RETURN(const std::vector<std::string> units,
                          rendezvous_->Exchange("device", device_->unit()));
  PSRING_RETURN_IF_ERROR(CheckSharing(units, training.oversubscribe));
  if (GroupOptionsOf(strategy_, training, device_->gpu()).backend != "nccl") return absl::OkStatus();
  return CheckSharingInProcess(units, training.ranks_per_process);
}

// The group of all ranks, and its parts.
absl::Status LiveRank::ConnectAllRanks() {
  const TrainingOptions& training = flags_.training;
  const bool has_parts = ReplicaRanks(training) > 1;
  if (join_.world_size == 1 || (!strategy_.uses_group && !has_parts)) return absl::OkStatus();
  const StrategyRow connected = strategy_.uses_group ? strategy_ : AllReduceRow("ring");
  PSRING_ASSIGN_OR_RETURN(group_,
                          ConnectGroup(flags_, connected, *device_, *rendezvous_, address_, process_.shaper));
  const std::string note = BackendNote(strategy_, training, device_->gpu());
  if (join_.rank == 0 && !note.empty()) Note(note);
  if (training.sync_batch_norm) {
    PSRING_ASSIGN_OR_RETURN(statistics_, group_->Split(/*color=*/0, /*key=*/join_.rank));
  }
  if (has_parts) {
    PSRING_ASSIGN_OR_RETURN(links_, PipelineLinks::Connect(training, *group_, *device_));
  }
  ProcessGroup* const replicas = links_ != nullptr ? links_->same_stages() : group_.get();
  if (training.dp_shard > 0 && replicas != nullptr && training.dp_shard < replicas->size()) {
    PSRING_ASSIGN_OR_RETURN(shard_groups_, ShardGroups::Split(*replicas, training.dp_shard));
  }
  return absl::OkStatus();
}

// The groups and the servers that the strategy needs.
absl::Status LiveRank::Connect() {
  const Part* const part = process_.part;
  if (part != nullptr && index_ == 0 && !part->servers.empty()) {
    // They are killed when the thread that starts them ends.
    PSRING_RETURN_IF_ERROR(process_.threads.OnMainThread([&]() -> absl::Status {
      PSRING_ASSIGN_OR_RETURN(servers_, OwnServers::Start(part->servers, join_.timeout));
      return absl::OkStatus();
    }));
  }
  PSRING_RETURN_IF_ERROR(ConnectAllRanks());
  if (flags_.training.local_aggregation) {
    PSRING_RETURN_IF_ERROR(ConnectMachine());
    if (group_->rank() > 0) return absl::OkStatus();
  }
  if (strategy_.uses_servers) {
    const MeshPlace place = links_ != nullptr ? links_->place() : MeshPlace();
    const int part = place.position * flags_.training.tp + place.share;
    PSRING_ASSIGN_OR_RETURN(client_, ConnectServer(flags_, part, rendezvous_.get(),
                                                   is_only_rank_ ? "" : address_, process_.shaper));
  }
  return absl::OkStatus();
}

// --local_aggregation: the group of this machine's ranks. FindPushers has checked their numbers.
absl::Status LiveRank::ConnectMachine() {
  const MachineRanks machine = MachineOf(join_.rank, join_.local_world_size);
  machine_ = MakePartRendezvous(*rendezvous_, machine.ranks, absl::StrCat("machine ", machine.number));
  GroupOptions options = MachineGroupOptions(flags_.training, device_->gpu());
  options.bind_host = address_;
  PSRING_ASSIGN_OR_RETURN(group_, MakeProcessGroup(*machine_, options));
  return absl::OkStatus();
}

void LiveRank::AbortOnSignal() {
  const bool keeps = !flags_.training.checkpoint_dir.empty();
  if (group_ == nullptr && client_ == nullptr && !keeps) return;
  process_.stop.OnStop(
      join_.rank,
      [this](absl::Status why) {
        if (group_ != nullptr) group_->Abort(why);
        if (statistics_ != nullptr) statistics_->Abort(why);
        if (links_ != nullptr) links_->Abort(why);
        if (shard_groups_.has_value()) shard_groups_->Abort(why);
        if (client_ != nullptr) client_->Abort(why);
      },
      // Rank 0 finishes its step and writes a checkpoint; the others wait for it.
      [this, keeps] {
        return !keeps || !stepping_ ? absl::ZeroDuration()
               : join_.rank == 0    ? kStopWithCheckpoint
                                    : kStopOfOthers;
      });
}

// The result of something that concerns only this rank, such as writing a file. The other ranks notice a
// failure only as a lost connection.
absl::Status LiveRank::Published(const absl::Status& done) {
  if (!done.ok() && rendezvous_ != nullptr) {
    PublishFailure(*rendezvous_, absl::StrCat("rank ", join_.rank, ": ", done.message()));
    has_published_ = true;
  }
  return done;
}

void LiveRank::SetCallbacks(Worker& worker, StepProbe& probe) {
  worker.save = [this](int64_t step, const CheckpointContent& content) {
    const TrainingOptions& training = flags_.training;
    return Published(SaveCheckpoint(training.checkpoint_dir, step, content, training.checkpoint_keep));
  };
  worker.stops = [this] { return process_.stop.signal() != 0; };
  if (rendezvous_ != nullptr) {
    worker.barrier = [this] { return rendezvous_->Exchange("barrier", "").status(); };
    worker.begin_together = [this] { return BeginTogether(*rendezvous_); };
    worker.share_memory = [this](size_t bytes) -> absl::StatusOr<MemoryUse> {
      const std::string own = SharedMemoryOf(*device_);
      PSRING_ASSIGN_OR_RETURN(const std::vector<std::string> all,
                              rendezvous_->Exchange("memory", absl::StrCat(own, " ", bytes)));
      return UseOfMemory(own, all);
    };
  }
  worker.objection = [this, next = MonotonicNow()]() mutable {
    if (!recorded_.ok()) return Published(recorded_);
    if (rendezvous_ == nullptr || join_.world_size > 1 || MonotonicNow() < next) return absl::OkStatus();
    next = MonotonicNow() + kSurplusCheck;
    return rendezvous_->Surplus();
  };
  // Of a replica on several ranks, the first one reports.
  if (links_ == nullptr || join_.rank == 0) {
    worker.on_warning = [](const std::string& text) { psring::Note("trainer", text); };
    worker.on_evaluating = [this](int64_t done, int64_t planned) { progress_->Evaluating(done, planned); };
    worker.on_evaluation = [this](const CurvePoint& point) { progress_->Evaluated(point); };
  }
  worker.on_note = [this](const std::string& text) { Note(text); };
  worker.on_step = [this, &probe](const StepRecord& record) {
    stepping_ = true;
    samples_ += record.samples;
    moved_ = moved_ + Traffic{record.payload_tx_bytes, record.payload_rx_bytes};
    probe.OnStep(record, [&] {
      if (records_ != nullptr) recorded_ = records_->Add(record);
    });
  };
  worker.on_progress = [this](int64_t done, int64_t planned, double loss) {
    progress_->Step({.done = done, .planned = planned, .samples = samples_, .moved = moved_, .loss = loss});
  };
}

// How the parts of a single replica are connected; the training knows only the strategy's group.
void LiveRank::DescribeLinks(RankResult& result) const {
  if (join_.rank > 0) result.curve.clear();  // rank 0 has it, too
  if (!result.transport.empty()) return;
  const GroupInfo& info = group_->info();
  result.backend = info.backend;
  result.transport = result.payload = info.transport;
  result.wires = info.wires;
}

absl::Status LiveRank::Train(Kept kept) {
  const absl::Status status = TrainAndRecord(std::move(kept));
  if (rendezvous_ == nullptr || has_published_ || process_.stop.signal() != 0) return status;
  return WithReportedFailure(*rendezvous_, status);
}

absl::Status LiveRank::TrainAndRecord(Kept kept) {
  const TrainingOptions& training = flags_.training;
  progress_->Started();
  PSRING_ASSIGN_OR_RETURN(device_,
                          MakeDevice(DeviceOfRank(training.device, join_.local_rank, CudaDeviceCount())));
  PSRING_ASSIGN_OR_RETURN(strategy_, FindStrategy(training.strategy));
  if (!flags_.record.empty()) {
    PSRING_ASSIGN_OR_RETURN(records_, RecordWriter::Open(flags_.record, join_.rank));
  }
  PSRING_RETURN_IF_ERROR(Meet());
  const absl::StatusOr<const DataSplits*> data = process_.data.Get();
  PSRING_RETURN_IF_ERROR(Published(data.status()));
  const auto note = [this](const std::string& text) { Note(text); };
  PSRING_ASSIGN_OR_RETURN(
      const std::optional<CheckpointBytes> resume,
      ShareCheckpoint(training, strategy_, join_.rank, rendezvous_.get(), std::move(kept.bytes), note));
  for (const std::string& text : kept.notes) Note(text);
  if (rendezvous_ != nullptr && join_.world_size > 1) {
    PSRING_ASSIGN_OR_RETURN(parts_, PartsOf(training, strategy_, *rendezvous_, note));
  }
  PSRING_RETURN_IF_ERROR(Connect());
  AbortOnSignal();

  Worker worker{.rank = links_ != nullptr ? links_->rank() : join_.rank,
                .world_size = links_ != nullptr ? links_->ranks() : join_.world_size,
                .device = *device_,
                .data = **data,
                .trace = trace_,
                .group = links_ != nullptr ? links_->same_stages() : group_.get(),
                .shard_groups = shard_groups_.has_value() ? &*shard_groups_ : nullptr,
                .statistics = statistics_.get(),
                .pipeline = links_ != nullptr && links_->cuts_model() ? &links_->pipeline() : nullptr,
                .sequence = links_ != nullptr ? links_->sequence() : nullptr,
                .registered = &registered_,
                .client = client_.get(),
                .resume = resume.has_value() ? &*resume : nullptr,
                .parts = parts_.get()};
  StepProbe::Counter sent;
  if (!flags_.count_interface.empty()) sent = [this] { return InterfaceTxBytes(flags_.count_interface); };
  PSRING_ASSIGN_OR_RETURN(StepProbe probe, StepProbe::Start(std::move(sent), training.ranks_per_process));
  SetCallbacks(worker, probe);

  progress_->Ready();
  absl::StatusOr<RankResult> result = RunWorker(training, worker);
  process_.stop.OnStop(join_.rank, nullptr);
  if (!result.ok() && links_ != nullptr) links_->Abort(result.status());  // lanes do not wait for peers
  PSRING_RETURN_IF_ERROR(result.status());
  if (links_ != nullptr) DescribeLinks(*result);
  probe.Fill(trace_, *result);
  result->host = HostHash();
  result->peak_memory_mb /= training.ranks_per_process;
  if (servers_ != nullptr) {
    client_.reset();  // the servers exit when all clients have left
    PSRING_RETURN_IF_ERROR(servers_->WaitUntilDone(join_.timeout));
  }
  if (records_ != nullptr) PSRING_RETURN_IF_ERROR(records_->Finish(trace_, *result));
  progress_->Done(*result);
  return absl::OkStatus();
}

}  // namespace psring
