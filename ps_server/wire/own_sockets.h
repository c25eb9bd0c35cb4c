// gRPC over sockets that psring opens and authenticates (common/net/authentication.h). gRPC's own would also
// use the system's congestion control, which on loopback may halve the throughput (common/net/tcp_socket.h).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/base/deadline.h"
#include "common/net/authentication.h"
#include "common/net/link_shaper.h"
#include "common/net/tcp_socket.h"
#include "common/net/tls/member_socket.h"

namespace grpc {
class Channel;
class ChannelArguments;
class Server;
}  // namespace grpc

namespace psring {

// A connection to a server's address. Retries until `deadline`, because the server may still be starting; the
// error names the address. A server that has accepted a connection has at least a second to authenticate it.
// PermissionDenied: it has another secret, or it is another server, at the address of an earlier one. `link`:
// this machine's. `payload`: the number of a payload connection (payload_streams.h); 0: it is for gRPC.
absl::StatusOr<MemberSocket> ConnectToServer(const std::string& address, const JobSecret& secret,
                                             MonotonicTime deadline, const LinkEnd& link, uint64_t payload);
// A gRPC channel over one, which is not reopened when it is lost.
absl::StatusOr<std::shared_ptr<grpc::Channel>> OpenChannel(const std::string& address,
                                                           const JobSecret& secret,
                                                           const grpc::ChannelArguments& arguments,
                                                           MonotonicTime deadline, const LinkEnd& link = {});

// Passes connections of members that `listener` accepts to gRPC servers; each goes to the server that `next`,
// called on the result's thread, returns. The servers have been started and outlive the result. `shaper`:
// shapes connections from other machines; null: none; outlives it. `on_payload`: gets payload connections, on
// the same thread; null: they are closed. FailedPrecondition: the secret is not set.
using OnPayloadConnection = std::function<void(uint64_t number, MemberSocket socket)>;
absl::StatusOr<std::unique_ptr<AuthenticatedListener>> ServeMembers(TcpListener listener,
                                                                    const JobSecret& secret,
                                                                    const std::string& token,
                                                                    std::function<grpc::Server&()> next,
                                                                    LinkShaper* shaper = nullptr,
                                                                    OnPayloadConnection on_payload = nullptr);

}  // namespace psring
