// The client's thread: reads from the stream, and reconnects when it is lost.

#include <algorithm>

#include "common/base/errors.h"
#include "common/net/grpc_waiting.h"
#include "common/text/peer_text.h"
#include "ps_server/wire/grpc_client.h"

namespace psring {
namespace {

constexpr size_t kMaxErrorBytes = 8192;  // of the server
constexpr absl::Duration kTick = absl::Milliseconds(100);
// How many consecutive streams may break after a Join without an answer to anything. The time before the next
// attempt doubles, but stays so short that the server does not give up this worker (--worker_timeout).
constexpr int kMaxFailedStreams = 10;
constexpr int kMaxDoublings = 3;
// A server that cannot be reached by a worker that leaves has ended with its last worker, or is not needed.
constexpr absl::Duration kUnansweredLeave = absl::Seconds(1);

}  // namespace

void GrpcClient::Loop() {
  void* tag;
  bool ok;
  while (true) {
    const auto next = queue_.AsyncNext(&tag, &ok, GrpcDeadline(MonotonicNow() + kTick));
    if (next == grpc::CompletionQueue::SHUTDOWN) return;
    if (next == grpc::CompletionQueue::TIMEOUT) {
      OnTick();
      continue;
    }
    auto* const its = static_cast<Tag*>(tag);
    (this->*its->handler)(ok);
    if (!its->one_of_call) {
      delete static_cast<WakeUp*>(its);
      continue;
    }
    bool last = false;
    {
      MutexLock lock(mutex_);
      last = --operations_ == 0;
    }
    if (last) OnOver();
  }
}

void GrpcClient::OnWake(bool) {
  {
    MutexLock lock(mutex_);
    // Otherwise OnOver ends them, when gRPC no longer uses the gradients.
    if (!over_ && !session_.state().failure.ok()) return;
  }
  EndExchanges();
}

void GrpcClient::OnTick() {
  {
    MutexLock lock(mutex_);
    if (over_) return;
    if (reconnecting_) {
      if (MonotonicNow() < next_try_) return;
    } else if (lost_at_ != MonotonicTime::InfiniteFuture()) {
      return;  // a call is under way
    }
  }
  if (lost_at_ != MonotonicTime::InfiniteFuture()) return Reconnect();
  if (options_.reply_timeout == absl::InfiniteDuration()) return;
  const absl::Duration longest = options_.reply_timeout + Grace();
  if (const std::string push = session_.Overdue(longest); !push.empty()) {
    End(DeadlineExceeded("waited ", absl::FormatDuration(longest), " for the parameter server at ", address(),
                         " to answer the push of ", push));
  }
}

void GrpcClient::OnStarted(bool ok) {
  {
    MutexLock lock(mutex_);
    ++operations_;
    call_->ReadInitialMetadata(&offered_tag_);
  }
  OnWritten(ok);
}

void GrpcClient::OnWritten(bool ok) {
  MutexLock lock(mutex_);
  writing_ = false;
  if (ok) WriteLocked();
}

void GrpcClient::OnOffered(bool) {
  std::string offer;
  {
    MutexLock lock(mutex_);
    const auto& metadata = context_->GetServerInitialMetadata();
    const auto found = metadata.find(kOfferKey);
    offer = found == metadata.end() ? "" : std::string(found->second.data(), found->second.size());
    offer_ = offer;
    offered_.NotifyAll();
    ReadLocked();  // if the call has failed, the read fails too
  }
  if (lost_at_ == MonotonicTime::InfiniteFuture() || offer.empty()) return;
  // Perhaps a different process: determine again which memory it shares.
  absl::StatusOr<std::string> token = "";
  if (options_.payload != Payload::kGrpc && session_.job().parameters > 0) {
    token = HandOver(offer, MonotonicNow() + absl::Seconds(5));
    if (!token.ok() && on_gpu_) return End(token.status());  // gradients are on the GPU
  }
  const absl::StatusOr<uint64_t> payload = OpenPayload(MonotonicNow() + absl::Seconds(5));
  if (!payload.ok()) return Break(payload.status());
  SendJoin(token.ok() ? *token : "", *payload);
}

absl::StatusOr<bool> GrpcClient::OnPayload(PayloadSocket& socket) {
  MutexLock lock(session_mutex_);
  const PayloadHeader& header = socket.header();
  message::ToWorker message;
  PSRING_RETURN_IF_ERROR(FromFields(header.fields, message));
  std::optional<std::byte*> place;
  if (const auto* const answer = std::get_if<message::Answer>(&message);
      answer != nullptr && !answer->shared.has_value()) {
    PSRING_ASSIGN_OR_RETURN(place, session_.PlaceOf(*answer, header.bytes));
    if (socket.payload_received() == 0) discards_ = !place.has_value();
    if (discards_) place.reset();
  } else if (std::holds_alternative<message::Reset>(message) ||
             std::holds_alternative<message::Rows>(message)) {
    discards_ = false;
  } else {
    return Internal("the server sent a message on its payload connection that is not an answer");
  }
  if (!place.has_value()) unused_.resize(kChunkBytes);
  std::byte* const to = place.value_or(unused_.data());
  PSRING_ASSIGN_OR_RETURN(const bool complete, socket.ReceivePayload(to));
  if (!complete) return false;
  if (discards_) return true;
  const Bytes payload(to, header.bytes);
  PSRING_RETURN_IF_ERROR(session_.OnMessage(message, {&payload, 1}));
  for (const Exchange& exchange : session_.TakeToSend()) SendGradient(exchange);
  return true;
}

void GrpcClient::OnPayloadEnd(const absl::Status& why) {
  if (absl::IsUnavailable(why)) return Break(why);
  End(Prefixed(why, "parameter server at ", address(), ": "));
}

absl::Status GrpcClient::Take() {
  const auto* const answer = std::get_if<message::Answer>(&received_.message());
  if (answer == nullptr || !answer->shared.has_value()) {
    return session_.OnMessage(received_.message(), received_.payload());
  }
  const auto [bytes, _, at] = *answer->shared;
  const Bytes all = BytesOf(caller_.shared_weights.span);
  if (!shares_ || at > all.size() || bytes > all.size() - at) {
    return Internal("the server wrote weights outside of the shared memory");
  }
  const Bytes weights = all.subspan(at, bytes);
  return session_.OnMessage(received_.message(), {&weights, 1}, on_gpu_);
}

void GrpcClient::OnRead(bool ok) {
  if (ok) {
    MutexLock lock(session_mutex_);
    absl::Status status = received_.Decode(incoming_);
    const bool welcome = status.ok() && std::holds_alternative<message::Welcome>(received_.message());
    if (status.ok()) status = Take();
    received_.Clear();
    if (welcome) OnWelcome();
    for (const Exchange& exchange : session_.TakeToSend()) SendGradient(exchange);
    if (!status.ok()) End(Prefixed(status, "parameter server at ", address(), ": "));
  }
  MutexLock lock(mutex_);
  if (ok) {
    if (payload_ != nullptr) payload_->CountHandled();
    ReadLocked();
  } else {
    finishing_ = true;
    ++operations_;
    call_->Finish(&end_, &finished_);
  }
}

void GrpcClient::OnWelcome() {
  if (lost_at_ == MonotonicTime::InfiniteFuture()) return;
  lost_at_ = MonotonicTime::InfiniteFuture();
  joined_again_ = true;
  {
    MutexLock lock(mutex_);
    const bool moot = asked_.has_value() && asked_->question == Question::kBarrier &&
                      session_.state().went_back_to.has_value();
    if (asked_.has_value() && !asked_sent_ && !moot) {
      asked_sent_ = EnqueueLocked({.message = asked_->message});
      if (asked_->question == Question::kLeave) left_sent_ = asked_sent_;
    }
  }
  session_.EndExchanges();
}

void GrpcClient::OnOver() {
  std::unique_ptr<PayloadClient> payload;
  {
    MutexLock lock(mutex_);
    payload = std::move(payload_);
  }
  payload.reset();  // waits for its thread: from here on nothing uses gradients and weights
  absl::Status why;
  bool may_return = false;
  {
    MutexLock lock(mutex_);
    const bool of_server = context_->GetServerTrailingMetadata().count(kServerErrorKey) > 0;
    const std::string text =
        why_broken_.empty() || of_server ? PeerText(end_.error_message(), kMaxErrorBytes) : why_broken_;
    if (end_.ok()) {
      why = FailedPrecondition("this worker has left the parameter server");
    } else if (of_server) {
      why = absl::Status(static_cast<absl::StatusCode>(end_.error_code()),
                         absl::StrCat("parameter server at ", address_, ": ", text));
    } else {
      why = Unavailable("lost the parameter server at ", address_, ": ", text);
    }
    // A server that was cancelled may be started again; after any other error of its own it has ended.
    may_return = !end_.ok() && (!of_server || end_.error_code() == grpc::StatusCode::CANCELLED);
    outgoing_.clear();
    asked_sent_ = false;
    call_.reset();
    context_.reset();
    channel_.reset();  // closes the socket: nothing reads the memory that it was sending from
    writing_ = false;
  }
  borrowers_.AwaitNone(MonotonicNow() + absl::Seconds(10));
  if (!session_.state().failure.ok() || !may_return) return Finish(why);
  if (Patience() == absl::ZeroDuration()) {
    if (leaves()) session_.OnAnswered(Question::kLeave);
    return Finish(why);
  }
  const bool moved = session_.state().answers != answers_when_lost_;
  if (moved) {
    failed_streams_ = 0;
  } else if (joined_again_) {
    ++failed_streams_;
  }
  joined_again_ = false;
  answers_when_lost_ = session_.state().answers;
  if (failed_streams_ > kMaxFailedStreams) {
    const std::string push = session_.Overdue(absl::ZeroDuration());
    return Finish(Unavailable("the stream of worker ", worker_, " to the parameter server at ", address(),
                              " has broken ", failed_streams_, " consecutive times before ",
                              push.empty() ? "anything" : push,
                              " was answered; the last error: ", why.message()));
  }
  session_.OnLost();
  if (lost_at_ == MonotonicTime::InfiniteFuture()) {
    lost_at_ = MonotonicNow();
    why_lost_ = why;
  }
  ScheduleReconnect();
}

absl::Duration GrpcClient::Patience() const { return session_.state().patience.value_or(options_.patience); }

// Schedules the next attempt.
void GrpcClient::ScheduleReconnect() {
  const absl::Duration patience = Patience();
  if (leaves() && MonotonicNow() - lost_at_ > std::min(patience, kUnansweredLeave)) {
    session_.OnAnswered(Question::kLeave);
    return Finish(why_lost_);
  }
  if (MonotonicNow() - lost_at_ > patience) {
    return Finish(
        Unavailable(why_lost_.message(), "; it did not come back within ", absl::FormatDuration(patience)));
  }
  MutexLock lock(mutex_);
  reconnecting_ = true;
  next_try_ = MonotonicNow() + kTick / 2 * (1 << std::min(failed_streams_, kMaxDoublings));
}

void GrpcClient::Reconnect() {
  if (absl::Status failure = session_.state().failure; !failure.ok()) return Finish(failure);
  std::string address = published();
  if (options_.find_again) {
    // If the address cannot be looked up, the server may still be at the old one.
    if (absl::StatusOr<std::string> found = options_.find_again(); found.ok()) address = *found;
  }
  absl::StatusOr<std::shared_ptr<grpc::Channel>> channel = Dial(address, MonotonicNow() + kTick);
  if (!channel.ok()) return ScheduleReconnect();
  MutexLock lock(mutex_);
  address_ = address;
  reconnecting_ = false;
  OpenLocked(*std::move(channel));
}

void GrpcClient::Finish(const absl::Status& why) {
  session_.Fail(why);
  EndExchanges();
  MutexLock lock(mutex_);
  reconnecting_ = false;
  over_ = true;
  over_changed_.NotifyAll();
}

}  // namespace psring
