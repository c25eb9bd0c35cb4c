#include "ps_server/wire/grpc_client.h"

#include <grpcpp/support/channel_arguments.h>

#include <algorithm>

#include "common/base/check.h"
#include "common/base/errors.h"
#include "common/net/address.h"
#include "common/net/grpc_waiting.h"
#include "common/net/random_token.h"
#include "common/net/tcp_socket.h"
#include "ps_server/wire/own_sockets.h"

namespace psring {
namespace {

constexpr absl::Duration kUntilServerCloses = absl::Seconds(5);
// Until a ping is sent, and until its answer.
constexpr int64_t kLongestPingMs = 20'000;

}  // namespace

absl::StatusOr<std::shared_ptr<grpc::Channel>> GrpcClient::Dial(const std::string& address,
                                                                MonotonicTime deadline) const {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH, kMaxMessageBytes);
  // Detects a server that does not respond, before a rank that waits for this one gives up. (The server
  // itself reports workers that keep others waiting.)
  const auto part_of_timeout = [this](int divisor, int least_ms) {
    const int64_t part_ms = absl::ToInt64Milliseconds(options_.reply_timeout / divisor);
    return static_cast<int>(std::clamp<int64_t>(part_ms, least_ms, kLongestPingMs));
  };
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, part_of_timeout(4, 500));
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, part_of_timeout(2, 2000));
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  return OpenChannel(address, options_.secret, arguments, deadline, options_.link);
}

GrpcClient::GrpcClient(const std::string& address, GrpcClientOptions options)
    : options_(std::move(options)), session_id_(KernelRandom() | 1), address_(address) {}

GrpcClient::~GrpcClient() {
  if (!thread_.joinable()) return;
  End(Cancelled("the client was destroyed"));
  {
    MutexLock lock(mutex_);
    while (!over_) over_changed_.Wait(mutex_);  // cancelled, so its operations complete
  }
  queue_.Shutdown();
  thread_.join();
  // The caller may free its GPU's memory next. Any answer is the end of the connection. Without a Leave the
  // job has failed, and the server may keep the memory until it ends.
  if (in_use_.valid() && left_sent_) (void)in_use_.Receive(MonotonicNow() + kUntilServerCloses);
}

absl::Status GrpcClient::Start(int worker, const ServerJob& job, const WorkerBuffers& memory,
                               MonotonicTime deadline) {
  PSRING_CHECK(!thread_.joinable());
  KeepGrpcRunning();
  worker_ = worker;
  caller_ = memory;
  PSRING_RETURN_IF_ERROR(session_.Begin(job, memory.weights));
  PSRING_RETURN_IF_ERROR(Connect(deadline));
  absl::StatusOr<std::string> token = "";
  if (options_.payload != Payload::kGrpc && job.parameters > 0) {
    constexpr absl::Duration kPatience = absl::Seconds(5);
    const MonotonicTime until = std::min(deadline, MonotonicNow() + kPatience);
    std::optional<std::string> offer;
    {
      MutexLock lock(mutex_);
      while (!offer_.has_value() && !ended_ && offered_.WaitUntil(mutex_, until)) {
      }
      offer = offer_;
    }
    PSRING_RETURN_IF_ERROR(session_.state().failure);
    token = offer.has_value()
                ? HandOver(*offer, until)
                : absl::StatusOr<std::string>(DeadlineExceeded("it did not offer to share memory"));
    if (!token.ok() && options_.payload == Payload::kShared) {
      End(token.status());
      return FailedPrecondition("the parameter server at ", address(), " shares no memory with worker ",
                                worker, ": ", token.status().message(),
                                "; --transport auto uses gRPC instead");
    }
  }
  if (const absl::StatusOr<uint64_t> opened = OpenPayload(deadline); opened.ok()) {
    SendJoin(token.ok() ? *token : "", *opened);
  } else {
    Break(opened.status());
  }
  absl::Status status =
      EndIfFailed(session_.Await(Question::kJoin, deadline + Grace(),
                                 absl::StrCat("all workers to join (parameter server at ", address(), ")")));
  borrowers_.AwaitNone(MonotonicNow() + absl::Seconds(10));
  return status;
}

absl::StatusOr<std::string> GrpcClient::HandOver(const std::string& offer, MonotonicTime deadline) {
  shares_ = false;
  const bool first = !session_.state().patience.has_value();
  SharedSpan gradients = caller_.shared_gradients;
  // Start has told the caller where its gradients are read (status().payload).
  if (options_.payload != Payload::kAuto || (!first && !on_gpu_)) gradients.on_gpu.clear();
  PSRING_ASSIGN_OR_RETURN(
      HandedOver handed, HandOverMemory(offer, options_.secret, gradients, caller_.shared_weights, deadline));
  if (!first && on_gpu_ && !handed.on_gpu) {
    return FailedPrecondition("the restarted server cannot reach this worker's GPU");
  }
  on_gpu_ = handed.on_gpu;
  in_use_ = std::move(handed.in_use);
  shares_ = true;
  return std::move(handed.token);
}

absl::StatusOr<uint64_t> GrpcClient::OpenPayload(MonotonicTime deadline) {
  if (!needs_own_connection()) return uint64_t{0};
  const std::string server = absl::StrCat("the payload connection to the parameter server at ", address());
  const uint64_t number = KernelRandom() | 1;
  PSRING_ASSIGN_OR_RETURN(MemberSocket socket,
                          ConnectToServer(published(), options_.secret, deadline, options_.link, number));
  char accepted = 0;
  PSRING_RETURN_IF_ERROR(ReceiveAll(socket, &accepted, 1, deadline, server));
  PSRING_ASSIGN_OR_RETURN(std::unique_ptr<PayloadClient> payload,
                          PayloadClient::Start(std::move(socket), *this));
  MutexLock lock(mutex_);
  payload_.swap(payload);
  return number;
}

void GrpcClient::SendJoin(const std::string& token, uint64_t payload) {
  const bool again = session_.state().patience.has_value();
  auto join = std::make_shared<const std::string>(EncodeJoin({.worker = worker_,
                                                              .job = session_.job(),
                                                              .memory = token,
                                                              .payload = payload,
                                                              .session = session_id_,
                                                              .again = again,
                                                              .epoch = session_.state().epoch}));
  Enqueue({.message = message::Join{}, .data = std::as_bytes(std::span(*join)), .keep = join});
  if (again || worker_ != 0) return;
  for (size_t slot = caller_.slots.size() + 1; slot-- > 0;) {  // the weights last: they start the job
    const ConstSpan values = slot > 0 ? caller_.slots[slot - 1] : caller_.weights;
    for (const Bucket& bucket : session_.job().buckets) {
      Enqueue({.message = message::InitialWeights{.bucket = bucket.index, .slot = static_cast<int64_t>(slot)},
               .data = BytesOf(values.Slice(bucket.first, bucket.count)),
               .keep = borrowers_.Add()});
    }
  }
}

void GrpcClient::PushPull(const Exchange& exchange, Done done) {
  const ClientSession::ToSend to_send = session_.Add(exchange, std::move(done));
  if (absl::Status failure = session_.state().failure; !failure.ok()) {
    End(failure);
    WakeLoop();
    return;
  }
  if (to_send == ClientSession::ToSend::kGradient) SendGradient(exchange);
  if (to_send == ClientSession::ToSend::kAnnouncement) {
    Send(message::Announcement{.step = exchange.step});
  }
  if (session_.state().went_back_to.has_value()) WakeLoop();  // it has ended already
}

absl::Status GrpcClient::Leave(MonotonicTime deadline) {
  left_sent_ = session_.state().connected;
  return SessionClient::Leave(deadline);
}

absl::Status GrpcClient::Ask(Question question, const message::ToServer& message, MonotonicTime deadline,
                             const std::string& whom) {
  session_.ExpectAnswer();
  {
    MutexLock lock(mutex_);
    asked_ = Asked{.question = question, .message = message};
    asked_sent_ = session_.state().connected && EnqueueLocked({.message = message});
  }
  absl::Status status = EndIfFailed(session_.Await(
      question, deadline + Grace(), absl::StrCat(whom, " (parameter server at ", address(), ")")));
  {
    MutexLock lock(mutex_);
    asked_.reset();
  }
  // Nothing reads the caller's memory any more.
  borrowers_.AwaitNone(MonotonicNow() + absl::Seconds(10));
  return status;
}

absl::Status GrpcClient::AskForRows(std::vector<RowMessage> parts, MonotonicTime deadline,
                                    const std::string& whom) {
  return EndIfFailed(session_.AskForRows(std::move(parts), deadline + Grace(),
                                         absl::StrCat(whom, " (parameter server at ", address(), ")"),
                                         [this](const RowMessage& part) { SendRows(part); }));
}

void GrpcClient::SendGradient(const Exchange& exchange) {
  std::optional<message::Gradient> message = session_.BeginSending(exchange);
  if (!message.has_value()) return;
  MutexLock lock(mutex_);
  Outgoing outgoing{.data = BytesOf(exchange.gradient), .keep = borrowers_.Add()};
  if (shares_) {
    const auto gradient_at = PlaceIn(caller_.shared_gradients, exchange.gradient);
    const auto weights_at = PlaceIn(caller_.shared_weights, exchange.weights);
    PSRING_CHECK(!on_gpu_ || (gradient_at.has_value() && weights_at.has_value()));
    // A gradient in memory that is not shared is sent over gRPC.
    if (gradient_at.has_value() && weights_at.has_value()) {
      message->shared = message::SharedPlaces{
          .bytes = outgoing.data.size(), .gradient_at = *gradient_at, .weights_at = *weights_at};
      outgoing.data = {};
    }
  }
  outgoing.message = *message;
  EnqueueLocked(std::move(outgoing));
}

absl::Status GrpcClient::Connect(MonotonicTime deadline) {
  // A restarted server has another address, and somebody else may have its old one.
  constexpr absl::Duration kBetweenTries = absl::Milliseconds(100);
  absl::Duration patience = absl::Seconds(1);  // with one attempt; a slow server gets more
  absl::StatusOr<std::shared_ptr<grpc::Channel>> dialled = absl::UnknownError("");
  while (true) {
    const std::string where = published();
    dialled = Dial(where, options_.find_again ? std::min(deadline, MonotonicNow() + patience) : deadline);
    const bool may_return = absl::IsUnavailable(dialled.status()) || options_.patience > absl::ZeroDuration();
    if (dialled.ok() || !options_.find_again || !may_return || MonotonicNow() + kBetweenTries >= deadline) {
      break;
    }
    patience *= 2;
    absl::SleepFor(kBetweenTries);
    absl::StatusOr<std::string> found = options_.find_again();
    MutexLock lock(mutex_);
    if (found.ok()) address_ = *found;
  }
  PSRING_ASSIGN_OR_RETURN(std::shared_ptr<grpc::Channel> channel, std::move(dialled));
  MutexLock lock(mutex_);
  over_ = false;
  OpenLocked(std::move(channel));
  thread_ = std::thread([this] { Loop(); });
  return absl::OkStatus();
}

void GrpcClient::OpenLocked(std::shared_ptr<grpc::Channel> channel) {
  channel_ = std::move(channel);
  context_ = std::make_unique<grpc::ClientContext>();
  call_ = grpc::GenericStub(channel_).PrepareCall(context_.get(), kExchangeMethod, &queue_);
  offer_.reset();
  enqueued_ = 0;
  why_broken_.clear();
  finishing_ = false;
  ++operations_;
  writing_ = true;  // until the call has started
  call_->StartCall(&started_);
}

absl::Status GrpcClient::EndIfFailed(const absl::Status& status) {
  if (!status.ok()) End(status);
  return status;
}

void GrpcClient::End(const absl::Status& why) {
  session_.Fail(why);
  MutexLock lock(mutex_);
  ended_ = true;
  offered_.NotifyAll();
  outgoing_.clear();
  if (context_ != nullptr) context_->TryCancel();
}

void GrpcClient::Break(const absl::Status& why) {
  MutexLock lock(mutex_);
  why_broken_ = std::string(why.message());
  if (context_ != nullptr) context_->TryCancel();
}

void GrpcClient::WakeLoop() {
  auto* const wake_up = new WakeUp{{&GrpcClient::OnWake, /*one_of_call=*/false}};
  wake_up->alarm.Set(&queue_, GrpcDeadline(MonotonicNow()), static_cast<Tag*>(wake_up));
}

std::string GrpcClient::address() const { return WithoutToken(published()); }

std::string GrpcClient::published() const {
  MutexLock lock(mutex_);
  return address_;
}

void GrpcClient::Enqueue(Outgoing outgoing) {
  MutexLock lock(mutex_);
  EnqueueLocked(std::move(outgoing));
}

bool GrpcClient::EnqueueLocked(Outgoing outgoing) {
  if (finishing_ || over_ || reconnecting_) return false;  // the waiting caller is about to be notified
  const bool is_gradient = std::holds_alternative<message::Gradient>(outgoing.message) && !shares_;
  const bool has_rows = !session_.job().tables.empty();
  if (payload_ != nullptr && (is_gradient || (has_rows && FollowsRows(outgoing.message)))) {
    payload_->Send(outgoing.message, outgoing.data, std::move(outgoing.keep), enqueued_);
    return true;
  }
  enqueued_ += ChunkCount(outgoing.data.size());
  outgoing_.push_back(std::move(outgoing));
  if (!writing_) WriteLocked();
  return true;
}

void GrpcClient::WriteLocked() {
  if (outgoing_.empty() || finishing_) return;
  Outgoing& front = outgoing_.front();
  const Bytes chunk = front.data.subspan(front.offset, ChunkLength(front.data.size(), front.offset));
  message::SetOffset(front.message, front.offset);
  const grpc::ByteBuffer bytes = Encode(front.message, chunk, front.keep);
  front.offset += chunk.size();
  if (front.offset == front.data.size()) outgoing_.pop_front();
  writing_ = true;
  ++operations_;
  call_->Write(bytes, &written_);
}

std::unique_ptr<OneServerClient> MakeGrpcPsClient(const std::string& address, GrpcClientOptions options) {
  return std::make_unique<GrpcClient>(address, std::move(options));
}

}  // namespace psring
