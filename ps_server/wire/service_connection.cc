#include "ps_server/wire/service_connection.h"

#include <algorithm>
#include <utility>

#include "common/base/errors.h"

namespace psring {
namespace {

constexpr char kClosed[] = "its connection closed before it left";
constexpr int64_t kJoinSeconds = 10;  // from connecting to Join

}  // namespace

void Connection::Accept(RawService& service, grpc::ServerCompletionQueue& queue) {
  MutexLock lock(mutex_);
  self_ = shared_from_this();
  ++operations_;
  service.RequestExchange(&context_, &stream_, &queue, &queue, &connected_);
}

void Connection::Complete(Tag::Handler handler, bool ok, Lane& lane) {
  (this->*handler)(ok, lane);
  std::shared_ptr<Connection> last_operation;
  {
    MutexLock lock(mutex_);
    if (--operations_ == 0) last_operation = std::move(self_);
  }
  if (last_operation == nullptr) return;
  if (payload_ != nullptr) payload_->End();
  if (worker_ >= 0) server_.Disconnected(worker_, this, kClosed);
}

void Connection::OnConnected(bool ok, Lane&) {
  if (!ok) return;  // the service stops
  host_.OnAccepted();
  MutexLock lock(mutex_);
  context_.AddInitialMetadata(kOfferKey, host_.receiver().offer());
  writing_ = true;
  operations_ += 2;
  stream_.SendInitialMetadata(&written_);
  const gpr_timespec due =
      gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_seconds(kJoinSeconds, GPR_TIMESPAN));
  join_alarm_.Set(&host_.queue(), due, &join_due_);
  ReadLocked();
}

void Connection::OnJoinDue(bool expired, Lane&) {
  if (!expired) return;  // joined or disconnected
  MutexLock lock(mutex_);
  EndLocked(DeadlineExceeded("no Join came within ", kJoinSeconds, " s"));
}

void Connection::OnRead(bool ok, Lane& lane) {
  if (!ok) {
    join_alarm_.Cancel();
    if (worker_ >= 0) server_.Disconnected(worker_, this, kClosed);
    MutexLock lock(mutex_);
    return EndLocked(absl::OkStatus());
  }
  const absl::StatusOr<Receipt> receipt = Handle(lane);
  MutexLock lock(mutex_);
  if (!receipt.ok()) return EndLocked(receipt.status());
  ContinueLocked(*receipt);
}

void Connection::ContinueLocked(Receipt receipt) {
  if (ending_) return;
  if (receipt == Receipt::kTaken) return ReadLocked();
  ++operations_;
  waits_ = !std::exchange(may_proceed_, false);
  const gpr_clock_type clock = GPR_CLOCK_MONOTONIC;
  proceed_alarm_.Set(&host_.queue(), waits_ ? gpr_inf_future(clock) : gpr_now(clock), &proceed_);
}

void Connection::Proceed() {
  if (payload_ != nullptr) payload_->Wake();
  MutexLock lock(mutex_);
  may_proceed_ = !waits_;
  if (std::exchange(waits_, false)) proceed_alarm_.Cancel();
}

void Connection::OnProceed(bool, Lane& lane) {
  {
    MutexLock lock(mutex_);
    if (ending_) return;
  }
  const Receipt receipt = Forward(lane);
  MutexLock lock(mutex_);
  ContinueLocked(receipt);
}

absl::StatusOr<Receipt> Connection::Handle(Lane& lane) {
  const absl::Status status = received_.Decode(incoming_);
  if (worker_ < 0) {
    PSRING_RETURN_IF_ERROR(status);
    PSRING_RETURN_IF_ERROR(HandleJoin());
    CountTaken();
    return Receipt::kTaken;
  }
  if (status.ok()) return Forward(lane);
  Expel(status);
  return Receipt::kTaken;
}

void Connection::CountTaken() {
  ++taken_;
  if (payload_ != nullptr) payload_->Wake();  // it may wait for this message
}

// Parts of one answer count once; messages that other workers cause do not count.
absl::Status Connection::CheckUnread() {
  auto [unread, rows] = payload_ != nullptr ? payload_->unread() : PayloadStream::Unread();
  MutexLock lock(mutex_);
  if (unread + outgoing_.size() <= std::min(most_unread_, most_unread_rows_)) return absl::OkStatus();
  for (const Reply& reply : outgoing_) {
    if (std::holds_alternative<message::Reset>(reply.message)) continue;
    if (reply.upto < reply.weights.weights.bytes()) continue;
    ++unread;
    rows += std::holds_alternative<message::Rows>(reply.message) ? 1 : 0;
  }
  if (unread <= most_unread_ && rows <= most_unread_rows_) return absl::OkStatus();
  const size_t most = unread > most_unread_ ? most_unread_ : most_unread_rows_;
  return ResourceExhausted("another message without having read ", most, " answers to earlier ones");
}

Receipt Connection::Forward(Lane& lane) {
  if (const absl::Status read = CheckUnread(); !read.ok()) {
    Expel(read);
    return Receipt::kTaken;
  }
  const auto* const gradient = std::get_if<message::Gradient>(&received_.message());
  absl::StatusOr<Receipt> receipt =
      gradient != nullptr && gradient->shared.has_value()
          ? HandleShared(*gradient, lane)
          : server_.Receive(worker_, this, received_.message(), {.pieces = received_.payload()}, lane);
  if (!receipt.ok()) {
    Expel(receipt.status());
    receipt = Receipt::kTaken;
  }
  if (*receipt == Receipt::kNotYet) return *receipt;
  received_.Clear();  // releases the memory while it is still in the cache
  CountTaken();
  return *receipt;
}

void Connection::Expel(const absl::Status& why) {
  server_.Expel(worker_, this, Prefixed(why, "worker ", worker_, " sent "));
}

absl::Status Connection::HandleJoin() {
  if (!std::holds_alternative<message::Join>(received_.message())) {
    return FailedPrecondition("the first message must be a Join");
  }
  PSRING_ASSIGN_OR_RETURN(const Joining joining, DecodeJoin(received_.payload()));
  received_.Clear();
  if (!joining.memory.empty()) {
    std::optional<WorkerMemory> memory = host_.receiver().Take(joining.memory);
    if (!memory.has_value()) {
      return FailedPrecondition("worker ", joining.worker,
                                " names shared memory that it has not handed over");
    }
    memory_ = std::make_shared<const WorkerMemory>(*std::move(memory));
  }
  if (joining.payload != 0) {
    payload_ = host_.streams().Take(joining.payload);
    if (payload_ == nullptr) {
      return FailedPrecondition("worker ", joining.worker,
                                " names a payload connection that it has not opened");
    }
  }
  // Four times as many as a worker may legitimately have: one per bucket, its pulls of rows, and a few
  // control messages.
  const size_t tables = joining.job.tables.size();
  most_unread_ = 4 * (joining.job.buckets.size() + (tables > 0 ? MostPulls(tables) : 0) + 4);
  // Each of them has memory of its own, and a worker reads all before it sends more pulls than that.
  most_unread_rows_ = tables > 0 ? MostPulls(tables) : most_unread_;
  PSRING_RETURN_IF_ERROR(server_.Join(joining, shared_from_this()));
  worker_ = joining.worker;
  join_alarm_.Cancel();
  if (payload_ != nullptr) payload_->Begin(shared_from_this());
  return absl::OkStatus();
}

Receipt Connection::OnPayload(const message::ToServer& message, uint64_t after, Bytes payload, Lane& lane) {
  if (after > taken_) return Receipt::kNotYet;
  absl::Status status = CheckUnread();
  const auto* const gradient = std::get_if<message::Gradient>(&message);
  const bool is_payload = gradient != nullptr ? !gradient->shared.has_value() : FollowsRows(message);
  if (status.ok() && !is_payload) {
    status = InvalidArgument("something else than gradients and rows on its payload connection");
  }
  if (status.ok()) return server_.Receive(worker_, this, message, {.pieces = {&payload, 1}}, lane);
  Expel(status);
  return Receipt::kTaken;
}

void Connection::OnPayloadEnd(const absl::Status& why) {
  const bool is_invalid = absl::IsInvalidArgument(why);
  if (is_invalid) {
    Expel(why);
  } else {
    server_.Disconnected(worker_, this, kClosed);
  }
  MutexLock lock(mutex_);
  // Cancelled: the worker may join again.
  EndLocked(is_invalid ? why : Cancelled(why.message()));
}

// The server reads the gradient from the worker's memory.
absl::StatusOr<Receipt> Connection::HandleShared(const message::Gradient& gradient, Lane& lane) {
  if (memory_ == nullptr) return FailedPrecondition("a gradient in shared memory, but shares no memory");
  const auto& [bytes, gradient_at, weights_at] = *gradient.shared;
  const SharedMemory& gradients = memory_->gradients;
  const bool on_gpu = memory_->on_gpu();
  if (gradient_at > gradients.bytes() || bytes > gradients.bytes() - gradient_at) {
    return InvalidArgument("the place of a gradient outside of its memory: ", bytes, " bytes at ",
                           gradient_at);
  }
  {
    MutexLock lock(mutex_);
    places_[gradient.bucket] = weights_at;
  }
  const auto* const begin =
      on_gpu ? static_cast<const std::byte*>(memory_->gradients_on_gpu.data()) : gradients.data();
  const Bytes piece(begin + gradient_at, bytes);
  // A whole bucket may be used in place; a chunk is added now.
  return server_.Receive(
      worker_, this, gradient,
      {.pieces = {&piece, 1}, .stays = gradient_at % alignof(float) == 0, .on_gpu = on_gpu}, lane);
}

ReplySink::Place Connection::PlaceOf(int bucket, size_t bytes) {
  MutexLock lock(mutex_);
  const auto shared = places_.find(bucket);
  if (shared == places_.end()) return {};
  const SharedMemory& weights = memory_->weights;
  // Deliver reports a place outside of the memory.
  if (shared->second > weights.bytes() || bytes > weights.bytes() - shared->second) return {};
  if (!memory_->on_gpu()) return {.data = weights.data() + shared->second};
  return {.data = static_cast<std::byte*>(memory_->weights_on_gpu.data()) + shared->second, .on_gpu = true};
}

void Connection::Deliver(Reply reply) {
  MutexLock lock(mutex_);
  if (ending_) return;
  const bool last = std::holds_alternative<message::Left>(reply.message);
  if (auto* const answer = std::get_if<message::Answer>(&reply.message)) {
    if (const auto shared = places_.find(answer->bucket); shared != places_.end()) {
      if (!reply.in_place) {  // PlaceOf returned none
        return EndLocked(
            InvalidArgument("the place of bucket ", answer->bucket, "'s weights lies outside of its memory"));
      }
      answer->shared->weights_at = shared->second;
      places_.erase(shared);
    }
  }
  // A reset belongs to the answers before and after it; before Welcome there are none.
  const bool is_reset = welcomed_ && std::holds_alternative<message::Reset>(reply.message);
  const bool is_answer = std::holds_alternative<message::Answer>(reply.message);
  const bool is_payload =
      std::holds_alternative<message::Rows>(reply.message) || (memory_ == nullptr && (is_answer || is_reset));
  if (payload_ != nullptr && is_payload) return payload_->Send(std::move(reply), given_);
  welcomed_ |= std::holds_alternative<message::Welcome>(reply.message);
  given_ += ChunkCount(reply.weights.weights.bytes());
  reply.upto = std::min(reply.upto, reply.weights.weights.bytes());
  const bool has_more = reply.upto < reply.weights.weights.bytes();
  outgoing_.push_back(std::move(reply));
  if (last) EndLocked(absl::OkStatus());
  if (writing_) return;
  if (!has_more) return WriteOrFinishLocked();
  // On a thread of the service: this thread computes the next parts.
  writing_ = true;
  ++operations_;
  write_alarm_.Set(&host_.queue(), gpr_now(GPR_CLOCK_MONOTONIC), &written_);
}

void Connection::Abort(const absl::Status& why) {
  MutexLock lock(mutex_);
  EndLocked(why);
}

void Connection::OnWritten(bool ok, Lane&) {
  MutexLock lock(mutex_);
  writing_ = false;
  if (!ok) {
    // The worker has disconnected; the read in flight fails too.
    ending_ = true;
    outgoing_.clear();
  }
  WriteOrFinishLocked();
}

void Connection::EndLocked(const absl::Status& status) {
  if (ending_) return;
  ending_ = true;
  end_ = status;
  join_alarm_.Cancel();
  if (std::exchange(waits_, false)) proceed_alarm_.Cancel();
  if (!status.ok()) outgoing_.clear();
  if (!writing_) WriteOrFinishLocked();
}

void Connection::ReadLocked() {
  ++operations_;
  stream_.Read(&incoming_, &read_);
}

void Connection::WriteOrFinishLocked() {
  if (!outgoing_.empty()) {
    Reply& front = outgoing_.front();
    const ConstSpan weights = front.weights.weights;
    message::SetOffset(front.message, front.from);
    const Bytes payload(static_cast<const std::byte*>(weights.data) + front.from,
                        ChunkLength(weights.bytes(), front.from));
    front.from += payload.size();
    const grpc::ByteBuffer message = Encode(front.message, payload, front.weights.keep);
    if (front.from >= front.upto) outgoing_.pop_front();
    writing_ = true;
    ++operations_;
    stream_.Write(message, &written_);
  } else if (ending_ && !finishing_) {
    finishing_ = true;
    ++operations_;
    context_.AddTrailingMetadata(kServerErrorKey, "1");
    stream_.Finish(grpc::Status(static_cast<grpc::StatusCode>(end_.code()), std::string(end_.message())),
                   &finished_);
  }
}

}  // namespace psring
