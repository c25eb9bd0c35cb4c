// The client over gRPC: one stream, one completion queue, one thread that serves it. Sending and receiving
// are separate operations of the stream, so weights come in while later gradients still go out.

#include <grpcpp/alarm.h>
#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/generic/generic_stub.h>

#include <deque>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/check.h"
#include "common/mutex.h"
#include "ps_server/borrowers.h"
#include "ps_server/client_session.h"
#include "ps_server/ps_client.h"
#include "ps_server/wire.h"

namespace psring {
namespace {

class GrpcClient : public PsClient {
 public:
  explicit GrpcClient(const std::string& address) : address_(address) {}

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

  std::string payload() const override { return "grpc"; }

  absl::Status Start(int worker, const ServerJob& job, Span weights, absl::Time deadline) override {
    PSRING_CHECK(!thread_.joinable());
    KeepGrpcRunning();
    PSRING_RETURN_IF_ERROR(session_.Begin(job, weights));
    PSRING_RETURN_IF_ERROR(Connect(deadline));
    auto join = std::make_shared<const std::string>(EncodeJoin({worker, job}));
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

 private:
  enum Operation : intptr_t { kStarted = 1, kRead, kWritten, kFinished };
  static void* TagOf(Operation operation) { return reinterpret_cast<void*>(operation); }

  static Bytes BytesOf(ConstSpan span) { return {static_cast<const std::byte*>(span.data), span.bytes()}; }

  // A bucket or a control message on its way out, chunk by chunk.
  struct Outgoing {
    ChunkHeader header;
    Bytes data;
    std::shared_ptr<const void> keep;
  };

  void SendGradient(const Exchange& exchange) {
    Enqueue({.header = {.kind = MessageKind::kExchange,
                        .bucket = exchange.bucket,
                        .step = exchange.step,
                        .samples = exchange.samples},
             .data = BytesOf(exchange.gradient),
             .keep = borrowers_.Add()});
  }

  absl::Status Connect(absl::Time deadline) {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);  // several clients of a process: a socket each
    arguments.SetInt(GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH, kMaxMessageBytes);
    arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
    arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 100);
    arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
    // The server says when a worker keeps the others waiting; these find a server that says nothing any more.
    arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 20000);
    arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 20000);
    arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
    std::shared_ptr<grpc::Channel> channel =
        grpc::CreateCustomChannel(address_, grpc::InsecureChannelCredentials(), arguments);
    const absl::Time begin = absl::Now();
    if (!channel->WaitForConnected(absl::ToChronoTime(deadline))) {
      return absl::UnavailableError(
          absl::StrCat("no parameter server answered at ", address_, " within ",
                       absl::FormatDuration(absl::Trunc(absl::Now() - begin, absl::Milliseconds(1)))));
    }
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
    const Bytes data = front.data;
    const Bytes chunk = data.subspan(front.header.offset, ChunkLength(data.size(), front.header.offset));
    const grpc::ByteBuffer message = EncodeChunk(front.header, chunk, front.keep);
    front.header.offset += chunk.size();
    if (front.header.offset == data.size()) outgoing_.pop_front();
    writing_ = true;
    ++operations_;
    call_->Write(message, TagOf(kWritten));
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
    if (started) ReadLocked();  // where the call has failed, the read tells
    if (ok) WriteLocked();
  }

  void ReadLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    ++operations_;
    call_->Read(&incoming_, TagOf(kRead));
  }

  void OnRead(bool ok) {
    if (ok) {
      absl::Status status = chunk_.Decode(incoming_);
      if (status.ok()) status = session_.OnChunk(chunk_.header(), chunk_.payload());
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

std::unique_ptr<PsClient> MakeGrpcPsClient(const std::string& address) {
  return std::make_unique<GrpcClient>(address);
}

}  // namespace psring
