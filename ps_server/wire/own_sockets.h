// gRPC over sockets that psring opens: gRPC's own use the system's congestion control, which on loopback may
// halve the throughput (reasons: common/net/tcp_socket.h).
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/file_descriptor.h"
#include "common/net/link_shaper.h"
#include "common/net/tcp_socket.h"

namespace grpc {
class Channel;
class ChannelArguments;
class Server;
}  // namespace grpc

namespace psring {

// A channel over one connection to "host:port", which is not reopened when it is lost. Retries until
// `deadline`, because the server may still be starting; the error names the address. `link`: this machine's.
absl::StatusOr<std::shared_ptr<grpc::Channel>> OpenChannel(const std::string& address,
                                                           const grpc::ChannelArguments& arguments,
                                                           absl::Time deadline, const LinkEnd& link = {});

// Listens, and passes connections to gRPC servers. The destructor joins its thread.
class Port {
 public:
  // `port` 0: the system chooses. AlreadyExists or Unavailable states why it cannot listen.
  static absl::StatusOr<std::unique_ptr<Port>> Listen(const std::string& host, int port);
  ~Port();

  int number() const { return listener_.port; }
  // Starts to accept; each connection goes to the server that `next`, called on the port's thread, returns.
  // The servers have been started and outlive this. `shaper`: shapes connections from other machines; null:
  // none; outlives this.
  using NextServer = std::function<grpc::Server&()>;
  void Serve(NextServer next, LinkShaper* shaper = nullptr);

 private:
  explicit Port(TcpListener listener) : listener_(std::move(listener)) {}
  void Accept(const NextServer& next, LinkShaper* shaper);

  TcpListener listener_;
  std::thread thread_;
};

}  // namespace psring
