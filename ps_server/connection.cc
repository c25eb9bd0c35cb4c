#include "ps_server/connection.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace psring {
namespace {

constexpr char kClosed[] = "its connection closed before it said that it leaves";

}  // namespace

void Connection::Accept(RawService& service, grpc::ServerCompletionQueue& queue) {
  MutexLock lock(mutex_);
  self_ = shared_from_this();
  ++operations_;
  service.RequestExchange(&context_, &stream_, &queue, &queue, &connected_);
}

void Connection::Complete(Tag::Handler handler, bool ok, Lane& lane) {
  (this->*handler)(ok, lane);
  std::shared_ptr<Connection> last_out;
  {
    MutexLock lock(mutex_);
    if (--operations_ == 0) last_out = std::move(self_);
  }
  if (last_out != nullptr && worker_ >= 0) server_.Disconnected(worker_, kClosed);
}

void Connection::OnConnected(bool ok, Lane&) {
  if (!ok) return;  // the service stops
  host_.OnAccepted();
  MutexLock lock(mutex_);
  ReadLocked();
}

void Connection::OnRead(bool ok, Lane& lane) {
  absl::Status status = ok ? Handle(lane) : absl::OkStatus();
  if (!ok && worker_ >= 0) {
    server_.Disconnected(worker_, kClosed);
  }
  MutexLock lock(mutex_);
  if (ok && status.ok()) {
    if (!ending_) ReadLocked();
  } else {
    EndLocked(status);
  }
}

absl::Status Connection::Handle(Lane& lane) {
  absl::Status status = chunk_.Decode(incoming_);
  if (worker_ >= 0) {
    if (status.ok()) {
      server_.Receive(worker_, chunk_.header(), chunk_.payload(), lane);
    } else {
      server_.Abort(
          absl::Status(status.code(), absl::StrCat("worker ", worker_, " sent ", status.message())));
    }
    chunk_.Clear();  // the memory goes back while it is still in the cache
    return absl::OkStatus();
  }
  if (!status.ok()) return status;
  if (chunk_.header().kind != MessageKind::kJoin) {
    return absl::FailedPreconditionError("a conversation begins with a Join");
  }
  PSRING_ASSIGN_OR_RETURN(JoinRequest request, DecodeJoin(chunk_.payload()));
  chunk_.Clear();
  PSRING_RETURN_IF_ERROR(server_.Join(request.worker, request.job, shared_from_this()));
  worker_ = request.worker;
  return absl::OkStatus();
}

void Connection::Deliver(Reply reply) {
  MutexLock lock(mutex_);
  if (ending_) return;
  const bool last = reply.header.kind == MessageKind::kLeave;
  outgoing_.push_back({std::move(reply)});
  if (last) EndLocked(absl::OkStatus());
  if (!writing_) WriteOrFinishLocked();
}

void Connection::Abort(const absl::Status& why) {
  MutexLock lock(mutex_);
  EndLocked(why);
}

void Connection::OnWritten(bool ok, Lane&) {
  MutexLock lock(mutex_);
  writing_ = false;
  if (!ok) {
    // The worker is gone; the read that is in flight says so too.
    ending_ = true;
    outgoing_.clear();
  }
  WriteOrFinishLocked();
}

void Connection::OnFinished(bool, Lane&) {}

void Connection::EndLocked(const absl::Status& status) {
  if (ending_) return;
  ending_ = true;
  end_ = status;
  if (!status.ok()) outgoing_.clear();
  if (!writing_) WriteOrFinishLocked();
}

void Connection::ReadLocked() {
  ++operations_;
  stream_.Read(&incoming_, &read_);
}

void Connection::WriteOrFinishLocked() {
  if (!outgoing_.empty()) {
    Outgoing& front = outgoing_.front();
    const ConstSpan weights = front.reply.weights.weights;
    ChunkHeader header = front.reply.header;
    header.offset = front.sent;
    const Bytes payload(static_cast<const std::byte*>(weights.data) + front.sent,
                        ChunkLength(weights.bytes(), front.sent));
    front.sent += payload.size();
    grpc::ByteBuffer message = EncodeChunk(header, payload, front.reply.weights.keep);
    if (front.sent == weights.bytes()) outgoing_.pop_front();
    writing_ = true;
    ++operations_;
    stream_.Write(message, &written_);
  } else if (ending_ && !finishing_) {
    finishing_ = true;
    ++operations_;
    context_.AddTrailingMetadata(kServerSaysKey, "1");
    stream_.Finish(grpc::Status(static_cast<grpc::StatusCode>(end_.code()), std::string(end_.message())),
                   &finished_);
  }
}

}  // namespace psring
