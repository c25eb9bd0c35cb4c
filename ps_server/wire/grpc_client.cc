#include "ps_server/wire/grpc_client.h"

#include <grpcpp/support/channel_arguments.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/check.h"
#include "ps_server/wire/own_sockets.h"
#include "ps_server/wire/shared_payload.h"

namespace psring {
namespace {

uint64_t NewSession() {
  std::random_device random;
  return (static_cast<uint64_t>(random()) << 32 | random()) | 1;
}

}  // namespace

absl::StatusOr<std::shared_ptr<grpc::Channel>> GrpcClient::Dial(const std::string& address,
                                                                absl::Time deadline) const {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH, kMaxMessageBytes);
  // The server says when a worker keeps the others waiting; these find a server that says nothing any more.
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 20000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 20000);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  return OpenChannel(address, arguments, deadline, options_.link);
}

GrpcClient::GrpcClient(const std::string& address, GrpcClientOptions options)
    : options_(std::move(options)), session_id_(NewSession()), address_(address) {}

GrpcClient::~GrpcClient() {
  if (!thread_.joinable()) return;
  End(absl::CancelledError("the client was destroyed"));
  {
    MutexLock lock(mutex_);
    while (!over_) over_changed_.Wait(mutex_);  // cancelled: its operations are coming back
  }
  queue_.Shutdown();
  thread_.join();
}

void GrpcClient::ShareMemory(const SharedSpan& gradients, const SharedSpan& weights) {
  gradients_ = gradients;
  weights_ = weights;
}

absl::Status GrpcClient::Start(int worker, const ServerJob& job, Span weights, absl::Time deadline) {
  PSRING_CHECK(!thread_.joinable());
  KeepGrpcRunning();
  worker_ = worker;
  initial_ = weights;
  PSRING_RETURN_IF_ERROR(session_.Begin(job, weights));
  PSRING_RETURN_IF_ERROR(Connect(deadline));
  absl::StatusOr<std::string> token = "";
  if (options_.payload != Payload::kGrpc && job.parameters > 0) {
    constexpr absl::Duration kPatience = absl::Seconds(5);
    const absl::Time until = std::min(deadline, absl::Now() + kPatience);
    std::optional<std::string> offer;
    {
      MutexLock lock(mutex_);
      while (!offer_.has_value() && !ended_ && offered_.WaitUntil(mutex_, until)) {
      }
      offer = offer_;
    }
    PSRING_RETURN_IF_ERROR(session_.failure());
    token =
        offer.has_value()
            ? HandOver(*offer, until)
            : absl::StatusOr<std::string>(absl::DeadlineExceededError("it said nothing about shared memory"));
    if (!token.ok() && options_.payload == Payload::kShared) {
      End(token.status());
      return absl::FailedPreconditionError(
          absl::StrCat("the parameter server at ", address(), " shares no memory with worker ", worker, ": ",
                       token.status().message(), "; --transport auto uses gRPC instead"));
    }
  }
  Introduce(token.ok() ? *token : "");
  const absl::Status status =
      session_.Await(MessageKind::kJoin, deadline + absl::Milliseconds(kServerSpeaksFirstMs),
                     absl::StrCat("all workers to join (parameter server at ", address(), ")"));
  if (!status.ok()) End(status);
  borrowers_.AwaitNone(absl::Now() + absl::Seconds(10));
  return status;
}

absl::StatusOr<std::string> GrpcClient::HandOver(const std::string& offer, absl::Time deadline) {
  {
    MutexLock lock(mutex_);
    shares_ = false;
    memory_.reset();
  }
  const size_t bytes = static_cast<size_t>(session_.job().parameters) * sizeof(float);
  const bool first = !session_.patience().has_value();
  SharedSpan gradients = gradients_, weights = weights_;
  // The caller knows by now where its gradients are read.
  if (options_.payload != Payload::kAuto || (!first && !on_gpu_)) gradients.on_gpu.clear();
  PSRING_ASSIGN_OR_RETURN(ClientMemory memory, ClientMemory::Create(gradients, weights, bytes));
  PSRING_ASSIGN_OR_RETURN(HandedOver handed, memory.HandOver(offer, deadline));
  if (!first && on_gpu_ && !handed.on_gpu) {
    return absl::FailedPreconditionError("the server that came back does not reach this worker's GPU");
  }
  on_gpu_ = handed.on_gpu;
  MutexLock lock(mutex_);
  memory_ = std::move(memory);
  shares_ = true;
  return std::move(handed.token);
}

void GrpcClient::Introduce(const std::string& token) {
  const bool again = session_.patience().has_value();
  auto join = std::make_shared<const std::string>(EncodeJoin({.worker = worker_,
                                                              .job = session_.job(),
                                                              .memory = token,
                                                              .session = session_id_,
                                                              .again = again,
                                                              .epoch = session_.epoch()}));
  Enqueue({.header = {.kind = MessageKind::kJoin}, .data = std::as_bytes(std::span(*join)), .keep = join});
  if (again || worker_ != 0) return;
  for (size_t slot = initial_slots_.size() + 1;
       slot-- > 0;) {  // the weights last: with them the job may start
    const ConstSpan values = slot > 0 ? initial_slots_[slot - 1] : initial_;
    for (const Bucket& bucket : session_.job().buckets) {
      Enqueue({.header = {.kind = MessageKind::kWeights,
                          .bucket = bucket.index,
                          .step = static_cast<int64_t>(slot)},
               .data = BytesOf(values.Slice(bucket.first, bucket.count)),
               .keep = borrowers_.Add()});
    }
  }
}

void GrpcClient::PushPull(const Exchange& exchange, Done done) {
  const ClientSession::ToSend to_send = session_.Add(exchange, std::move(done));
  if (absl::Status failure = session_.failure(); !failure.ok()) {
    End(failure);
    Poke();
    return;
  }
  if (to_send == ClientSession::ToSend::kGradient) SendGradient(exchange);
  if (to_send == ClientSession::ToSend::kAnnouncement) {
    Tell({.kind = MessageKind::kAnnounce, .step = exchange.step});
  }
  if (session_.went_back_to().has_value()) Poke();  // it has ended already
}

absl::StatusOr<std::optional<int64_t>> GrpcClient::Barrier(int number, absl::Time deadline) {
  PSRING_RETURN_IF_ERROR(Ask({.kind = MessageKind::kBarrier, .step = number}, deadline,
                             "all workers to get as far as this one"));
  return session_.went_back_to();
}

absl::Status GrpcClient::Fetch(Span weights, absl::Time deadline) {
  session_.ExpectWeights(weights);
  return Ask({.kind = MessageKind::kFetch}, deadline, "the weights");
}

absl::StatusOr<bool> GrpcClient::FetchState(int slot, Span values, absl::Time deadline) {
  session_.ExpectWeights(values, /*goes_on=*/false);
  PSRING_RETURN_IF_ERROR(Ask({.kind = MessageKind::kFetch, .step = slot}, deadline, "the server's state"));
  return !session_.went_back_to().has_value();
}

absl::Status GrpcClient::Leave(absl::Time deadline) {
  left_sent_ = session_.connected();
  return Ask({.kind = MessageKind::kLeave}, deadline, "leave to go");
}

absl::Status GrpcClient::Ask(const ChunkHeader& request, absl::Time deadline, const std::string& what) {
  session_.ExpectAnswer();
  {
    MutexLock lock(mutex_);
    asked_ = request;
    asked_sent_ = session_.connected() && EnqueueLocked({.header = request});
  }
  absl::Status status = session_.Await(request.kind, deadline + absl::Milliseconds(kServerSpeaksFirstMs),
                                       absl::StrCat(what, " (parameter server at ", address(), ")"));
  {
    MutexLock lock(mutex_);
    asked_.reset();
  }
  if (!status.ok()) End(status);
  // What was sent is the caller's again, and nobody reads it any more.
  borrowers_.AwaitNone(absl::Now() + absl::Seconds(10));
  return status;
}

void GrpcClient::SendGradient(const Exchange& exchange) {
  const std::optional<ChunkHeader> header = session_.BeginSending(exchange);
  if (!header.has_value()) return;
  MutexLock lock(mutex_);
  Outgoing outgoing{.header = *header, .data = BytesOf(exchange.gradient), .keep = borrowers_.Add()};
  if (memory_.has_value()) {
    const size_t mirrored = session_.job().buckets[exchange.bucket].first * sizeof(float);
    const ClientMemory::Area& gradients = memory_->gradients;
    const auto gradient_at = gradients.PlaceOf(exchange.gradient, mirrored);
    const auto weights_at = memory_->weights.PlaceOf(exchange.weights, mirrored);
    PSRING_CHECK(!on_gpu_ || (gradient_at.has_value() && weights_at.has_value()));
    // Memory that is not what was shared goes over the wire.
    if (gradient_at.has_value() && weights_at.has_value()) {
      outgoing.header.shared = true;
      outgoing.header.gradient_at = *gradient_at;
      outgoing.header.weights_at = *weights_at;
      outgoing.staging = gradients.mirror.data() != nullptr ? gradients.data + *gradient_at : nullptr;
    }
  }
  EnqueueLocked(std::move(outgoing));
}

absl::Status GrpcClient::Connect(absl::Time deadline) {
  // A server that was started anew since has another address by now.
  absl::StatusOr<std::shared_ptr<grpc::Channel>> dialled = absl::UnknownError("");
  do {
    dialled =
        Dial(address(), options_.find_again ? std::min(deadline, absl::Now() + absl::Seconds(1)) : deadline);
    if (dialled.ok() || !options_.find_again || absl::Now() >= deadline) break;
    absl::StatusOr<std::string> found = options_.find_again();
    MutexLock lock(mutex_);
    if (found.ok()) address_ = *found;
  } while (true);
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
  finishing_ = false;
  ++operations_;
  writing_ = true;  // until the call has started
  call_->StartCall(TagOf(kStarted));
}

void GrpcClient::End(const absl::Status& why) {
  session_.Fail(why);
  MutexLock lock(mutex_);
  ended_ = true;
  offered_.NotifyAll();
  outgoing_.clear();
  if (context_ != nullptr) context_->TryCancel();
}

void GrpcClient::Poke() {
  auto* alarm = new grpc::Alarm;
  alarm->Set(&queue_, absl::ToChronoTime(absl::Now()), alarm);
}

std::string GrpcClient::address() const {
  MutexLock lock(mutex_);
  return address_;
}

void GrpcClient::Enqueue(Outgoing outgoing) {
  MutexLock lock(mutex_);
  EnqueueLocked(std::move(outgoing));
}

bool GrpcClient::EnqueueLocked(Outgoing outgoing) {
  if (finishing_ || over_ || reconnecting_) return false;  // what waits for it is about to hear of the end
  outgoing_.push_back(std::move(outgoing));
  if (!writing_) WriteLocked();
  return true;
}

void GrpcClient::WriteLocked() {
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
void GrpcClient::WriteSharedLocked(Outgoing& front) {
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

void GrpcClient::ReadLocked() {
  ++operations_;
  call_->Read(&incoming_, TagOf(kRead));
}

std::unique_ptr<PsClient> MakeGrpcPsClient(const std::string& address, GrpcClientOptions options) {
  return std::make_unique<GrpcClient>(address, std::move(options));
}

std::unique_ptr<PsClient> MakeGrpcPsClient(const std::string& address, Payload payload) {
  return MakeGrpcPsClient(address, GrpcClientOptions{.payload = payload});
}

}  // namespace psring
