#include "ps_server/client/client_session.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/check.h"
#include "ps_server/consistency/consistency.h"
#include "ps_server/protocol/pieces.h"

namespace psring {
namespace {

size_t BytesOf(const Bucket& bucket) { return bucket.count * sizeof(float); }

absl::Status Unexpected(const ChunkHeader& header) {
  return absl::InternalError(absl::StrCat("the server sent a message of kind ", static_cast<int>(header.kind),
                                          " for bucket ", header.bucket, " at byte ", header.offset,
                                          " of step ", header.step, ", which nobody asked for"));
}

}  // namespace

absl::StatusOr<Payload> ParsePayload(const std::string& transport) {
  if (transport == "auto") return Payload::kAuto;
  if (transport == "tcp") return Payload::kGrpc;
  if (transport == "shm") return Payload::kShared;
  return absl::InvalidArgumentError(
      absl::StrCat("unknown transport '", transport, "'; use auto, tcp or shm"));
}

absl::Status ClientSession::Begin(const ServerJob& job, Span weights) {
  PSRING_RETURN_IF_ERROR(ValidateServerJob(job));
  if (weights.count != static_cast<size_t>(job.parameters)) {
    return absl::InvalidArgumentError(
        absl::StrCat("room for ", weights.count, " weights, and the job has ", job.parameters));
  }
  job_ = job;
  PSRING_ASSIGN_OR_RETURN(const WaitingRule rule, ParseWaitingRule(job.consistency, job.workers));
  announces_ = rule.kind == WaitingRule::Kind::kBackup && job.server == 0;
  MutexLock lock(mutex_);
  pending_.resize(job.buckets.size());
  resets_.assign(job.buckets.size(), 0);
  weights_ = weights;
  weights_received_.assign(job.buckets.size(), 0);
  return absl::OkStatus();
}

void ClientSession::ExpectWeights(Span weights, bool goes_on) {
  MutexLock lock(mutex_);
  PSRING_CHECK(weights.count == static_cast<size_t>(job_.parameters));
  weights_ = weights;
  weights_received_.assign(job_.buckets.size(), 0);
  answered_.reset();
  if (goes_on) went_back_to_.reset();
}

void ClientSession::ExpectAnswer() {
  MutexLock lock(mutex_);
  answered_.reset();
}

std::optional<int64_t> ClientSession::went_back_to() const {
  MutexLock lock(mutex_);
  return went_back_to_;
}

ClientSession::ToSend ClientSession::Add(const Exchange& exchange, PsClient::Done done) {
  MutexLock lock(mutex_);
  PSRING_CHECK(exchange.bucket >= 0 && static_cast<size_t>(exchange.bucket) < pending_.size());
  const size_t count = job_.buckets[exchange.bucket].count;
  PSRING_CHECK(exchange.gradient.count == count && exchange.weights.count == count);
  PSRING_CHECK(exchange.gradient.type == job_.wire);
  std::optional<Pending>& slot = pending_[exchange.bucket];
  if (!failure_.ok()) {
    ended_.push_back({std::move(done), failure_});
  } else if (slot.has_value()) {
    failure_ =
        absl::FailedPreconditionError(absl::StrCat("bucket ", exchange.bucket, " has an exchange in flight"));
    ended_.push_back({std::move(done), failure_});
  } else if (went_back_to_.has_value()) {
    // Of a step that is given up.
    ended_.push_back({std::move(done), ExchangeResult{.version = *went_back_to_, .went_back = true}});
  } else {
    slot = Pending{.exchange = exchange, .done = std::move(done), .since = absl::Now()};
    if (!announces_) return exchange.dropped ? ToSend::kNothing : ToSend::kGradient;
    announced_.push_back(exchange);
    return announced_.size() == pending_.size() ? ToSend::kAnnouncement : ToSend::kNothing;
  }
  return ToSend::kNothing;
}

std::optional<ChunkHeader> ClientSession::BeginSending(const Exchange& exchange) {
  MutexLock lock(mutex_);
  std::optional<Pending>& slot = pending_[exchange.bucket];
  if (!failure_.ok() || !connected_ || !slot.has_value() || slot->sent ||
      slot->exchange.step != exchange.step) {
    return std::nullopt;
  }
  slot->sent = true;
  return ChunkHeader{.kind = MessageKind::kExchange,
                     .bucket = exchange.bucket,
                     .step = exchange.step,
                     .samples = exchange.samples,
                     .incarnation = incarnation_,
                     .resets = resets_[exchange.bucket]};
}

ChunkHeader ClientSession::Addressed(ChunkHeader word) const {
  MutexLock lock(mutex_);
  word.incarnation = incarnation_;
  return word;
}

void ClientSession::OnLost() {
  MutexLock lock(mutex_);
  connected_ = false;
  interrupted_ = true;
  weights_received_.assign(job_.buckets.size(), 0);
  for (std::optional<Pending>& slot : pending_) {
    if (!slot.has_value()) continue;
    slot->sent = false;
    slot->received = 0;
  }
}

bool ClientSession::connected() const {
  MutexLock lock(mutex_);
  return connected_;
}

std::optional<absl::Duration> ClientSession::patience() const {
  MutexLock lock(mutex_);
  return patience_;
}

int64_t ClientSession::start_step() const {
  MutexLock lock(mutex_);
  return start_step_;
}

int64_t ClientSession::epoch() const {
  MutexLock lock(mutex_);
  return epoch_;
}

std::string ClientSession::Overdue(absl::Duration timeout) const {
  MutexLock lock(mutex_);
  for (const std::optional<Pending>& slot : pending_) {
    if (!connected_ || !slot.has_value() || absl::Now() - slot->since < timeout) continue;
    return absl::StrCat("bucket ", slot->exchange.bucket, " of step ", slot->exchange.step);
  }
  return "";
}

void ClientSession::OnJoined(const ChunkHeader& header) {
  MutexLock lock(mutex_);
  connected_ = true;
  patience_ = absl::Milliseconds(header.patience_ms);
  epoch_ = header.version;
  const bool first = std::exchange(incarnation_, header.incarnation) == 0;
  if (first) {
    start_step_ = header.step;
    answered_ = MessageKind::kJoin;
    changed_.NotifyAll();
    return;
  }
  announced_.clear();
  to_send_.clear();
  if (header.dropped) went_back_to_ = header.step;
  for (std::optional<Pending>& slot : pending_) {
    if (!slot.has_value()) continue;
    slot->since = absl::Now();
    if (!header.dropped) {
      to_send_.push_back(slot->exchange);
      continue;
    }
    ended_.push_back({std::move(slot->done), ExchangeResult{.version = header.step, .went_back = true}});
    slot.reset();
  }
  // In the order in which they came.
  std::stable_sort(to_send_.begin(), to_send_.end(),
                   [](const Exchange& a, const Exchange& b) { return a.step < b.step; });
  changed_.NotifyAll();
}

absl::Status ClientSession::OnReset(const ChunkHeader& header) {
  if (header.bucket < 0 || static_cast<size_t>(header.bucket) >= job_.buckets.size()) {
    return Unexpected(header);
  }
  MutexLock lock(mutex_);
  interrupted_ = true;
  resets_[header.bucket] = header.resets;
  std::optional<Pending>& slot = pending_[header.bucket];
  if (slot.has_value() && slot->sent) {
    slot->sent = false;
    to_send_.push_back(slot->exchange);
  }
  return absl::OkStatus();
}

absl::Status ClientSession::OnChunk(const ChunkHeader& header, Pieces payload) {
  switch (header.kind) {
    case MessageKind::kWeights:
      return OnWeights(header, payload);
    case MessageKind::kExchange:
      return OnExchange(header, payload);
    case MessageKind::kAnnounce:
      return OnAdmitted(header);
    case MessageKind::kNorm:
      heard_(header);
      return absl::OkStatus();
    case MessageKind::kReset:
      return OnReset(header);
    case MessageKind::kJoin:
      OnJoined(header);
      heard_(header);
      return absl::OkStatus();
    case MessageKind::kRewind:
      return Unexpected(header);
    case MessageKind::kBarrier:
    case MessageKind::kFetch:
    case MessageKind::kLeave: {
      if (header.kind == MessageKind::kLeave) heard_(header);
      MutexLock lock(mutex_);
      ++answers_;
      answered_ = header.kind;
      changed_.NotifyAll();
      return absl::OkStatus();
    }
  }
  return Unexpected(header);
}

absl::Status ClientSession::OnAdmitted(const ChunkHeader& header) {
  {
    MutexLock lock(mutex_);
    if (announced_.empty() || announced_.size() < pending_.size() || announced_.front().step != header.step) {
      return Unexpected(header);
    }
    to_send_.swap(announced_);
  }
  heard_(header);
  return absl::OkStatus();
}

std::vector<Exchange> ClientSession::TakeToSend() {
  MutexLock lock(mutex_);
  return std::exchange(to_send_, {});
}

absl::Status ClientSession::OnWeights(const ChunkHeader& header, Pieces payload) {
  if (header.bucket < 0 || static_cast<size_t>(header.bucket) >= job_.buckets.size())
    return Unexpected(header);
  const Bucket& bucket = job_.buckets[header.bucket];
  MutexLock lock(mutex_);
  uint64_t& received = weights_received_[header.bucket];
  const size_t bytes = TotalBytes(payload);
  if (weights_.data == nullptr) return absl::OkStatus();  // nobody waits any more
  if (header.offset != received || bytes > BytesOf(bucket) - received) return Unexpected(header);
  // Under the lock, so that whoever gives up waiting may free the memory.
  CopyPieces(payload, static_cast<std::byte*>(weights_.Slice(bucket.first, bucket.count).data) + received);
  received += bytes;
  return absl::OkStatus();
}

absl::Status ClientSession::OnExchange(const ChunkHeader& header, Pieces payload) {
  if (header.bucket < 0 || static_cast<size_t>(header.bucket) >= job_.buckets.size())
    return Unexpected(header);
  Pending* pending = nullptr;
  {
    MutexLock lock(mutex_);
    std::optional<Pending>& slot = pending_[header.bucket];
    const bool late = !slot.has_value() || header.step < slot->exchange.step;
    if (late && interrupted_) return absl::OkStatus();  // the second answer to what was sent twice
    if (!slot.has_value()) return Unexpected(header);
    pending = &*slot;  // stays: only this thread ends an exchange
  }
  const size_t size = pending->exchange.weights.bytes();
  const size_t bytes = TotalBytes(payload);
  if (header.step != pending->exchange.step || header.offset != pending->received ||
      bytes > size - pending->received) {
    return Unexpected(header);
  }
  CopyPieces(payload, static_cast<std::byte*>(pending->exchange.weights.data) + pending->received);
  pending->received += bytes;
  if (pending->received < size) return absl::OkStatus();

  PsClient::Done done;
  {
    MutexLock lock(mutex_);
    ++answers_;
    done = std::move(pending->done);
    traffic_ = traffic_ + Traffic{.payload_tx_bytes = header.dropped ? 0 : pending->exchange.gradient.bytes(),
                                  .payload_rx_bytes = size};
    pending_[header.bucket].reset();
    if (header.dropped) {
      std::erase_if(announced_, [&](const Exchange& exchange) { return exchange.step == header.step; });
    }
  }
  done(ExchangeResult{.version = header.version,
                      .staleness = header.staleness,
                      .dropped = header.dropped,
                      .on_gpu = header.on_gpu});
  return absl::OkStatus();
}

void ClientSession::Fail(const absl::Status& why) {
  MutexLock lock(mutex_);
  if (failure_.ok()) failure_ = why;
  changed_.NotifyAll();
}

int64_t ClientSession::answers() const {
  MutexLock lock(mutex_);
  return answers_;
}

void ClientSession::TakeForAnswered(MessageKind kind) {
  MutexLock lock(mutex_);
  answered_ = kind;
  changed_.NotifyAll();
}

absl::Status ClientSession::failure() const {
  MutexLock lock(mutex_);
  return failure_;
}

void ClientSession::EndExchanges() {
  std::vector<Ended> ended;
  {
    MutexLock lock(mutex_);
    ended.swap(ended_);
    if (!failure_.ok()) {
      for (std::optional<Pending>& slot : pending_) {
        if (slot.has_value()) ended.push_back({std::move(slot->done), failure_});
        slot.reset();
      }
    }
  }
  for (Ended& exchange : ended) exchange.done(std::move(exchange.result));
}

absl::Status ClientSession::Await(MessageKind kind, absl::Time deadline, const std::string& whom) {
  MutexLock lock(mutex_);
  const absl::Time begin = absl::Now();
  const bool heeds = kind == MessageKind::kBarrier;  // who went back is at no barrier any more
  while (failure_.ok() && answered_ != kind && !(heeds && went_back_to_.has_value())) {
    if (absl::Now() >= deadline) {
      failure_ = absl::DeadlineExceededError(absl::StrCat(
          "waited ", absl::FormatDuration(absl::Trunc(absl::Now() - begin, absl::Milliseconds(1))), " for ",
          whom));
      changed_.NotifyAll();
      break;
    }
    changed_.WaitUntil(mutex_, deadline);
  }
  weights_ = {};
  return answered_ == kind ? absl::OkStatus() : failure_;
}

Traffic ClientSession::traffic() const {
  MutexLock lock(mutex_);
  return traffic_;
}

}  // namespace psring
