#include "ps_server/service.h"

#include <grpcpp/alarm.h>
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/server_builder.h>
#include <grpcpp/server_context.h>
#include <grpcpp/support/byte_buffer.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/address.h"
#include "common/check.h"
#include "common/mutex.h"
#include "proto/parameter_server.grpc.pb.h"
#include "ps_server/own_sockets.h"
#include "ps_server/shared_payload.h"
#include "ps_server/wire.h"

namespace psring {
namespace {

constexpr char kClosed[] = "its connection closed before it said that it leaves";

// The service of the .proto file, with messages left as bytes.
using RawService = proto::ParameterServer::WithRawMethod_Exchange<proto::ParameterServer::Service>;

// One worker's stream. Lives until its last operation has come back from the completion queue and nobody
// delivers to it any more.
class Connection : public ReplySink, public std::enable_shared_from_this<Connection> {
 public:
  // What a completion queue's tag points to.
  class Tag {
   public:
    using Handler = void (Connection::*)(bool ok, Lane& lane);
    Tag(Connection& connection, Handler handler) : connection_(connection), handler_(handler) {}
    void Complete(bool ok, Lane& lane) { connection_.Complete(handler_, ok, lane); }

   private:
    Connection& connection_;
    Handler handler_;
  };

  // What a connection needs of its service.
  class Host {
   public:
    virtual ~Host() = default;
    virtual void OnAccepted() = 0;  // time to wait for the next one
    virtual void OnGone() = 0;      // the connection is about to be destroyed
    virtual PayloadDoor& door() = 0;
    virtual grpc::CompletionQueue& queue() = 0;
  };

  Connection(ParameterServer& server, Host& host) : server_(server), host_(host) {}
  ~Connection() override { host_.OnGone(); }

  // Waits for a worker to connect.
  void Accept(RawService& service, grpc::ServerCompletionQueue& queue);

  void Deliver(Reply reply) override;
  std::byte* PlaceOf(int bucket, size_t bytes) override;
  void Abort(const absl::Status& why) override;

 private:
  struct Outgoing {
    Reply reply;
    size_t sent = 0;
    std::byte* place = nullptr;  // in the worker's memory; null: the payload goes over the wire
  };

  // A tag came back: runs its handler, then lets go of this connection if it was the last one out.
  void Complete(Tag::Handler handler, bool ok, Lane& lane);
  void OnConnected(bool ok, Lane& lane);
  void OnRead(bool ok, Lane& lane);
  void OnWritten(bool ok, Lane& lane);
  void OnPlaced(bool ok, Lane& lane);
  void OnFinished(bool ok, Lane& lane);

  absl::Status Handle(Lane& lane);
  absl::Status HandleJoin();
  absl::Status HandleShared(const ChunkHeader& header, Lane& lane);
  // Ends the stream: after what is queued where `status` is OK, without it otherwise.
  void EndLocked(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ReadLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void WriteOrFinishLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  ParameterServer& server_;
  Host& host_;
  grpc::ServerContext context_;
  grpc::GenericServerAsyncReaderWriter stream_{&context_};
  Tag connected_{*this, &Connection::OnConnected};
  Tag read_{*this, &Connection::OnRead};
  Tag written_{*this, &Connection::OnWritten};
  Tag placed_{*this, &Connection::OnPlaced};
  Tag finished_{*this, &Connection::OnFinished};

  // Touched by the thread that handles a read; there is one read at a time.
  grpc::ByteBuffer incoming_;
  ReceivedChunk chunk_;
  int worker_ = -1;                     // until it has joined
  std::optional<WorkerMemory> memory_;  // set before it joins

  Mutex mutex_;
  std::shared_ptr<Connection> self_ ABSL_GUARDED_BY(mutex_);  // while operations are in flight
  int operations_ ABSL_GUARDED_BY(mutex_) = 0;
  std::deque<Outgoing> outgoing_ ABSL_GUARDED_BY(mutex_);
  std::map<int, uint64_t> places_ ABSL_GUARDED_BY(mutex_);  // of weights, by bucket whose push was shared
  grpc::Alarm place_ ABSL_GUARDED_BY(mutex_);
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  bool finishing_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status end_ ABSL_GUARDED_BY(mutex_);
};

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
  context_.AddInitialMetadata(kOfferKey, host_.door().offer());
  writing_ = true;
  ++operations_;
  stream_.SendInitialMetadata(&written_);
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
    if (status.ok() && chunk_.header().shared)
      status = HandleShared(chunk_.header(), lane);
    else if (status.ok())
      server_.Receive(worker_, chunk_.header(), chunk_.payload(), lane);
    if (!status.ok()) {
      server_.Abort(
          absl::Status(status.code(), absl::StrCat("worker ", worker_, " sent ", status.message())));
    }
    chunk_.Clear();  // the memory goes back while it is still in the cache
    return absl::OkStatus();
  }
  if (!status.ok()) return status;
  return HandleJoin();
}

absl::Status Connection::HandleJoin() {
  if (chunk_.header().kind != MessageKind::kJoin) {
    return absl::FailedPreconditionError("a conversation begins with a Join");
  }
  PSRING_ASSIGN_OR_RETURN(JoinRequest request, DecodeJoin(chunk_.payload()));
  chunk_.Clear();
  if (!request.memory.empty()) {
    memory_ = host_.door().Take(request.memory);
    if (!memory_.has_value()) {
      return absl::FailedPreconditionError(absl::StrCat(
          "worker ", request.worker, " says that it shares memory, and has not handed any over"));
    }
  }
  PSRING_RETURN_IF_ERROR(server_.Join(request.worker, request.job, shared_from_this()));
  worker_ = request.worker;
  return absl::OkStatus();
}

// The gradient is taken straight out of the worker's memory.
absl::Status Connection::HandleShared(const ChunkHeader& header, Lane& lane) {
  if (header.kind != MessageKind::kExchange || !memory_.has_value()) {
    return absl::FailedPreconditionError("a message about shared memory, of which there is none");
  }
  const SharedMemory& gradients = memory_->gradients;
  if (header.gradient_at > gradients.bytes() ||
      header.shared_bytes > gradients.bytes() - header.gradient_at) {
    return absl::InvalidArgumentError(absl::StrCat("the place of a gradient outside of its memory: ",
                                                   header.shared_bytes, " bytes at ", header.gradient_at));
  }
  {
    MutexLock lock(mutex_);
    places_[header.bucket] = header.weights_at;
  }
  const Bytes gradient(gradients.data() + header.gradient_at, header.shared_bytes);
  ChunkHeader chunk{.kind = header.kind,
                    .bucket = header.bucket,
                    .offset = header.offset,
                    .step = header.step,
                    .samples = header.samples};
  // A whole bucket may be used as it stands; a chunk is one of several that the worker copies there in turn.
  chunk.shared = header.gradient_at % alignof(float) == 0;
  server_.Receive(worker_, chunk, {&gradient, 1}, lane);
  return absl::OkStatus();
}

std::byte* Connection::PlaceOf(int bucket, size_t bytes) {
  MutexLock lock(mutex_);
  const auto shared = places_.find(bucket);
  if (shared == places_.end()) return nullptr;
  const SharedMemory& weights = memory_->weights;
  // A place outside is answered in Deliver.
  if (shared->second > weights.bytes() || bytes > weights.bytes() - shared->second) return nullptr;
  return weights.data() + shared->second;
}

void Connection::Deliver(Reply reply) {
  MutexLock lock(mutex_);
  if (ending_) return;
  const bool last = reply.header.kind == MessageKind::kLeave;
  std::byte* place = nullptr;
  const auto shared =
      reply.header.kind == MessageKind::kExchange ? places_.find(reply.header.bucket) : places_.end();
  if (shared != places_.end()) {
    const SharedMemory& weights = memory_->weights;
    const size_t bytes = reply.in_place ? reply.header.shared_bytes : reply.weights.weights.bytes();
    if (shared->second > weights.bytes() || bytes > weights.bytes() - shared->second) {
      return EndLocked(absl::InvalidArgumentError(absl::StrCat("the place of bucket ", reply.header.bucket,
                                                               "'s weights lies outside of its memory")));
    }
    if (!reply.in_place) place = weights.data() + shared->second;
    reply.header.shared = true;
    reply.header.weights_at = shared->second;
    reply.header.shared_bytes = bytes;
    places_.erase(shared);
  }
  outgoing_.push_back({.reply = std::move(reply), .place = place});
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

// Out of the lock: other workers' replies are copied at the same time.
void Connection::OnPlaced(bool, Lane&) {
  Outgoing placed;
  {
    MutexLock lock(mutex_);
    if (outgoing_.empty()) {  // dropped, because the conversation is ending
      writing_ = false;
      return WriteOrFinishLocked();
    }
    placed = std::move(outgoing_.front());
    outgoing_.pop_front();
  }
  const ConstSpan weights = placed.reply.weights.weights;
  if (weights.bytes() > 0) std::memcpy(placed.place, weights.data, weights.bytes());
  MutexLock lock(mutex_);
  ++operations_;
  stream_.Write(EncodeChunk(placed.reply.header, {}, nullptr), &written_);
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
    if (front.place != nullptr) {  // on a thread of the service, not on the one that happens to be here
      writing_ = true;
      ++operations_;
      place_.Set(&host_.queue(), gpr_now(GPR_CLOCK_MONOTONIC), &placed_);
      return;
    }
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

class GrpcService : public Service, public Connection::Host {
 public:
  explicit GrpcService(ParameterServer& server) : server_(server) {}

  ~GrpcService() override { PSRING_CHECK(Stop(absl::Now())); }

  absl::Status Listen(const ServiceOptions& options) {
    PSRING_ASSIGN_OR_RETURN(port_, Port::Listen(options.host, options.port));
    PSRING_ASSIGN_OR_RETURN(door_, PayloadDoor::Open());
    std::vector<Lane> lanes;
    for (int i = 0; i < options.threads; ++i) {
      PSRING_ASSIGN_OR_RETURN(Lane lane, server_.NewLane());
      lanes.push_back(std::move(lane));
    }
    grpc::ServerBuilder builder;
    builder.RegisterService(&raw_service_);
    builder.SetMaxReceiveMessageSize(kMaxMessageBytes);
    // Finds a worker whose host has vanished; and lets workers ask the same of the server.
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, 20000);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 20000);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PING_STRIKES, 0);
    queue_ = builder.AddCompletionQueue();
    grpc_server_ = builder.BuildAndStart();
    if (grpc_server_ == nullptr) return absl::InternalError("gRPC did not start a server");
    address_ = AddressText(options.host, port_->number());
    OnAccepted();
    for (Lane& lane : lanes) {
      threads_.emplace_back([this, lane = std::move(lane)]() mutable { Serve(lane); });
    }
    port_->Serve(*grpc_server_, options.shaper);
    return absl::OkStatus();
  }

  std::string address() const override { return address_; }

  bool Stop(absl::Time deadline) override {
    {
      MutexLock lock(mutex_);
      if (std::exchange(stopping_, true)) return true;
    }
    port_.reset();
    if (grpc_server_ != nullptr) {
      grpc_server_->Shutdown(absl::ToChronoTime(deadline));
      // Cancelled by now: their operations are coming back.
      const absl::Time patience = std::max(deadline, absl::Now()) + absl::Seconds(5);
      MutexLock lock(mutex_);
      while (connections_ > 0) {
        if (!gone_.WaitUntil(mutex_, patience) && connections_ > 0) return false;
      }
    }
    if (queue_ != nullptr) queue_->Shutdown();
    for (std::thread& thread : threads_) thread.join();
    if (queue_ != nullptr && threads_.empty()) {
      void* tag;
      bool ok;
      while (queue_->Next(&tag, &ok)) {
      }
    }
    return true;
  }

  void OnAccepted() override {
    {
      MutexLock lock(mutex_);
      if (stopping_) return;
      ++connections_;
    }
    std::make_shared<Connection>(server_, *this)->Accept(raw_service_, *queue_);
  }

  PayloadDoor& door() override { return *door_; }
  grpc::CompletionQueue& queue() override { return *queue_; }

  void OnGone() override {
    MutexLock lock(mutex_);
    --connections_;
    gone_.NotifyAll();
  }

 private:
  void Serve(Lane& lane) {
    void* tag;
    bool ok;
    while (queue_->Next(&tag, &ok)) static_cast<Connection::Tag*>(tag)->Complete(ok, lane);
  }

  ParameterServer& server_;
  std::unique_ptr<Port> port_;
  std::unique_ptr<PayloadDoor> door_;
  RawService raw_service_;
  std::string address_;
  std::unique_ptr<grpc::ServerCompletionQueue> queue_;
  std::unique_ptr<grpc::Server> grpc_server_;
  std::vector<std::thread> threads_;

  Mutex mutex_;
  CondVar gone_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  int connections_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Service>> Service::Start(ParameterServer& server,
                                                        const ServiceOptions& options) {
  KeepGrpcRunning();
  auto service = std::make_unique<GrpcService>(server);
  PSRING_RETURN_IF_ERROR(service->Listen(options));
  return service;
}

}  // namespace psring
