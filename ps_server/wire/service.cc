#include "ps_server/wire/service.h"

#include <grpcpp/server_builder.h>

#include <algorithm>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "common/base/errors.h"
#include "common/base/mutex.h"
#include "common/device/control_groups.h"
#include "common/net/address.h"
#include "common/net/grpc_waiting.h"
#include "ps_server/wire/own_sockets.h"
#include "ps_server/wire/service_connection.h"

namespace psring {
namespace {

// A gRPC server with one completion queue and one thread, so that a chunk is read, added and answered while
// it is in one core's cache.
class EventLoop : public Connection::Host {
 public:
  EventLoop(ParameterServer& server, PayloadReceiver& receiver, PayloadStreams& streams, Lane lane)
      : server_(server), receiver_(receiver), streams_(streams), lane_(std::move(lane)) {}
  ~EventLoop() override {
    if (queue_ == nullptr) return;
    queue_->Shutdown();
    if (thread_.joinable()) {
      thread_.join();
    } else {
      Serve();  // drains the queue of a loop that never started
    }
  }

  absl::Status Start() {
    grpc::ServerBuilder builder;
    builder.RegisterService(&raw_service_);
    builder.SetMaxReceiveMessageSize(kMaxMessageBytes);
    // Detects a worker whose host is gone, and accepts the workers' pings.
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, 20000);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 20000);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PING_STRIKES, 0);
    // A client that never opens a stream does not keep a socket open: neither before the handshake
    builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, 10000);
    // nor after it (keepalive pings are sent only to clients that have a stream).
    builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, 10000);
    builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, 16);
    queue_ = builder.AddCompletionQueue();
    grpc_server_ = builder.BuildAndStart();
    if (grpc_server_ == nullptr) return Internal("gRPC did not start a server");
    OnAccepted();
    thread_ = std::thread([this] { Serve(); });
    return absl::OkStatus();
  }

  grpc::Server& grpc_server() { return *grpc_server_; }

  // Includes those that wait for a worker to connect.
  int connections() const {
    MutexLock lock(mutex_);
    return connections_;
  }

  // Accepts no more connections; the existing ones have until `deadline`.
  void Shutdown(MonotonicTime deadline) {
    {
      MutexLock lock(mutex_);
      stopping_ = true;
    }
    if (grpc_server_ != nullptr) grpc_server_->Shutdown(GrpcDeadline(deadline));
  }
  bool AwaitNone(MonotonicTime deadline) {
    MutexLock lock(mutex_);
    while (connections_ > 0) {
      if (!gone_.WaitUntil(mutex_, deadline) && connections_ > 0) return false;
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

  int64_t sockets = 0;  // so far; of the port's thread

  PayloadReceiver& receiver() override { return receiver_; }
  PayloadStreams& streams() override { return streams_; }
  grpc::CompletionQueue& queue() override { return *queue_; }

  void OnGone() override {
    MutexLock lock(mutex_);
    --connections_;
    gone_.NotifyAll();
  }

 private:
  void Serve() {
    void* tag;
    bool ok;
    while (queue_->Next(&tag, &ok)) static_cast<Connection::Tag*>(tag)->Complete(ok, lane_);
  }

  ParameterServer& server_;
  PayloadReceiver& receiver_;
  PayloadStreams& streams_;
  Lane lane_;  // the thread's
  RawService raw_service_;
  std::unique_ptr<grpc::ServerCompletionQueue> queue_;
  std::unique_ptr<grpc::Server> grpc_server_;
  std::thread thread_;

  mutable Mutex mutex_;
  CondVar gone_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  int connections_ ABSL_GUARDED_BY(mutex_) = 0;
};

class GrpcService : public Service {
 public:
  explicit GrpcService(ParameterServer& server) : server_(server) {}

  ~GrpcService() override { PSRING_CHECK(Stop(MonotonicNow())); }

  absl::Status Listen(const ServiceOptions& options) {
    PSRING_ASSIGN_OR_RETURN(TcpListener listener, ListenTcp(options.host, options.port));
    const std::string token = NewListenerToken();
    address_ = PublishedText({options.host, listener.port, token});
    PSRING_ASSIGN_OR_RETURN(receiver_, PayloadReceiver::Open(server_.device(), options.secret));
    const int threads = options.threads > 0 ? options.threads : UsualThreads();
    streams_ = std::make_unique<PayloadStreams>(server_, threads);
    for (int i = 0; i < threads; ++i) {
      PSRING_ASSIGN_OR_RETURN(Lane lane, server_.NewLane());
      loops_.push_back(std::make_unique<EventLoop>(server_, *receiver_, *streams_, std::move(lane)));
      PSRING_RETURN_IF_ERROR(loops_.back()->Start());
    }
    PSRING_ASSIGN_OR_RETURN(
        port_,
        ServeMembers(
            std::move(listener), options.secret, token,
            [this]() -> grpc::Server& { return NextLoop().grpc_server(); }, options.shaper,
            [this](uint64_t number, MemberSocket socket) { streams_->Add(number, std::move(socket)); }));
    return absl::OkStatus();
  }

  std::string address() const override { return address_; }

  bool Stop(MonotonicTime deadline) override {
    port_.reset();
    for (const auto& loop : loops_) loop->Shutdown(deadline);
    // All are cancelled now, so their operations complete.
    const MonotonicTime patience = std::max(deadline, MonotonicNow()) + absl::Seconds(5);
    for (const auto& loop : loops_) {
      if (!loop->AwaitNone(patience)) return false;
    }
    streams_.reset();  // its threads may be destroying connections, which use the loops
    loops_.clear();
    return true;
  }

 private:
  static int UsualThreads() { return std::clamp(UsableCores() / 2, 1, 8); }

  // The loop with the fewest connections now; of several, the one with the fewest in total. On the port's
  // thread.
  EventLoop& NextLoop() {
    EventLoop& next = **std::ranges::min_element(
        loops_, {}, [](const auto& loop) { return std::pair(loop->connections(), loop->sockets); });
    ++next.sockets;
    return next;
  }

  ParameterServer& server_;
  std::unique_ptr<PayloadReceiver> receiver_;
  std::unique_ptr<PayloadStreams> streams_;
  std::vector<std::unique_ptr<EventLoop>> loops_;
  std::unique_ptr<AuthenticatedListener> port_;  // last: its thread distributes connections
  std::string address_;
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
