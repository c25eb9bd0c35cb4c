#include "ps_server/wire/own_sockets.h"

#include <grpcpp/create_channel_posix.h>
#include <grpcpp/server_posix.h>

#include <algorithm>
#include <utility>

#include "absl/time/clock.h"
#include "common/base/check.h"
#include "common/base/errors.h"
#include "common/net/address.h"

namespace psring {

absl::StatusOr<MemberSocket> ConnectToServer(const std::string& address, const JobSecret& secret,
                                             MonotonicTime deadline, const LinkEnd& link, uint64_t payload) {
  constexpr absl::Duration kBetweenTries = absl::Milliseconds(100);
  constexpr absl::Duration kToAuthenticate = absl::Seconds(1);
  PSRING_ASSIGN_OR_RETURN(const HostPort server, ParseAddress(address));
  const Credentials credentials = {
      .secret = secret, .purpose = Purpose::kParameterServer, .token = server.token};
  const std::string name = absl::StrCat("the parameter server at ", WithoutToken(address));
  const MonotonicTime begin = MonotonicNow();
  while (true) {
    absl::StatusOr<FileDescriptor> tcp = ConnectTcp(server.host, server.port, deadline, link.source);
    absl::Status status = tcp.status();
    if (status.ok()) {
      const bool within_host = WithinHost(tcp->get());
      const MonotonicTime until = std::max(deadline, MonotonicNow() + kToAuthenticate);
      absl::StatusOr<MemberSocket> socket =
          AuthenticateTcp(*std::move(tcp), credentials, name, until, payload);
      if (socket.ok()) {
        if (link.shaper != nullptr && !within_host) PSRING_RETURN_IF_ERROR(link.shaper->Shape(*socket));
        return socket;
      }
      status = socket.status();
    }
    if (absl::IsInvalidArgument(status) || absl::IsPermissionDenied(status) ||
        absl::IsFailedPrecondition(status)) {
      return status;
    }
    if (MonotonicNow() + kBetweenTries >= deadline) {
      return Unavailable("no parameter server answered at ", WithoutToken(address), " within ",
                         absl::FormatDuration(absl::Trunc(MonotonicNow() - begin, absl::Milliseconds(1))));
    }
    absl::SleepFor(kBetweenTries);
  }
}

absl::StatusOr<std::shared_ptr<grpc::Channel>> OpenChannel(const std::string& address,
                                                           const JobSecret& secret,
                                                           const grpc::ChannelArguments& arguments,
                                                           MonotonicTime deadline, const LinkEnd& link) {
  PSRING_ASSIGN_OR_RETURN(MemberSocket member,
                          ConnectToServer(address, secret, deadline, link, /*payload=*/0));
  PSRING_ASSIGN_OR_RETURN(FileDescriptor socket, member.TakeClearText());
  return grpc::CreateCustomInsecureChannelFromFd(WithoutToken(address), socket.release(), arguments);
}

absl::StatusOr<std::unique_ptr<AuthenticatedListener>> ServeMembers(
    TcpListener listener, const JobSecret& secret, const std::string& token,
    std::function<grpc::Server&()> next, LinkShaper* shaper, OnPayloadConnection on_payload) {
  const auto pass_on = [next = std::move(next), shaper,
                        on_payload = std::move(on_payload)](PendingConnections::Member member) {
    // Without descriptors the connection is closed, and the worker gets an error.
    if (shaper != nullptr && !member.within_host && !shaper->Shape(member.socket).ok()) return;
    if (member.detail == 0) {
      absl::StatusOr<FileDescriptor> socket = member.socket.TakeClearText();
      if (socket.ok()) grpc::AddInsecureChannelFromFd(&next(), socket->release());
    } else if (on_payload != nullptr) {
      on_payload(member.detail, std::move(member.socket));
    }
  };
  return AuthenticatedListener::Start(
      std::move(listener), {.secret = secret, .purpose = Purpose::kParameterServer, .token = token}, pass_on);
}

}  // namespace psring
