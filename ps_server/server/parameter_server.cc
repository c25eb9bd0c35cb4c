#include "ps_server/server/parameter_server.h"

#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/check.h"
#include "common/devices/make_ops.h"

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

// Bounds all counts of a message at once, so that no sum or product of them overflows. A step of -1 has a
// meaning.
absl::Status CheckCounts(int worker, const ChunkHeader& header) {
  for (const auto& [name, value] :
       {std::pair("step", header.step), std::pair("samples", header.samples),
        std::pair("version", header.version), std::pair("complete", header.complete)}) {
    if (value >= -1 && value <= kMostCount) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("worker ", worker, " sent ", name, " ", value, "; the most is ", kMostCount));
  }
  return absl::OkStatus();
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
  PSRING_ASSIGN_OR_RETURN(lane.ops, MakeUpdateOps(device_));
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
  PSRING_RETURN_IF_ERROR(CheckCounts(worker, header));
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
      pending.state = pending.joins ? Pending::State::kJoining : Pending::State::kApplied;
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
    Update update{.pushed = pushed, .samples = samples};
    if (job_.staleness_lr) {
      update.factors.rate =
          1.0 / static_cast<double>(std::max<int64_t>(1, state.pending[pushed.front()].staleness));
    }
    if (notes_arrivals_) options_.arrivals->updates[bucket].push_back(static_cast<uint16_t>(pushed.front()));
    return MakeUpdate(bucket, update, decision.may_read, lane, replies);
  }
  if (state.reduced.has_value()) {  // dropped workers: they read the version that is about to be made
    std::ranges::copy(decision.may_read, std::back_inserter(state.reduced->may_read));
    return absl::OkStatus();
  }
  return Answer(bucket, decision.may_read, {}, lane, replies);
}

absl::Status ParameterServer::MakeUpdate(int bucket, const Update& update, const std::vector<int>& readers,
                                         Lane& lane, Replies& replies) {
  PSRING_ASSIGN_OR_RETURN(Begun begun, BeginAnswers(bucket, readers, lane));
  const size_t all = shard_->bucket_bytes(bucket);
  ParameterShard::Outlets outlets{.places = begun.places};
  outlets.made = [&begun, all](size_t made) {
    // The last part is an answer, and leaves when everything else that this decision leads to is done.
    if (made == all) return;
    for (auto& [reader, reply] : begun.replies) {
      if (reply.in_place) continue;
      reply.begun_on->Deliver(
          {.header = reply.header, .weights = reply.weights, .from = reply.from, .upto = made});
      reply.from = made;
    }
  };
  PSRING_RETURN_IF_ERROR(shard_->Apply(bucket, update.pushed, update.samples,
                                       buckets_[bucket].consistency->version(), update.factors, lane,
                                       outlets));
  return Answer(bucket, readers, std::move(begun), lane, replies);
}

// Where updates are computed in the host's memory: those who share theirs get the weights there as they are
// made; to others they leave in parts, unless they leave from a copy (parameter_shard.h), or are held back.
absl::StatusOr<ParameterServer::Begun> ParameterServer::BeginAnswers(int bucket,
                                                                     const std::vector<int>& readers,
                                                                     Lane& lane) {
  Begun begun;
  if (!shard_->on_host()) return begun;
  for (const int reader : readers) {
    if (buckets_[bucket].pending[reader].state != Pending::State::kApplied) continue;
    const std::shared_ptr<ReplySink> sink = SinkOf(reader);
    if (sink == nullptr) continue;
    const ReplySink::Place place = sink->PlaceOf(bucket, shard_->bucket_bytes(bucket));
    Reply reply{.header = AnswerHeader(reader, bucket), .begun_on = sink};
    if (place.data != nullptr && !place.on_gpu) {
      begun.places.push_back(place.data);
      reply.in_place = true;
      reply.header.shared_bytes = shard_->bucket_bytes(bucket);
    } else if (sink->TakesParts() && !shard_->sends_copies() && !job_.serial) {
      PSRING_ASSIGN_OR_RETURN(reply.weights, shard_->Read(bucket, lane));
    } else {
      continue;
    }
    begun.replies.emplace(reader, std::move(reply));
  }
  return begun;
}

ChunkHeader ParameterServer::AnswerHeader(int worker, int bucket) const {
  const Pending& pending = buckets_[bucket].pending[worker];
  const bool dropped = pending.state == Pending::State::kDropped;
  return {.kind = MessageKind::kExchange,
          .bucket = bucket,
          .step = pending.step,
          .version = buckets_[bucket].consistency->version(),
          .staleness = dropped ? 0 : pending.staleness,
          .dropped = dropped,
          .repeated = pending.state == Pending::State::kRepeated};
}

absl::Status ParameterServer::Answer(int bucket, const std::vector<int>& readers, Begun begun, Lane& lane,
                                     Replies& replies) {
  BucketState& state = buckets_[bucket];
  std::optional<Snapshot> weights;
  for (size_t i = 0; i < readers.size(); ++i) {
    // Each server begins with another worker: what one of them does first all of them would do first.
    const int reader = readers[(i + static_cast<size_t>(job_.server)) % readers.size()];
    Pending& pending = state.pending[reader];
    state.received_version[reader] = state.consistency->version();
    if (pending.state == Pending::State::kJoining) {
      pending.state = Pending::State::kNone;
      Worker& worker = workers_[reader];
      MutexLock lock(worker.mutex);
      // Until it has pushed, nothing changes any more that it must have seen.
      if (--worker.buckets_to_read == 0) {
        replies.emplace_back(reader, Reply{.header = WelcomeHeader(worker.joins_at)});
      }
      continue;
    }
    PSRING_CHECK(pending.state != Pending::State::kNone && pending.state != Pending::State::kPushed);
    Reply reply{.header = AnswerHeader(reader, bucket)};
    pending.state = Pending::State::kNone;
    if (const auto found = begun.replies.find(reader); found != begun.replies.end()) {
      reply = std::move(found->second);
    } else {
      PSRING_ASSIGN_OR_RETURN(reply.begun_on, CopyInPlace(reader, bucket, lane));
      reply.in_place = reply.begun_on != nullptr;
      if (reply.in_place) {
        reply.header.shared_bytes = shard_->bucket_bytes(bucket);
      } else {
        if (!weights.has_value()) {
          PSRING_ASSIGN_OR_RETURN(weights, shard_->Read(bucket, lane));
        }
        reply.weights = *weights;
        if (shard_->sends_copies()) {
          reply.weights.keep = shard_->staging().Lend(std::move(reply.weights.keep), reader);
        }
      }
    }
    replies.emplace_back(reader, std::move(reply));
  }
  return absl::OkStatus();
}

std::shared_ptr<ReplySink> ParameterServer::SinkOf(int worker) const {
  MutexLock lock(workers_[worker].mutex);
  return workers_[worker].sink;
}

absl::StatusOr<std::shared_ptr<ReplySink>> ParameterServer::CopyInPlace(int worker, int bucket, Lane& lane) {
  std::shared_ptr<ReplySink> sink = SinkOf(worker);
  if (sink == nullptr) return nullptr;
  const ReplySink::Place place = sink->PlaceOf(bucket, shard_->bucket_bytes(bucket));
  if (place.data == nullptr) return nullptr;
  PSRING_RETURN_IF_ERROR(place.on_gpu ? shard_->CopyWeightsToGpu(bucket, place.data, lane)
                                      : shard_->CopyWeightsTo(bucket, place.data));
  return sink;
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
  if (std::exchange(reply.begun_on, nullptr) != sink) {
    // Its stream broke meanwhile. It sends again what is not answered, and so asks for what stood in its
    // memory.
    if (reply.in_place) return;
    reply.from = 0;
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
