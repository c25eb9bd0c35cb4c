#include "ps_server/client/client_session.h"

#include <algorithm>
#include <span>
#include <utility>

#include "common/base/check.h"
#include "common/base/errors.h"

namespace psring {
namespace {

absl::Status Unexpected(const std::string& what) {
  return Internal("the server sent ", what, ", which was not requested");
}
std::string Described(const message::Weights& chunk) {
  return absl::StrCat("weights of bucket ", chunk.bucket, " at byte ", chunk.offset);
}
std::string Described(const message::Answer& chunk) {
  return absl::StrCat("an answer for bucket ", chunk.bucket, " of step ", chunk.step, " at byte ",
                      chunk.offset);
}

}  // namespace

absl::StatusOr<Payload> ParsePayload(const std::string& transport) {
  if (transport == "auto") return Payload::kAuto;
  if (transport == "tcp") return Payload::kGrpc;
  if (transport == "shm") return Payload::kShared;
  return InvalidArgument("unknown transport '", transport, "'; use auto, tcp or shm");
}

absl::Status ClientSession::Begin(const ServerJob& job, Span weights) {
  PSRING_RETURN_IF_ERROR(ValidateServerJob(job));
  if (weights.count != static_cast<size_t>(job.parameters)) {
    return InvalidArgument("memory for ", weights.count, " weights, but the job has ", job.parameters);
  }
  job_ = job;
  const WaitingRule rule = RuleOf(job);
  announces_ = rule.kind == WaitingRule::Kind::kBackup && job.server == 0;
  each_alone_ = rule.each_alone();
  MutexLock lock(mutex_);
  pending_.resize(job.buckets.size());
  resets_.assign(job.buckets.size(), 0);
  weights_ = weights;
  weights_received_.assign(job.buckets.size(), 0);
  return absl::OkStatus();
}

void ClientSession::ExpectWeights(Span weights, bool resumes) {
  MutexLock lock(mutex_);
  PSRING_CHECK(weights.count == static_cast<size_t>(job_.parameters));
  weights_ = weights;
  weights_received_.assign(job_.buckets.size(), 0);
  answered_.reset();
  if (resumes) state_.went_back_to.reset();
}

void ClientSession::ExpectAnswer() {
  MutexLock lock(mutex_);
  answered_.reset();
}

ClientSession::ToSend ClientSession::Add(const Exchange& exchange, PsClient::Done done) {
  MutexLock lock(mutex_);
  PSRING_CHECK(exchange.bucket >= 0 && static_cast<size_t>(exchange.bucket) < pending_.size());
  const size_t count = job_.buckets[exchange.bucket].count;
  PSRING_CHECK(exchange.gradient.count == count && exchange.weights.count == count);
  PSRING_CHECK(exchange.gradient.type == job_.wire);
  std::optional<Pending>& slot = pending_[exchange.bucket];
  if (!state_.failure.ok()) {
    ended_.push_back({std::move(done), state_.failure});
  } else if (slot.has_value()) {
    state_.failure = FailedPrecondition("bucket ", exchange.bucket, " has an exchange in flight");
    ended_.push_back({std::move(done), state_.failure});
  } else if (state_.went_back_to.has_value()) {
    // Of an abandoned step.
    ended_.push_back({std::move(done), ExchangeResult{.version = *state_.went_back_to, .went_back = true}});
  } else {
    slot = Pending{.exchange = exchange, .done = std::move(done), .since = MonotonicNow()};
    newest_step_ = exchange.step;
    if (!announces_) return exchange.dropped ? ToSend::kNothing : ToSend::kGradient;
    announced_.push_back(exchange);
    return announced_.size() == pending_.size() ? ToSend::kAnnouncement : ToSend::kNothing;
  }
  return ToSend::kNothing;
}

std::optional<message::Gradient> ClientSession::BeginSending(const Exchange& exchange) {
  MutexLock lock(mutex_);
  std::optional<Pending>& slot = pending_[exchange.bucket];
  if (!state_.failure.ok() || !state_.connected || !slot.has_value() || slot->sent ||
      slot->exchange.step != exchange.step) {
    return std::nullopt;
  }
  slot->sent = true;
  return message::Gradient{.bucket = exchange.bucket,
                           .step = exchange.step,
                           .samples = exchange.samples,
                           .incarnation = incarnation_,
                           .resets = resets_[exchange.bucket]};
}

message::ToServer ClientSession::Addressed(message::ToServer message) const {
  if (auto* const announcement = std::get_if<message::Announcement>(&message)) {
    MutexLock lock(mutex_);
    announcement->incarnation = incarnation_;
  }
  return message;
}

void ClientSession::OnLost() {
  MutexLock lock(mutex_);
  state_.connected = false;
  interrupted_ = true;
  weights_received_.assign(job_.buckets.size(), 0);
  for (std::optional<Pending>& slot : pending_) {
    if (!slot.has_value()) continue;
    slot->sent = false;
    slot->received = 0;
  }
}

ClientSession::State ClientSession::state() const {
  MutexLock lock(mutex_);
  return state_;
}

std::string ClientSession::Overdue(absl::Duration timeout) const {
  MutexLock lock(mutex_);
  for (const std::optional<Pending>& slot : pending_) {
    if (!state_.connected || !slot.has_value() || MonotonicNow() - slot->since < timeout) continue;
    return absl::StrCat("bucket ", slot->exchange.bucket, " of step ", slot->exchange.step);
  }
  return "";
}

message::Welcome ClientSession::OnWelcome(message::Welcome welcome) {
  MutexLock lock(mutex_);
  state_.connected = true;
  state_.patience = absl::Milliseconds(welcome.patience_ms);
  state_.epoch = welcome.epoch;
  const uint64_t before = std::exchange(incarnation_, welcome.incarnation);
  if (before == 0) {
    state_.start_step = welcome.step;
    answered_ = Question::kJoin;
    changed_.NotifyAll();
    return welcome;
  }
  // The restarted server lacks pushes that it had answered: this worker repeats them.
  const bool lacks_pushes = each_alone_ && before != welcome.incarnation && welcome.step <= newest_step_;
  welcome.went_back = welcome.went_back || lacks_pushes;
  announced_.clear();
  to_send_.clear();
  if (welcome.went_back) state_.went_back_to = welcome.step;
  for (std::optional<Pending>& slot : pending_) {
    if (!slot.has_value()) continue;
    slot->since = MonotonicNow();
    if (!welcome.went_back) {
      to_send_.push_back(slot->exchange);
      continue;
    }
    ended_.push_back({std::move(slot->done), ExchangeResult{.version = welcome.step, .went_back = true}});
    slot.reset();
  }
  std::ranges::stable_sort(to_send_, {}, &Exchange::step);
  changed_.NotifyAll();
  return welcome;
}

absl::Status ClientSession::OnReset(const message::Reset& reset) {
  if (!IsBucket(reset.bucket)) return Unexpected(absl::StrCat("a reset of bucket ", reset.bucket));
  MutexLock lock(mutex_);
  interrupted_ = true;
  resets_[reset.bucket] = reset.resets;
  std::optional<Pending>& slot = pending_[reset.bucket];
  if (slot.has_value() && slot->sent) {
    slot->sent = false;
    to_send_.push_back(slot->exchange);
  }
  return absl::OkStatus();
}

void ClientSession::OnAnswered(Question question) {
  MutexLock lock(mutex_);
  ++state_.answers;
  answered_ = question;
  changed_.NotifyAll();
}

absl::Status ClientSession::OnMessage(const message::ToWorker& message, Pieces payload, bool on_gpu) {
  if (const auto* answer = std::get_if<message::Answer>(&message)) return OnAnswer(*answer, payload, on_gpu);
  if (const auto* weights = std::get_if<message::Weights>(&message)) return OnWeights(*weights, payload);
  if (const auto* reset = std::get_if<message::Reset>(&message)) return OnReset(*reset);
  if (const auto* rows = std::get_if<message::Rows>(&message)) return OnRows(*rows, payload);
  if (const auto* admitted = std::get_if<message::Admitted>(&message)) {
    PSRING_RETURN_IF_ERROR(OnAdmitted(*admitted));
  }
  if (const auto* welcome = std::get_if<message::Welcome>(&message)) {
    listener_(OnWelcome(*welcome));
  } else if (std::holds_alternative<message::BarrierPassed>(message)) {
    OnAnswered(Question::kBarrier);
  } else if (std::holds_alternative<message::FetchDone>(message)) {
    OnAnswered(Question::kFetch);
  } else {
    listener_(message);
    if (std::holds_alternative<message::Left>(message)) OnAnswered(Question::kLeave);
  }
  return absl::OkStatus();
}

absl::Status ClientSession::OnAdmitted(const message::Admitted& admitted) {
  MutexLock lock(mutex_);
  if (announced_.empty() || announced_.size() < pending_.size() || announced_.front().step != admitted.step) {
    return Unexpected(absl::StrCat("an admission to step ", admitted.step));
  }
  to_send_.swap(announced_);
  return absl::OkStatus();
}

std::vector<Exchange> ClientSession::TakeToSend() {
  MutexLock lock(mutex_);
  return std::exchange(to_send_, {});
}

absl::Status ClientSession::OnWeights(const message::Weights& chunk, Pieces payload) {
  if (!IsBucket(chunk.bucket)) return Unexpected(Described(chunk));
  const Bucket& bucket = job_.buckets[chunk.bucket];
  const size_t size = bucket.count * sizeof(float);
  MutexLock lock(mutex_);
  uint64_t& received = weights_received_[chunk.bucket];
  const size_t bytes = TotalBytes(payload);
  if (weights_.data == nullptr) return absl::OkStatus();  // nobody waits any more
  if (chunk.offset != received || bytes > size - received) return Unexpected(Described(chunk));
  // Under the lock, so that a caller that stops waiting may free the memory.
  CopyPieces(payload, static_cast<std::byte*>(weights_.Slice(bucket.first, bucket.count).data) + received);
  received += bytes;
  return absl::OkStatus();
}

absl::StatusOr<std::optional<std::byte*>> ClientSession::PlaceOf(const message::Answer& chunk, size_t bytes) {
  if (!IsBucket(chunk.bucket)) return Unexpected(Described(chunk));
  MutexLock lock(mutex_);
  const std::optional<Pending>& slot = pending_[chunk.bucket];
  const bool late = !slot.has_value() || chunk.step < slot->exchange.step;
  if (late && interrupted_) return std::optional<std::byte*>();  // the second answer to what was sent twice
  if (!slot.has_value() || chunk.step != slot->exchange.step || chunk.offset != slot->received ||
      bytes > slot->exchange.weights.bytes() - slot->received) {
    return Unexpected(Described(chunk));
  }
  return static_cast<std::byte*>(slot->exchange.weights.data) + slot->received;
}

absl::Status ClientSession::OnAnswer(const message::Answer& chunk, Pieces payload, bool on_gpu) {
  const size_t bytes = TotalBytes(payload);
  PSRING_ASSIGN_OR_RETURN(const std::optional<std::byte*> place, PlaceOf(chunk, bytes));
  if (!place.has_value()) return absl::OkStatus();
  CopyPieces(payload, *place);
  Pending* pending = nullptr;
  {
    MutexLock lock(mutex_);
    pending = &*pending_[chunk.bucket];  // remains valid: only this thread ends an exchange
  }
  const size_t size = pending->exchange.weights.bytes();
  pending->received += bytes;
  if (pending->received < size) return absl::OkStatus();

  PsClient::Done done;
  {
    MutexLock lock(mutex_);
    ++state_.answers;
    done = std::move(pending->done);
    state_.traffic =
        state_.traffic + Traffic{.payload_tx_bytes = chunk.dropped ? 0 : pending->exchange.gradient.bytes(),
                                 .payload_rx_bytes = size};
    pending_[chunk.bucket].reset();
    if (chunk.dropped) {
      std::erase_if(announced_, [&](const Exchange& exchange) { return exchange.step == chunk.step; });
    }
  }
  done(ExchangeResult{
      .version = chunk.version, .staleness = chunk.staleness, .dropped = chunk.dropped, .on_gpu = on_gpu});
  return absl::OkStatus();
}

absl::Status ClientSession::OnRows(const message::Rows& rows, Pieces payload) {
  MutexLock lock(mutex_);
  const auto found = asked_rows_.find(rows.request);
  if (found == asked_rows_.end()) {
    if (!state_.failure.ok()) return absl::OkStatus();  // nobody waits any more
    return Unexpected(absl::StrCat("rows of table ", rows.bucket));
  }
  const AskedRows& asked = found->second;
  if (rows.bucket != asked.bucket || rows.step != asked.step ||
      TotalBytes(payload) != asked.floats * sizeof(float)) {
    return Unexpected(
        absl::StrCat(TotalBytes(payload), " bytes of rows of table ", rows.bucket, " of step ", rows.step));
  }
  // Under the lock, so that a caller that stops waiting may free the memory.
  CopyPieces(payload, reinterpret_cast<std::byte*>(asked.values));
  state_.traffic = state_.traffic + Traffic{.payload_tx_bytes = asked.sent_bytes,
                                            .payload_rx_bytes = asked.floats * sizeof(float)};
  asked_rows_.erase(found);
  ++state_.answers;
  if (!asked_rows_.empty()) return absl::OkStatus();
  answered_ = Question::kRows;
  changed_.NotifyAll();
  return absl::OkStatus();
}

void ClientSession::AddAskedLocked(RowMessage& part) {
  AskedRows asked{
      .sent_bytes = part.payload->size() * sizeof(float), .values = part.values, .floats = part.floats};
  if (auto* const pull = std::get_if<message::PullRows>(&part.message)) {
    pull->request = next_request_;
    asked.bucket = pull->bucket;
    asked.step = pull->step;
  } else if (auto* const initial = std::get_if<message::InitialRows>(&part.message)) {
    initial->request = next_request_;
    asked.bucket = initial->bucket;
  }
  asked_rows_.emplace(next_request_++, asked);
}

absl::Status ClientSession::AskForRows(std::vector<RowMessage> parts, MonotonicTime deadline,
                                       const std::string& whom,
                                       const std::function<void(const RowMessage&)>& send) {
  const size_t most = MostPulls(job_.tables.size());
  for (size_t first = 0; first < parts.size(); first += most) {
    const std::span<RowMessage> group = std::span(parts).subspan(first, std::min(most, parts.size() - first));
    {
      MutexLock lock(mutex_);
      PSRING_RETURN_IF_ERROR(state_.failure);
      answered_.reset();
      for (RowMessage& part : group) AddAskedLocked(part);
    }
    for (const RowMessage& part : group) send(part);
    PSRING_RETURN_IF_ERROR(Await(Question::kRows, deadline, whom));
  }
  return absl::OkStatus();
}

std::vector<RowMessage> ClientSession::PushRows(int64_t step, int64_t samples,
                                                absl::Span<const RowPush> pushes) {
  std::vector<RowMessage> parts = PartsOf(job_, step, samples, pushes);
  MutexLock lock(mutex_);
  for (const RowMessage& part : parts) {
    state_.traffic = state_.traffic + Traffic{.payload_tx_bytes = part.payload->size() * sizeof(float)};
  }
  return parts;
}

void ClientSession::Fail(const absl::Status& why) {
  MutexLock lock(mutex_);
  if (state_.failure.ok()) state_.failure = why;
  changed_.NotifyAll();
}

void ClientSession::EndExchanges() {
  std::vector<Ended> ended;
  {
    MutexLock lock(mutex_);
    ended.swap(ended_);
    if (!state_.failure.ok()) {
      for (std::optional<Pending>& slot : pending_) {
        if (slot.has_value()) ended.push_back({std::move(slot->done), state_.failure});
        slot.reset();
      }
    }
  }
  for (Ended& exchange : ended) exchange.done(std::move(exchange.result));
}

absl::Status ClientSession::Await(Question question, MonotonicTime deadline, const std::string& whom) {
  MutexLock lock(mutex_);
  const MonotonicTime begin = MonotonicNow();
  const bool may_go_back = question == Question::kBarrier;  // a server that went back answers no barrier
  while (state_.failure.ok() && answered_ != question && !(may_go_back && state_.went_back_to.has_value())) {
    if (MonotonicNow() >= deadline) {
      state_.failure = DeadlineExceeded(
          "waited ", absl::FormatDuration(absl::Trunc(MonotonicNow() - begin, absl::Milliseconds(1))),
          " for ", whom);
      changed_.NotifyAll();
      break;
    }
    changed_.WaitUntil(mutex_, deadline);
  }
  weights_ = {};
  asked_rows_.clear();
  return answered_ == question ? absl::OkStatus() : state_.failure;
}

}  // namespace psring
