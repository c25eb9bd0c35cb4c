#include "ps_server/service.h"

#include <grpcpp/server_builder.h>

#include <algorithm>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/address.h"
#include "common/check.h"
#include "common/mutex.h"
#include "ps_server/own_sockets.h"
#include "ps_server/service_connection.h"

namespace psring {
namespace {

class GrpcService : public Service, public Connection::Host {
 public:
  explicit GrpcService(ParameterServer& server) : server_(server) {}

  ~GrpcService() override { PSRING_CHECK(Stop(absl::Now())); }

  absl::Status Listen(const ServiceOptions& options) {
    PSRING_ASSIGN_OR_RETURN(port_, Port::Listen(options.host, options.port));
    PSRING_ASSIGN_OR_RETURN(door_, PayloadDoor::Open(server_.device()));
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
    // Nor does somebody who connects and never gets as far as a stream keep a socket for ever.
    builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, 10000);
    // Nor does somebody who greets and opens none; pings are sent to those alone that have one.
    builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, 10000);
    builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, 16);
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
