// gRPC over sockets that are ours: the library opens its own with the system's congestion control, which on
// loopback may halve what passes (common/net/tcp_socket.h says why).
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

// A channel over one connection to "host:port"; it does not come back once that is lost. Tries until
// `deadline`, since the server may still be starting; the error names the address. `link`: this machine's.
absl::StatusOr<std::shared_ptr<grpc::Channel>> OpenChannel(const std::string& address,
                                                           const grpc::ChannelArguments& arguments,
                                                           absl::Time deadline, const LinkEnd& link = {});

// Listens, and hands what connects to gRPC servers. Its thread ends with it.
class Port {
 public:
  // `port` 0: the system chooses. AlreadyExists or Unavailable say why one cannot listen there.
  static absl::StatusOr<std::unique_ptr<Port>> Listen(const std::string& host, int port);
  ~Port();

  int number() const { return listener_.port; }
  // From now on what connects becomes that server's which `next` names, on this thread; they have been
  // started, and are up for longer than this. `shaper`, where there is one: what connects from other machines
  // goes through it. It lives longer, too.
  using NextServer = std::function<grpc::Server&()>;
  void Serve(NextServer next, LinkShaper* shaper = nullptr);

 private:
  explicit Port(TcpListener listener) : listener_(std::move(listener)) {}
  void Accept(const NextServer& next, LinkShaper* shaper);

  TcpListener listener_;
  std::thread thread_;
};

}  // namespace psring
