// gRPC over sockets that are ours: the library opens its own with the system's congestion control, which on
// loopback may halve what passes (common/tcp_socket.h says why).
#pragma once

#include <memory>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/file_descriptor.h"
#include "common/link_shaper.h"
#include "common/tcp_socket.h"

namespace grpc {
class Channel;
class ChannelArguments;
class Server;
}  // namespace grpc

namespace psring {

// A channel over one connection to "host:port"; it does not come back once that is lost. Tries until
// `deadline`, since the server may still be starting; the error names the address. `link`: this machine's.
absl::StatusOr<std::shared_ptr<grpc::Channel>> OpenChannel(const std::string& address,
                                                           const grpc::ChannelArguments& arguments,
                                                           absl::Time deadline, const LinkEnd& link = {});

// Listens, and hands what connects to a gRPC server. Its thread ends with it.
class Port {
 public:
  // `port` 0: the system chooses. AlreadyExists or Unavailable say why one cannot listen there.
  static absl::StatusOr<std::unique_ptr<Port>> Listen(const std::string& host, int port);
  ~Port();

  int number() const { return listener_.port; }
  // From now on what connects becomes `server`'s; it has been started, and is up for longer than this.
  // `shaper`, where there is one: what connects from other machines goes through it. It lives longer, too.
  void Serve(grpc::Server& server, LinkShaper* shaper = nullptr);

 private:
  explicit Port(TcpListener listener) : listener_(std::move(listener)) {}
  void Accept(grpc::Server& server, LinkShaper* shaper);

  TcpListener listener_;
  std::thread thread_;
};

}  // namespace psring
