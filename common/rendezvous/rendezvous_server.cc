// The store's host.
#include <grpcpp/grpcpp.h>

#include <utility>

#include "common/base/check.h"
#include "common/base/deadline.h"
#include "common/base/errors.h"
#include "common/net/authentication.h"
#include "common/net/grpc_waiting.h"
#include "common/net/tls.h"
#include "common/rendezvous/rendezvous.h"
#include "common/rendezvous/rendezvous_service.h"
#include "common/rendezvous/rendezvous_store.h"
#include "proto/rendezvous.grpc.pb.h"

namespace psring {
namespace {

// gRPC keeps a whole request in memory before the store can count its bytes.
constexpr int kMaxRequestBytes = 2 << 20, kMaxCalls = 64;  // calls of one connection at a time
constexpr size_t kMaxBytesInFlight = 1 << 30;
// How long a closing store waits for its users, whose last replies may be in transit.
constexpr absl::Duration kLinger = absl::Seconds(5);

class GrpcRendezvousServer final : public RendezvousServer {
 public:
  GrpcRendezvousServer(const std::string& noun, absl::Duration ping)
      : noun_(noun), store_(noun), ping_ms_(static_cast<int>(absl::ToInt64Milliseconds(ping))) {}
  ~GrpcRendezvousServer() override {
    store_.WaitUntilEmpty(kLinger);
    store_.Close(Unavailable("the rendezvous store has been closed by its host"));
    listener_.reset();
    if (server_ != nullptr) server_->Shutdown(GrpcDeadline(MonotonicNow() + absl::Seconds(1)));
  }

  // We accept connections, authenticate them and pass them to gRPC. (gRPC could also listen only in its
  // thread's network namespace.)
  absl::Status ServeOn(TcpListener listener, const JobSecret& secret) {
    ChooseGrpcPolling();
    grpc::ServerBuilder builder;
    acceptor_ = builder.experimental().AddExternalConnectionAcceptor(
        grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD,
        grpc::InsecureServerCredentials());
    builder.SetMaxReceiveMessageSize(kMaxRequestBytes);
    builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kMaxCalls);
    builder.SetResourceQuota(grpc::ResourceQuota("rendezvous store").Resize(kMaxBytesInFlight));
    // Pings also detect a host that vanishes.
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, ping_ms_);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, ping_ms_);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, kPingMs / 2);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PING_STRIKES, 0);
    builder.RegisterService(service_.get());
    server_ = builder.BuildAndStart();
    if (server_ == nullptr) return Unavailable("gRPC did not start a rendezvous store");
    const auto on_member = [this, fd = listener.socket.get()](PendingConnections::Member member) {
      grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters connection;
      absl::StatusOr<FileDescriptor> socket = member.socket.TakeClearText();
      if (!socket.ok()) return;  // out of descriptors: the member gets an error
      connection.listener_fd = fd;
      connection.fd = socket->release();
      acceptor_->HandleNewConnection(&connection);
    };
    const auto on_other_tls = [this](uint64_t detail, const std::string& peer) {
      const int rank = RankOf(detail);
      store_.Refuse(rank,
                    absl::StrCat(rank < 0 ? "a process" : absl::StrCat(noun_, " ", rank), " at ", peer,
                                 " was started with another --tls than the rendezvous store; ", kSameTls));
    };
    PSRING_ASSIGN_OR_RETURN(
        listener_,
        AuthenticatedListener::Start(std::move(listener), {.secret = secret, .purpose = Purpose::kRendezvous},
                                     on_member, on_other_tls));
    return absl::OkStatus();
  }

  int port() const override { return listener_->port(); }
  absl::Status Surplus() override { return store_.Surplus(); }
  void RankEnded(int rank, const std::string& why) override { store_.RankEnded(rank, why); }

 private:
  const std::string noun_;
  RendezvousStore store_;
  const int ping_ms_;
  std::unique_ptr<grpc::Service> service_ = MakeRendezvousService(store_);
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor_;
  std::unique_ptr<grpc::Server> server_;  // its threads use the members above
  std::unique_ptr<AuthenticatedListener> listener_;
};

absl::StatusOr<std::unique_ptr<RendezvousServer>> Serve(TcpListener listener, const JobSecret& secret,
                                                        const std::string& noun, absl::Duration ping) {
  auto server = std::make_unique<GrpcRendezvousServer>(noun, ping);
  PSRING_RETURN_IF_ERROR(server->ServeOn(std::move(listener), secret));
  return server;
}

}  // namespace

absl::StatusOr<std::unique_ptr<RendezvousServer>> RendezvousServer::Start(const std::string& host, int port,
                                                                          const JobSecret& secret,
                                                                          const std::string& noun,
                                                                          absl::Duration ping) {
  absl::StatusOr<TcpListener> listener = ListenTcp(host, port);
  if (absl::IsAlreadyExists(listener.status())) {
    return AlreadyExists("port ", port, " on ", host,
                         " is in use; stop the program that uses it or choose another MASTER_PORT");
  }
  PSRING_RETURN_IF_ERROR(listener.status());
  return Serve(*std::move(listener), secret, noun, ping);
}

absl::StatusOr<std::unique_ptr<RendezvousServer>> RendezvousServer::StartOn(FileDescriptor socket,
                                                                            const JobSecret& secret) {
  PSRING_ASSIGN_OR_RETURN(TcpListener listener, TakeListener(std::move(socket)));
  return Serve(std::move(listener), secret, "rank", absl::Milliseconds(kPingMs));
}

}  // namespace psring
