#include "ps_server/parameter_server.h"

#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/check.h"

namespace psring {
absl::Status ParameterServer::Annotate(const absl::Status& status, int worker, int bucket) {
  return absl::Status(status.code(),
                      absl::StrCat("worker ", worker, ", bucket ", bucket, ": ", status.message()));
}

namespace {

// Of all servers that these workers may ever meet.
uint64_t NewIncarnation() {
  return static_cast<uint64_t>(absl::ToUnixNanos(absl::Now())) ^ static_cast<uint64_t>(getpid()) << 48;
}

}  // namespace

ParameterServer::ParameterServer(Device& device, const ServerOptions& options)
    : device_(device),
      options_(options),
      incarnation_(NewIncarnation()),
      attendance_(options.workers),
      jobs_(options.workers),
      workers_(std::make_unique<Worker[]>(options.workers)),
      first_step_(options.workers, 0),
      last_arrival_ns_(MonotonicNanos()) {
  PSRING_CHECK(options.workers > 0);
  {
    MutexLock lock(stats_mutex_);
    stats_.worker_pushes.resize(options.workers);
    stats_.worker_staleness_sum.resize(options.workers);
    stats_.worker_dropped.resize(options.workers);
  }
  if (options.checkpoints != nullptr) {
    writer_ = std::make_unique<CheckpointWriter>(*options.checkpoints,
                                                 [this](const absl::Status& why) { Abort(why); });
  }
  watchdog_ = std::thread([this] { Watch(); });
}

ParameterServer::~ParameterServer() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  watchdog_.join();
  if (usher_.joinable()) {
    shard_->staging().Close();
    usher_.join();
  }
}

absl::StatusOr<Lane> ParameterServer::NewLane() const {
  Lane lane;
  PSRING_ASSIGN_OR_RETURN(lane.ops, MakeOps(device_, /*threads=*/1));
  lane.stream = device_.NewStream(StreamKind::kCompute, "server");
  return lane;
}

Receipt ParameterServer::Receive(int worker, const ReplySink* sink, const ChunkHeader& header, Pieces payload,
                                 Lane& lane) {
  if (failed_) return Receipt::kTaken;
  last_arrival_ns_ = MonotonicNanos();
  absl::StatusOr<Receipt> receipt = Receipt::kTaken;
  {
    MutexLock receive_lock(workers_[worker].receive);
    {
      MutexLock lock(workers_[worker].mutex);
      // It has another stream by now, or no place any more.
      if (workers_[worker].sink.get() != sink) return Receipt::kTaken;
    }
    receipt = Dispatch(worker, header, payload, lane);
  }
  if (receipt.ok()) return *receipt;
  TurnAway(worker, sink, receipt.status());
  return Receipt::kTaken;
}

absl::StatusOr<Receipt> ParameterServer::Dispatch(int worker, const ChunkHeader& header, Pieces payload,
                                                  Lane& lane) {
  // The total of a step's norm may come from whoever is last, when the step is long done.
  if (workers_[worker].left && header.kind == MessageKind::kNorm) return Receipt::kTaken;
  if (workers_[worker].left) {
    if (header.kind == MessageKind::kLeave) return Receipt::kTaken;
    return absl::FailedPreconditionError(absl::StrCat("worker ", worker, " has left, and still sends"));
  }
  const auto taken = [](const absl::Status& status) {
    return status.ok() ? absl::StatusOr<Receipt>(Receipt::kTaken) : status;
  };
  if (header.kind == MessageKind::kWeights) return taken(OnWeights(worker, header, payload));
  if (header.kind == MessageKind::kRewind) {
    // Before the start it is nowhere to go back from.
    if (!started_ || header.version <= epoch_) return Receipt::kTaken;
    return taken(OnRewind(worker, header));
  }
  if (!started_) {
    return absl::FailedPreconditionError(
        absl::StrCat("worker ", worker, " sent something before all workers have joined"));
  }
  switch (header.kind) {
    case MessageKind::kExchange:
      return OnGradient(worker, header, payload, lane);
    case MessageKind::kFetch:
      return taken(OnFetch(worker, header));
    case MessageKind::kLeave:
      return taken(OnLeave(worker, lane));
    case MessageKind::kAnnounce:
      if (header.incarnation != incarnation_) return Receipt::kTaken;
      return taken(OnAnnounce(worker, header, lane));
    case MessageKind::kNorm:
      return taken(OnNorm(header, lane));
    case MessageKind::kBarrier:
      return taken(OnBarrier(worker, header.step));
    default:
      return absl::InvalidArgumentError(absl::StrCat("worker ", worker, " sent a message of kind ",
                                                     static_cast<int>(header.kind),
                                                     ", which does not belong here"));
  }
}

absl::Status ParameterServer::Act(int bucket, const Consistency::Decision& decision, Lane& lane,
                                  Replies& replies) {
  BucketState& state = buckets_[bucket];
  if (!decision.accept) return absl::FailedPreconditionError(decision.reason);
  const int64_t version = state.consistency->version();
  // Clipping: once the update is made.
  if (decision.empty_update || (decision.apply_count > 0 && job_.clip_norm == 0))
    NoteVersion(bucket, version);
  if (decision.apply_count > 0) {
    std::vector<int> pushed;
    int64_t samples = 0;
    for (int i = 0; i < options_.workers; ++i) {
      Pending& pending = state.pending[i];
      if (pending.state != Pending::State::kPushed) continue;
      pending.state = Pending::State::kApplied;
      pending.staleness = version - 1 - state.received_version[i];
      pushed.push_back(i);
      samples += pending.samples;
    }
    PSRING_CHECK(static_cast<int>(pushed.size()) == decision.apply_count);
    if (job_.clip_norm > 0) {
      Reduced reduced{.workers = pushed, .samples = samples, .may_read = decision.may_read};
      PSRING_ASSIGN_OR_RETURN(reduced.sum_of_squares, shard_->Reduce(bucket, pushed, lane));
      state.reduced = std::move(reduced);
      ++reduced_;
      return absl::OkStatus();
    }
    ParameterShard::Factors factors;
    if (job_.staleness_lr) {
      factors.rate = 1.0 / static_cast<double>(std::max<int64_t>(1, state.pending[pushed.front()].staleness));
    }
    PSRING_RETURN_IF_ERROR(shard_->Apply(bucket, pushed, samples, version, factors, lane));
    if (notes_arrivals_) options_.arrivals->updates[bucket].push_back(static_cast<uint16_t>(pushed.front()));
  }
  if (state.reduced.has_value()) {  // dropped workers: they read the version that is about to be made
    std::ranges::copy(decision.may_read, std::back_inserter(state.reduced->may_read));
    return absl::OkStatus();
  }
  return Answer(bucket, decision.may_read, lane, replies);
}

absl::Status ParameterServer::Answer(int bucket, const std::vector<int>& readers, Lane& lane,
                                     Replies& replies) {
  BucketState& state = buckets_[bucket];
  const int64_t version = state.consistency->version();
  std::optional<Snapshot> weights;
  for (const int reader : readers) {
    Pending& pending = state.pending[reader];
    state.received_version[reader] = version;
    const Pending::State was = std::exchange(pending.state, Pending::State::kNone);
    if (was == Pending::State::kJoining) {
      Worker& worker = workers_[reader];
      MutexLock lock(worker.mutex);
      // Until it has pushed, nothing changes any more that it must have seen.
      if (--worker.buckets_to_read == 0)
        replies.emplace_back(reader, Reply{.header = WelcomeHeader(worker.joins_at)});
      continue;
    }
    const bool dropped = was == Pending::State::kDropped;
    PSRING_CHECK(dropped || was == Pending::State::kApplied || was == Pending::State::kRepeated);
    const bool in_place = shard_->sends_copies() && CopyInPlace(reader, bucket);
    if (!in_place && !weights.has_value()) {
      PSRING_ASSIGN_OR_RETURN(weights, shard_->Read(bucket, lane));
    }
    Snapshot read = in_place ? Snapshot{} : *weights;
    if (!in_place && shard_->sends_copies()) {
      read.keep = shard_->staging().Lend(std::move(read.keep), reader);
    }
    replies.emplace_back(reader,
                         Reply{.header = {.kind = MessageKind::kExchange,
                                          .bucket = bucket,
                                          .step = pending.step,
                                          .version = version,
                                          .staleness = dropped ? 0 : pending.staleness,
                                          .dropped = dropped,
                                          .repeated = was == Pending::State::kRepeated,
                                          .shared_bytes = in_place ? shard_->bucket_bytes(bucket) : 0},
                               .weights = std::move(read),
                               .in_place = in_place});
  }
  return absl::OkStatus();
}

bool ParameterServer::CopyInPlace(int worker, int bucket) {
  std::shared_ptr<ReplySink> sink;
  {
    MutexLock lock(workers_[worker].mutex);
    sink = workers_[worker].sink;
  }
  std::byte* place = sink != nullptr ? sink->PlaceOf(bucket, shard_->bucket_bytes(bucket)) : nullptr;
  if (place != nullptr) shard_->CopyWeightsTo(bucket, place);
  return place != nullptr;
}

absl::Status ParameterServer::OnFetch(int worker, const ChunkHeader& header) {
  if (header.step < 0 || header.step > shard_->slots()) {
    return absl::InvalidArgumentError(absl::StrCat("worker ", worker, " asked for slot ", header.step,
                                                   " of an optimizer that has ", shard_->slots()));
  }
  PSRING_ASSIGN_OR_RETURN(std::vector<Reply> weights, AllWeights(static_cast<int>(header.step)));
  for (Reply& bucket : weights) Deliver(worker, std::move(bucket));
  Deliver(worker, {.header = {.kind = MessageKind::kFetch}});
  return absl::OkStatus();
}

void ParameterServer::Finish(Replies replies) {
  CheckpointIfDue();
  for (auto& [reader, reply] : replies) {
    if (reply.header.kind == MessageKind::kJoin) {
      bool again = false;
      {
        MutexLock lock(workers_[reader].mutex);
        again = workers_[reader].joins_again;
      }
      if (absl::Status status = Welcome(reader, reply.header.step, again, /*went_back=*/again);
          !status.ok()) {
        Abort(status);
      }
      continue;
    }
    Deliver(reader, std::move(reply));
  }
}

void ParameterServer::Deliver(int worker, Reply reply) {
  std::shared_ptr<ReplySink> sink;
  {
    Worker& state = workers_[worker];
    MutexLock lock(state.mutex);
    const bool exchange = reply.header.kind == MessageKind::kExchange;
    const int64_t buckets = static_cast<int64_t>(job_.buckets.size());
    if (exchange && job_.serial && reply.header.step >= state.pushes_complete / buckets) {
      state.held.push_back(std::move(reply));
      return;
    }
    if (exchange && !reply.header.repeated) {
      MutexLock stats_lock(stats_mutex_);
      Count(worker, reply.header);
    }
    sink = state.sink;
  }
  if (sink != nullptr) sink->Deliver(std::move(reply));
}

void ParameterServer::Count(int worker, const ChunkHeader& answer) {
  const uint64_t bytes = shard_->bucket_bytes(answer.bucket);
  const uint64_t received = answer.dropped ? 0 : shard_->gradient_bytes(answer.bucket);
  stats_.payload = stats_.payload + Traffic{.payload_tx_bytes = bytes, .payload_rx_bytes = received};
  if (answer.dropped) return;
  const size_t staleness = static_cast<size_t>(answer.staleness);
  ++stats_.pushes;
  if (stats_.staleness_histogram.size() <= staleness) stats_.staleness_histogram.resize(staleness + 1);
  ++stats_.staleness_histogram[staleness];
  ++stats_.worker_pushes[worker];
  stats_.worker_staleness_sum[worker] += answer.staleness;
}

}  // namespace psring
