#include "ps_server/parameter_server.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"

namespace psring {
absl::Status ParameterServer::Annotate(const absl::Status& status, int worker, int bucket) {
  return absl::Status(status.code(),
                      absl::StrCat("worker ", worker, ", bucket ", bucket, ": ", status.message()));
}

ParameterServer::ParameterServer(Device& device, const ServerOptions& options)
    : device_(device),
      options_(options),
      presence_(options.workers, Presence::kAbsent),
      jobs_(options.workers),
      workers_(std::make_unique<Worker[]>(options.workers)),
      last_arrival_ns_(MonotonicNanos()) {
  PSRING_CHECK(options.workers > 0);
  {
    MutexLock lock(stats_mutex_);
    stats_.worker_pushes.resize(options.workers);
    stats_.worker_staleness_sum.resize(options.workers);
    stats_.worker_dropped.resize(options.workers);
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
}

absl::StatusOr<Lane> ParameterServer::NewLane() const {
  Lane lane;
  PSRING_ASSIGN_OR_RETURN(lane.ops, MakeOps(device_, /*threads=*/1));
  lane.stream = device_.NewStream(StreamKind::kCompute, "server");
  return lane;
}

// ----------------------------------------------------------------------------------------------------

void ParameterServer::Receive(int worker, const ChunkHeader& header, Pieces payload, Lane& lane) {
  if (failed_) return;
  last_arrival_ns_ = MonotonicNanos();
  if (absl::Status status = Dispatch(worker, header, payload, lane); !status.ok()) Abort(status);
}

absl::Status ParameterServer::Dispatch(int worker, const ChunkHeader& header, Pieces payload, Lane& lane) {
  // The total of a step's norm may come from whoever is last, when the step is long done.
  if (workers_[worker].left && header.kind == MessageKind::kNorm) return absl::OkStatus();
  if (workers_[worker].left) {
    return absl::FailedPreconditionError(absl::StrCat("worker ", worker, " has left, and still sends"));
  }
  if (header.kind == MessageKind::kWeights) return OnWeights(worker, header, payload);
  if (!started_) {
    return absl::FailedPreconditionError(
        absl::StrCat("worker ", worker, " sent something before all workers have joined"));
  }
  switch (header.kind) {
    case MessageKind::kExchange:
      return OnGradient(worker, header, payload, lane);
    case MessageKind::kFetch:
      return OnFetch(worker);
    case MessageKind::kLeave:
      return OnLeave(worker, lane);
    case MessageKind::kAnnounce:
      return OnAnnounce(worker, header, lane);
    case MessageKind::kNorm:
      return OnNorm(header, lane);
    default:
      return absl::InvalidArgumentError(absl::StrCat("worker ", worker, " sent a message of kind ",
                                                     static_cast<int>(header.kind),
                                                     ", which does not belong here"));
  }
}

absl::Status ParameterServer::CheckChunk(const ChunkHeader& header, uint64_t next_offset, size_t bytes,
                                         size_t bucket_bytes) {
  if (header.offset != next_offset) {
    return absl::InvalidArgumentError(
        absl::StrCat("a chunk begins at byte ", header.offset, ", not at ", next_offset));
  }
  if (bytes != ChunkLength(bucket_bytes, next_offset)) {
    return absl::InvalidArgumentError(absl::StrCat("the chunk at byte ", next_offset, " of ", bucket_bytes,
                                                   " has ", bytes, " bytes, not ",
                                                   ChunkLength(bucket_bytes, next_offset)));
  }
  return absl::OkStatus();
}

absl::Status ParameterServer::OnWeights(int worker, const ChunkHeader& header, Pieces payload) {
  Worker& state = workers_[worker];
  if (worker != 0 || state.weights_left == 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("worker ", worker, " sent initial weights that nobody asked for"));
  }
  const int bucket = header.bucket;
  if (bucket < 0 || static_cast<size_t>(bucket) >= job_.buckets.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("worker ", worker, " names bucket ", bucket, " of ", job_.buckets.size()));
  }
  uint64_t& received = state.weights_bytes[bucket];
  const size_t bytes = TotalBytes(payload);
  if (absl::Status status = CheckChunk(header, received, bytes, shard_->bucket_bytes(bucket)); !status.ok()) {
    return Annotate(status, worker, bucket);
  }
  shard_->SetWeights(bucket, received, payload);
  received += bytes;
  if (received < shard_->bucket_bytes(bucket) || --state.weights_left > 0) return absl::OkStatus();
  {
    MutexLock lock(mutex_);
    weights_arrived_ = true;
  }
  return StartOnceComplete();
}

absl::Status ParameterServer::OnGradient(int worker, const ChunkHeader& header, Pieces payload, Lane& lane) {
  const int bucket = header.bucket;
  if (bucket < 0 || static_cast<size_t>(bucket) >= job_.buckets.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("worker ", worker, " names bucket ", bucket, " of ", job_.buckets.size()));
  }
  const size_t bytes = TotalBytes(payload);
  const size_t gradient_bytes = shard_->gradient_bytes(bucket);
  const bool whole = header.shared && header.offset == 0 && payload.size() == 1 && bytes == gradient_bytes;
  Push& push = workers_[worker].pushes[bucket];
  if (!push.begun) {
    absl::Status may_begin;
    {
      MutexLock lock(buckets_[bucket].mutex);
      may_begin = buckets_[bucket].consistency->MayPush(worker, header.step);
    }
    if (may_begin.ok() && header.samples < 0) {
      may_begin = absl::InvalidArgumentError(absl::StrCat("a push of ", header.samples, " samples"));
    }
    if (may_begin.ok()) may_begin = shard_->BeginPush(worker, bucket, whole);
    if (!may_begin.ok()) return Annotate(may_begin, worker, bucket);
    push = {.begun = true, .step = header.step, .samples = header.samples};
  }
  if (header.step != push.step || header.samples != push.samples) {
    return Annotate(absl::InvalidArgumentError(
                        absl::StrCat("step ", header.step, " in the middle of the push of step ", push.step)),
                    worker, bucket);
  }
  if (whole && push.next_offset == 0) {
    shard_->AddWhole(worker, bucket, payload.front());
  } else if (absl::Status status = CheckChunk(header, push.next_offset, bytes, gradient_bytes);
             !status.ok()) {
    return Annotate(status, worker, bucket);
  } else {
    shard_->AddChunk(worker, bucket, push.next_offset, payload);
  }
  push.next_offset += bytes;
  return push.next_offset < gradient_bytes ? absl::OkStatus() : OnPushComplete(worker, bucket, lane);
}

absl::Status ParameterServer::OnPushComplete(int worker, int bucket, Lane& lane) {
  Push& push = workers_[worker].pushes[bucket];
  push.begun = false;

  // Serial: what this worker's earlier buckets have led to may go out with the last bucket of the step.
  std::vector<Reply> released;
  {
    MutexLock lock(workers_[worker].mutex);
    if (++workers_[worker].pushes_complete % static_cast<int64_t>(job_.buckets.size()) == 0) {
      released.swap(workers_[worker].held);
    }
  }
  for (Reply& reply : released) Deliver(worker, std::move(reply));

  Replies replies;
  {
    BucketState& state = buckets_[bucket];
    MutexLock lock(state.mutex);
    const Consistency::Decision decision = state.consistency->OnPush(worker, push.step);
    state.pending[worker] = {.state = Pending::State::kPushed, .step = push.step, .samples = push.samples};
    if (absl::Status status = Act(bucket, decision, lane, replies); !status.ok()) {
      return Annotate(status, worker, bucket);
    }
  }
  PSRING_RETURN_IF_ERROR(OnceAllAreReduced(lane, replies));
  for (auto& [reader, reply] : replies) Deliver(reader, std::move(reply));
  return absl::OkStatus();
}

absl::Status ParameterServer::Act(int bucket, const Consistency::Decision& decision, Lane& lane,
                                  Replies& replies) {
  BucketState& state = buckets_[bucket];
  if (!decision.accept) return absl::FailedPreconditionError(decision.reason);
  const int64_t version = state.consistency->version();
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
    const bool dropped = pending.state == Pending::State::kDropped;
    PSRING_CHECK(dropped || pending.state == Pending::State::kApplied);
    const bool in_place = shard_->sends_copies() && CopyInPlace(reader, bucket);
    if (!in_place && !weights.has_value()) {
      PSRING_ASSIGN_OR_RETURN(weights, shard_->Read(bucket, lane));
    }
    replies.emplace_back(reader,
                         Reply{.header = {.kind = MessageKind::kExchange,
                                          .bucket = bucket,
                                          .step = pending.step,
                                          .version = version,
                                          .staleness = dropped ? 0 : pending.staleness,
                                          .dropped = dropped,
                                          .shared_bytes = in_place ? shard_->bucket_bytes(bucket) : 0},
                               .weights = in_place ? Snapshot{} : *weights,
                               .in_place = in_place});
    pending.state = Pending::State::kNone;
    state.received_version[reader] = version;
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

absl::Status ParameterServer::OnFetch(int worker) {
  PSRING_ASSIGN_OR_RETURN(std::vector<Reply> weights, AllWeights());
  for (Reply& bucket : weights) Deliver(worker, std::move(bucket));
  Deliver(worker, {.header = {.kind = MessageKind::kFetch}});
  return absl::OkStatus();
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
    if (exchange) {
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
