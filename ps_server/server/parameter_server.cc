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

Receipt ParameterServer::Receive(int worker, const ReplySink* sink, const message::ToServer& message,
                                 const ReceivedPayload& payload, Lane& lane) {
  if (failed_) return Receipt::kTaken;
  last_arrival_ns_ = MonotonicNanos();
  absl::StatusOr<Receipt> receipt = Receipt::kTaken;
  {
    MutexLock receive_lock(workers_[worker].receive);
    {
      MutexLock lock(workers_[worker].mutex);
      // The worker has another stream by now, or is not in the job any more.
      if (workers_[worker].sink.get() != sink) return Receipt::kTaken;
    }
    receipt = Dispatch(worker, message, payload, lane);
  }
  if (receipt.ok()) return *receipt;
  TurnAway(worker, sink, receipt.status());
  return Receipt::kTaken;
}

absl::StatusOr<Receipt> ParameterServer::Dispatch(int worker, const message::ToServer& message,
                                                  const ReceivedPayload& payload, Lane& lane) {
  const auto taken = [](const absl::Status& status) {
    return status.ok() ? absl::StatusOr<Receipt>(Receipt::kTaken) : status;
  };
  if (workers_[worker].left) {
    // The total of a step's norm may come when the step is complete.
    if (std::holds_alternative<message::NormTotal>(message)) return Receipt::kTaken;
    if (std::holds_alternative<message::Leave>(message)) return Receipt::kTaken;
    return absl::FailedPreconditionError(
        absl::StrCat("worker ", worker, " has left and must not send messages"));
  }
  if (const auto* weights = std::get_if<message::InitialWeights>(&message)) {
    return taken(OnWeights(worker, *weights, payload.pieces));
  }
  if (const auto* rewind = std::get_if<message::Rewind>(&message)) {
    if (!started_ || rewind->epoch <= epoch_) return Receipt::kTaken;  // nothing to go back from
    return taken(OnRewind(worker, *rewind));
  }
  if (!started_) {
    return absl::FailedPreconditionError(
        absl::StrCat("worker ", worker, " sent a message before all workers have joined"));
  }
  if (const auto* chunk = std::get_if<message::Gradient>(&message))
    return OnGradient(worker, *chunk, payload, lane);
  if (const auto* fetch = std::get_if<message::Fetch>(&message)) return taken(OnFetch(worker, *fetch));
  if (std::holds_alternative<message::Leave>(message)) return taken(OnLeave(worker, lane));
  if (const auto* announcement = std::get_if<message::Announcement>(&message)) {
    if (announcement->incarnation != incarnation_) return Receipt::kTaken;
    return taken(OnAnnounce(worker, *announcement, lane));
  }
  if (const auto* total = std::get_if<message::NormTotal>(&message)) return taken(OnNormTotal(*total, lane));
  if (const auto* barrier = std::get_if<message::Barrier>(&message)) {
    return taken(OnBarrier(worker, barrier->number));
  }
  return absl::InvalidArgumentError(absl::StrCat("worker ", worker, " sent a second Join"));
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
          {.message = reply.message, .weights = reply.weights, .from = reply.from, .upto = made});
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
    message::Answer answer = AnswerMessage(reader, bucket);
    Reply reply{.begun_on = sink};
    if (place.data != nullptr && !place.on_gpu) {
      begun.places.push_back(place.data);
      reply.in_place = true;
      answer.shared = message::WeightsPlace{.bytes = shard_->bucket_bytes(bucket)};
    } else if (sink->TakesParts() && !shard_->sends_copies() && !job_.serial) {
      PSRING_ASSIGN_OR_RETURN(reply.weights, shard_->Read(bucket, lane));
    } else {
      continue;
    }
    reply.message = answer;
    begun.replies.emplace(reader, std::move(reply));
  }
  return begun;
}

message::Answer ParameterServer::AnswerMessage(int worker, int bucket) const {
  const Pending& pending = buckets_[bucket].pending[worker];
  const bool dropped = pending.state == Pending::State::kDropped;
  return {.bucket = bucket,
          .step = pending.step,
          .version = buckets_[bucket].consistency->version(),
          .staleness = dropped ? 0 : pending.staleness,
          .dropped = dropped};
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
        replies.emplace_back(reader, Reply{.message = WelcomeMessage(worker.joins_at)});
      }
      continue;
    }
    PSRING_CHECK(pending.state != Pending::State::kNone && pending.state != Pending::State::kPushed);
    message::Answer answer = AnswerMessage(reader, bucket);
    Reply reply{.repeated = pending.state == Pending::State::kRepeated};
    pending.state = Pending::State::kNone;
    if (const auto found = begun.replies.find(reader); found != begun.replies.end()) {
      reply = std::move(found->second);
    } else {
      PSRING_ASSIGN_OR_RETURN(reply.begun_on, CopyInPlace(reader, bucket, lane));
      reply.in_place = reply.begun_on != nullptr;
      if (reply.in_place) {
        answer.shared = message::WeightsPlace{.bytes = shard_->bucket_bytes(bucket)};
      } else {
        if (!weights.has_value()) {
          PSRING_ASSIGN_OR_RETURN(weights, shard_->Read(bucket, lane));
        }
        reply.weights = *weights;
        if (shard_->sends_copies()) {
          reply.weights.keep = shard_->staging().Lend(std::move(reply.weights.keep), reader);
        }
      }
      reply.message = answer;
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

absl::Status ParameterServer::OnFetch(int worker, const message::Fetch& fetch) {
  if (fetch.slot < 0 || fetch.slot > shard_->slots()) {
    return absl::InvalidArgumentError(absl::StrCat("worker ", worker, " asked for slot ", fetch.slot,
                                                   " of an optimizer that has ", shard_->slots()));
  }
  PSRING_ASSIGN_OR_RETURN(std::vector<Reply> weights, AllWeights(static_cast<int>(fetch.slot)));
  for (Reply& bucket : weights) Deliver(worker, std::move(bucket));
  Deliver(worker, {.message = message::FetchDone{}});
  return absl::OkStatus();
}

void ParameterServer::Finish(Replies replies) {
  CheckpointIfDue();
  for (auto& [reader, reply] : replies) {
    if (const auto* welcome = std::get_if<message::Welcome>(&reply.message)) {
      bool again = false;
      {
        MutexLock lock(workers_[reader].mutex);
        again = workers_[reader].joins_again;
      }
      if (absl::Status status = Welcome(reader, welcome->step, again, /*went_back=*/again); !status.ok()) {
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
    const auto* const answer = std::get_if<message::Answer>(&reply.message);
    const int64_t buckets = static_cast<int64_t>(job_.buckets.size());
    if (answer != nullptr && job_.serial && answer->step >= state.pushes_complete / buckets) {
      state.held.push_back(std::move(reply));
      return;
    }
    if (answer != nullptr && !reply.repeated) {
      MutexLock stats_lock(stats_mutex_);
      Count(worker, *answer);
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

void ParameterServer::Count(int worker, const message::Answer& answer) {
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
