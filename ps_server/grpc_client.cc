// The client over gRPC: one stream, one completion queue, one thread that serves it. Sending and receiving
// are separate operations of the stream, so weights come in while later gradients still go out.

#include <grpcpp/alarm.h>
#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/generic/generic_stub.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/check.h"
#include "common/mutex.h"
#include "ps_server/borrowers.h"
#include "ps_server/client_session.h"
#include "ps_server/own_sockets.h"
#include "ps_server/ps_client.h"
#include "ps_server/shared_payload.h"
#include "ps_server/wire.h"

namespace psring {
namespace {

class GrpcClient : public PsClient {
 public:
  GrpcClient(const std::string& address, Payload payload, const LinkEnd& link)
      : address_(address), wanted_(payload), link_(link) {}

  ~GrpcClient() override {
    if (!thread_.joinable()) return;
    End(absl::CancelledError("the client was destroyed"));
    {
      MutexLock lock(mutex_);
      while (!over_) over_changed_.Wait(mutex_);  // cancelled: its operations are coming back
    }
    queue_.Shutdown();
    thread_.join();
  }

  std::string payload() const override { return worker_memory_.has_value() ? "shm" : "grpc"; }

  void ShareMemory(const SharedSpan& gradients, const SharedSpan& weights) override {
    gradients_ = gradients;
    weights_ = weights;
  }

  absl::Status Start(int worker, const ServerJob& job, Span weights, absl::Time deadline) override {
    PSRING_CHECK(!thread_.joinable());
    KeepGrpcRunning();
    PSRING_RETURN_IF_ERROR(session_.Begin(job, weights));
    PSRING_RETURN_IF_ERROR(Connect(deadline));
    std::string memory;
    if (wanted_ != Payload::kGrpc && job.parameters > 0) {
      absl::StatusOr<std::string> token = HandOver(job, deadline);
      if (token.ok()) {
        memory = *token;
      } else if (wanted_ == Payload::kShared) {
        worker_memory_.reset();
        End(token.status());
        return absl::FailedPreconditionError(
            absl::StrCat("the parameter server at ", address_, " shares no memory with worker ", worker, ": ",
                         token.status().message(), "; --payload auto goes over gRPC instead"));
      } else {
        worker_memory_.reset();
      }
    }
    auto join = std::make_shared<const std::string>(EncodeJoin({worker, job, memory}));
    Enqueue({.header = {.kind = MessageKind::kJoin}, .data = std::as_bytes(std::span(*join)), .keep = join});
    if (worker == 0) {
      for (const Bucket& bucket : job.buckets) {
        Enqueue({.header = {.kind = MessageKind::kWeights, .bucket = bucket.index},
                 .data = BytesOf(weights.Slice(bucket.first, bucket.count)),
                 .keep = borrowers_.Add()});
      }
    }
    return Await(MessageKind::kJoin, deadline, "all workers to join");
  }

  void PushPull(const Exchange& exchange, Done done) override {
    const ClientSession::ToSend to_send = session_.Add(exchange, std::move(done));
    if (absl::Status failure = session_.failure(); !failure.ok()) {
      End(failure);
      Poke();
      return;
    }
    if (to_send == ClientSession::ToSend::kGradient) SendGradient(exchange);
    if (to_send == ClientSession::ToSend::kAnnouncement) {
      Enqueue({.header = {.kind = MessageKind::kAnnounce, .step = exchange.step}});
    }
  }

  absl::Status Fetch(Span weights, absl::Time deadline) override {
    session_.ExpectWeights(weights);
    Enqueue({.header = {.kind = MessageKind::kFetch}});
    return Await(MessageKind::kFetch, deadline, "the weights");
  }

  absl::Status Leave(absl::Time deadline) override {
    Enqueue({.header = {.kind = MessageKind::kLeave}});
    return Await(MessageKind::kLeave, deadline, "leave to go");
  }

  void Abort(absl::Status why) override { End(why); }

  Traffic traffic() const override { return session_.traffic(); }

  void OnWord(std::function<void(const ChunkHeader&)> heard) override { session_.OnWord(std::move(heard)); }
  void Tell(const ChunkHeader& word) override { Enqueue({.header = word}); }

 private:
  enum Operation : intptr_t { kStarted = 1, kOffered, kRead, kWritten, kFinished };
  static void* TagOf(Operation operation) { return reinterpret_cast<void*>(operation); }

  static Bytes BytesOf(ConstSpan span) { return {static_cast<const std::byte*>(span.data), span.bytes()}; }

  // A bucket or a control message on its way out, chunk by chunk.
  struct Outgoing {
    ChunkHeader header;
    Bytes data;
    std::shared_ptr<const void> keep;
    std::byte* staging = nullptr;  // header.shared: where the server reads it; null: it stands there already
  };

  // The memory in which the server works: the caller's own, or a mirror of it.
  struct SharedArea {
    SharedMemory mirror;        // where the caller's is private
    std::byte* data = nullptr;  // of either
    size_t bytes = 0;
    int fd = -1;
    // Where `span` lies in the caller's shared memory; in a mirror, at `mirrored`.
    std::optional<uint64_t> PlaceOf(ConstSpan span, size_t mirrored) const {
      if (mirror.data() != nullptr) return mirrored;
      const auto* begin = static_cast<const std::byte*>(span.data);
      if (begin < data || begin + span.bytes() > data + bytes) return std::nullopt;
      return static_cast<uint64_t>(begin - data);
    }
  };
  struct OurMemory {
    SharedArea gradients, weights;
  };

  static absl::StatusOr<SharedArea> AreaOf(const SharedSpan& callers, size_t bytes) {
    SharedArea area{.bytes = bytes};
    if (callers.fd >= 0) {
      area.data = static_cast<std::byte*>(callers.span.data);
      area.bytes = callers.span.bytes();
      area.fd = callers.fd;
      return area;
    }
    PSRING_ASSIGN_OR_RETURN(area.mirror, SharedMemory::Create(bytes));
    area.data = area.mirror.data();
    area.fd = area.mirror.fd();
    return area;
  }

  // The token of the memory that the server has taken.
  absl::StatusOr<std::string> HandOver(const ServerJob& job, absl::Time deadline) {
    constexpr absl::Duration kPatience = absl::Seconds(5);
    const absl::Time until = std::min(deadline, absl::Now() + kPatience);
    std::string offer;
    {
      MutexLock lock(mutex_);
      while (!offer_.has_value()) {
        if (absl::Now() >= until) return absl::DeadlineExceededError("it said nothing about shared memory");
        offered_.WaitUntil(mutex_, until);
      }
      offer = *offer_;
    }
    const size_t bytes = static_cast<size_t>(job.parameters) * sizeof(float);
    OurMemory memory;
    PSRING_ASSIGN_OR_RETURN(memory.gradients, AreaOf(gradients_, bytes));
    PSRING_ASSIGN_OR_RETURN(memory.weights, AreaOf(weights_, bytes));
    PSRING_ASSIGN_OR_RETURN(std::string token, HandOverMemory(offer,
                                                              {.gradients_fd = memory.gradients.fd,
                                                               .gradients_bytes = memory.gradients.bytes,
                                                               .weights_fd = memory.weights.fd,
                                                               .weights_bytes = memory.weights.bytes},
                                                              until));
    worker_memory_ = std::move(memory);
    return token;
  }

  void SendGradient(const Exchange& exchange) {
    if (worker_memory_.has_value()) {
      const size_t mirrored = session_.job().buckets[exchange.bucket].first * sizeof(float);
      const SharedArea& gradients = worker_memory_->gradients;
      const auto gradient_at = gradients.PlaceOf(exchange.gradient, mirrored);
      const auto weights_at = worker_memory_->weights.PlaceOf(exchange.weights, mirrored);
      // Memory that is not what was shared goes over the wire.
      if (gradient_at.has_value() && weights_at.has_value()) {
        return Enqueue(
            {.header = {.kind = MessageKind::kExchange,
                        .bucket = exchange.bucket,
                        .step = exchange.step,
                        .samples = exchange.samples,
                        .shared = true,
                        .gradient_at = *gradient_at,
                        .weights_at = *weights_at},
             .data = BytesOf(exchange.gradient),
             .keep = borrowers_.Add(),
             .staging = gradients.mirror.data() != nullptr ? gradients.data + *gradient_at : nullptr});
      }
    }
    Enqueue({.header = {.kind = MessageKind::kExchange,
                        .bucket = exchange.bucket,
                        .step = exchange.step,
                        .samples = exchange.samples},
             .data = BytesOf(exchange.gradient),
             .keep = borrowers_.Add()});
  }

  absl::Status Connect(absl::Time deadline) {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH, kMaxMessageBytes);
    // The server says when a worker keeps the others waiting; these find a server that says nothing any more.
    arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 20000);
    arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 20000);
    arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
    PSRING_ASSIGN_OR_RETURN(std::shared_ptr<grpc::Channel> channel,
                            OpenChannel(address_, arguments, deadline, link_));
    MutexLock lock(mutex_);
    channel_ = std::move(channel);
    context_ = std::make_unique<grpc::ClientContext>();
    call_ = grpc::GenericStub(channel_).PrepareCall(context_.get(), kExchangeMethod, &queue_);
    over_ = false;
    ++operations_;
    writing_ = true;  // until the call has started
    call_->StartCall(TagOf(kStarted));
    thread_ = std::thread([this] { Loop(); });
    return absl::OkStatus();
  }

  absl::Status Await(MessageKind kind, absl::Time deadline, const std::string& what) {
    absl::Status status = session_.Await(kind, deadline + absl::Milliseconds(kServerSpeaksFirstMs),
                                         absl::StrCat(what, " (parameter server at ", address_, ")"));
    if (!status.ok()) End(status);
    // What was sent is the caller's again, and nobody reads it any more.
    borrowers_.AwaitNone(absl::Now() + absl::Seconds(10));
    return status;
  }

  // From any thread: the conversation is over because of `why`.
  void End(const absl::Status& why) {
    session_.Fail(why);
    MutexLock lock(mutex_);
    outgoing_.clear();
    if (context_ != nullptr) context_->TryCancel();
  }

  // Has the loop end what was asked for too late.
  void Poke() {
    auto* alarm = new grpc::Alarm;
    alarm->Set(&queue_, absl::ToChronoTime(absl::Now()), alarm);
  }

  void Enqueue(Outgoing outgoing) {
    MutexLock lock(mutex_);
    if (finishing_ || over_) return;  // what waits for it is about to hear of the end
    outgoing_.push_back(std::move(outgoing));
    if (!writing_) WriteLocked();
  }

  void WriteLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (outgoing_.empty() || finishing_) return;
    Outgoing& front = outgoing_.front();
    if (front.header.shared) return WriteSharedLocked(front);
    const Bytes data = front.data;
    const Bytes chunk = data.subspan(front.header.offset, ChunkLength(data.size(), front.header.offset));
    const grpc::ByteBuffer message = EncodeChunk(front.header, chunk, front.keep);
    front.header.offset += chunk.size();
    if (front.header.offset == data.size()) outgoing_.pop_front();
    writing_ = true;
    ++operations_;
    call_->Write(message, TagOf(kWritten));
  }

  // What stands in shared memory is announced at once; what has to be copied there first, chunk by chunk, so
  // that the server adds what is still in the cache.
  void WriteSharedLocked(Outgoing& front) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const uint64_t done = front.header.offset;
    ChunkHeader header = front.header;
    header.gradient_at += done;
    header.shared_bytes = front.staging == nullptr ? front.data.size() : ChunkLength(front.data.size(), done);
    if (front.staging != nullptr && header.shared_bytes > 0) {
      std::memcpy(front.staging + done, front.data.data() + done, header.shared_bytes);
    }
    front.header.offset += header.shared_bytes;
    if (front.header.offset == front.data.size()) outgoing_.pop_front();
    writing_ = true;
    ++operations_;
    call_->Write(EncodeChunk(header, {}, nullptr), TagOf(kWritten));
  }

  void Loop() {
    void* tag;
    bool ok;
    while (queue_.Next(&tag, &ok)) {
      switch (reinterpret_cast<intptr_t>(tag)) {
        case kStarted:
        case kWritten:
          OnWritten(ok, /*started=*/reinterpret_cast<intptr_t>(tag) == kStarted);
          break;
        case kOffered:
          OnOffered();
          break;
        case kRead:
          OnRead(ok);
          break;
        case kFinished:
          break;
        default:
          delete static_cast<grpc::Alarm*>(tag);
          OnPoked();
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

  void OnPoked() {
    {
      MutexLock lock(mutex_);
      if (!over_) return;  // OnOver will do it, once nobody borrows the gradients any more
    }
    session_.FailPending();
  }

  void OnWritten(bool ok, bool started) {
    MutexLock lock(mutex_);
    writing_ = false;
    if (started) {
      ++operations_;
      call_->ReadInitialMetadata(TagOf(kOffered));
    }
    if (ok) WriteLocked();
  }

  void OnOffered() {
    MutexLock lock(mutex_);
    const auto& metadata = context_->GetServerInitialMetadata();
    const auto found = metadata.find(kOfferKey);
    offer_ = found == metadata.end() ? "" : std::string(found->second.data(), found->second.size());
    offered_.NotifyAll();
    ReadLocked();  // where the call has failed, the read tells
  }

  void ReadLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    ++operations_;
    call_->Read(&incoming_, TagOf(kRead));
  }

  absl::Status Take() {
    const ChunkHeader& header = chunk_.header();
    if (!header.shared) return session_.OnChunk(header, chunk_.payload());
    if (!worker_memory_.has_value() || header.weights_at > worker_memory_->weights.bytes ||
        header.shared_bytes > worker_memory_->weights.bytes - header.weights_at) {
      return absl::InternalError("the server wrote weights to a place that it was not given");
    }
    const Bytes weights(worker_memory_->weights.data + header.weights_at, header.shared_bytes);
    return session_.OnChunk(header, {&weights, 1});
  }

  void OnRead(bool ok) {
    if (ok) {
      absl::Status status = chunk_.Decode(incoming_);
      if (status.ok()) status = Take();
      chunk_.Clear();
      for (const Exchange& admitted : session_.TakeAdmitted()) SendGradient(admitted);
      if (!status.ok()) {
        End(absl::Status(status.code(),
                         absl::StrCat("parameter server at ", address_, ": ", status.message())));
      }
    }
    MutexLock lock(mutex_);
    if (ok) {
      ReadLocked();
    } else {
      finishing_ = true;
      ++operations_;
      call_->Finish(&end_, TagOf(kFinished));
    }
  }

  // Every operation has come back. Says why the conversation ended, and gives the callers' memory back.
  void OnOver() {
    const bool server_says = context_->GetServerTrailingMetadata().count(kServerSaysKey) > 0;
    if (end_.ok()) {
      session_.Fail(absl::FailedPreconditionError("this worker has left the parameter server"));
    } else if (server_says) {
      session_.Fail(absl::Status(static_cast<absl::StatusCode>(end_.error_code()),
                                 absl::StrCat("parameter server at ", address_, ": ", end_.error_message())));
    } else {
      session_.Fail(absl::UnavailableError(
          absl::StrCat("lost the parameter server at ", address_, ": ", end_.error_message())));
    }
    {
      MutexLock lock(mutex_);
      outgoing_.clear();
      call_.reset();
      context_.reset();
      channel_
          .reset();  // closes the socket, and with it the last chance that somebody reads what it was sending
    }
    borrowers_.AwaitNone(absl::Now() + absl::Seconds(10));
    session_.FailPending();
    MutexLock lock(mutex_);
    over_ = true;
    over_changed_.NotifyAll();
  }

  const std::string address_;
  const Payload wanted_;
  const LinkEnd link_;
  SharedSpan gradients_, weights_;          // the caller's
  std::optional<OurMemory> worker_memory_;  // set in Start: the payload goes through it
  ClientSession session_;
  Borrowers borrowers_;
  grpc::CompletionQueue queue_;
  std::thread thread_;

  // The loop's own.
  grpc::ByteBuffer incoming_;
  ReceivedChunk chunk_;
  grpc::Status end_;

  Mutex mutex_;
  CondVar over_changed_;
  CondVar offered_;
  std::optional<std::string> offer_ ABSL_GUARDED_BY(mutex_);  // once the server has spoken
  std::shared_ptr<grpc::Channel> channel_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<grpc::ClientContext> context_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> call_ ABSL_GUARDED_BY(mutex_);
  std::deque<Outgoing> outgoing_ ABSL_GUARDED_BY(mutex_);
  int operations_ ABSL_GUARDED_BY(mutex_) = 0;
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool finishing_ ABSL_GUARDED_BY(mutex_) = false;
  bool over_ ABSL_GUARDED_BY(mutex_) = true;  // there is no call
};

}  // namespace

std::unique_ptr<PsClient> MakeGrpcPsClient(const std::string& address, Payload payload, const LinkEnd& link) {
  return std::make_unique<GrpcClient>(address, payload, link);
}

}  // namespace psring
