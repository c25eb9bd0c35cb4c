#include "ps_server/wire/own_sockets.h"

#include <grpcpp/create_channel_posix.h>
#include <grpcpp/server_posix.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/check.h"
#include "common/net/address.h"

namespace psring {

absl::StatusOr<std::shared_ptr<grpc::Channel>> OpenChannel(const std::string& address,
                                                           const grpc::ChannelArguments& arguments,
                                                           absl::Time deadline, const LinkEnd& link) {
  constexpr absl::Duration kBetweenTries = absl::Milliseconds(100);
  PSRING_ASSIGN_OR_RETURN(const HostPort server, ParseAddress(address));
  const absl::Time begin = absl::Now();
  while (true) {
    absl::StatusOr<FileDescriptor> socket = ConnectTcp(server.host, server.port, deadline, link.source);
    if (socket.ok()) {
      if (link.shaper != nullptr && !WithinHost(socket->get())) {
        socket = link.shaper->Wrap(*std::move(socket));
        PSRING_RETURN_IF_ERROR(socket.status());
      }
      return grpc::CreateCustomInsecureChannelFromFd(address, socket->release(), arguments);
    }
    if (absl::IsInvalidArgument(socket.status())) return socket.status();
    if (absl::Now() + kBetweenTries >= deadline) {
      return absl::UnavailableError(
          absl::StrCat("no parameter server answered at ", address, " within ",
                       absl::FormatDuration(absl::Trunc(absl::Now() - begin, absl::Milliseconds(1)))));
    }
    absl::SleepFor(kBetweenTries);
  }
}

absl::StatusOr<std::unique_ptr<Port>> Port::Listen(const std::string& host, int port) {
  PSRING_ASSIGN_OR_RETURN(TcpListener listener, ListenTcp(host, port));
  return std::unique_ptr<Port>(new Port(std::move(listener)));
}

Port::~Port() {
  if (!thread_.joinable()) return;
  shutdown(listener_.socket.get(), SHUT_RDWR);  // ends poll() and accept4()
  thread_.join();
}

void Port::Serve(NextServer next, LinkShaper* shaper) {
  thread_ = std::thread([this, next = std::move(next), shaper] { Accept(next, shaper); });
}

void Port::Accept(const NextServer& next, LinkShaper* shaper) {
  while (true) {
    pollfd waiting = {listener_.socket.get(), POLLIN, 0};
    if (poll(&waiting, 1, -1) < 0 && errno != EINTR) return;
    FileDescriptor socket(accept4(listener_.socket.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (socket.valid()) {
      if (!PrepareTcpSocket(socket.get()).ok()) continue;
      if (shaper != nullptr && !WithinHost(socket.get())) {
        absl::StatusOr<FileDescriptor> wrapped = shaper->Wrap(std::move(socket));
        if (!wrapped.ok()) continue;
        socket = *std::move(wrapped);
      }
      grpc::AddInsecureChannelFromFd(&next(), socket.release());
      continue;
    }
    if (errno == EINVAL) return;  // shut down
    // Out of descriptors or memory: retry soon.
    if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
      absl::SleepFor(absl::Milliseconds(50));
    }
  }
}

}  // namespace psring
