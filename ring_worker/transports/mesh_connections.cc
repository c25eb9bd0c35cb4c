#include "ring_worker/transports/mesh_connections.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "common/base/check.h"
#include "common/net/link_shaper.h"
#include "common/net/random_token.h"

namespace psring {
namespace {

using Token = std::array<char, 32>;  // random hex digits, created by rank 0 and passed through the rendezvous

enum class Channel : uint32_t { kControl, kUnix, kData };  // kData + i: connection i

// The first bytes on every connection.
struct Hello {
  std::array<char, 8> magic = {'p', 's', 'r', 'i', 'n', 'g', '0', '1'};
  Token token;
  uint32_t rank = 0;
  uint32_t channel = 0;
};
static_assert(sizeof(Hello) == 48);

// If more connections than this have not sent a hello, the oldest is dropped.
constexpr size_t kMostPending = 256;

struct PendingConnection {
  bool is_unix = false;
  FileDescriptor socket;
  Hello hello;
  size_t received = 0;
};

class MeshBuilder {
 public:
  MeshBuilder(Rendezvous& rendezvous, const MeshOptions& options)
      : rendezvous_(rendezvous),
        options_(options),
        rank_(rendezvous.options().rank),
        size_(rendezvous.options().world_size),
        peers_(size_) {}

  absl::StatusOr<std::vector<PeerConnections>> Build() {
    const std::string& host = options_.bind_host;
    if (host.empty() || host == "0.0.0.0" || host == "::") {
      return absl::InvalidArgumentError(absl::StrCat(
          "\"", host, "\" is not an address that other ranks can reach; choose one of this machine"));
    }
    PSRING_ASSIGN_OR_RETURN(TcpListener listener, ListenTcp(host));
    // Exists only in this host and network namespace: a rank that can connect to it can share memory with us.
    const std::string unix_name = absl::StrCat("psring-", RandomToken(sizeof(Token)));
    UnixSocket unix_listener;
    if (options_.transport != "tcp") {
      PSRING_ASSIGN_OR_RETURN(unix_listener, UnixSocket::Listen(unix_name));
    }
    PSRING_ASSIGN_OR_RETURN(
        std::vector<std::string> cards,
        rendezvous_.Exchange(
            "mesh", absl::StrCat(listener.port, " ", host, " ", RandomToken(sizeof(Token)), " ", unix_name,
                                 " ", options_.transport, " ", options_.sockets_per_peer)));
    deadline_ = absl::Now() + rendezvous_.options().timeout;
    for (int peer = 0; peer < size_; ++peer) PSRING_RETURN_IF_ERROR(ReadCard(peer, cards[peer]));
    PSRING_RETURN_IF_ERROR(AcceptHigherRanks(listener.socket.get(), unix_listener.fd()));
    for (PeerConnections& peer : peers_) {
      for (FileDescriptor& data : peer.data) {
        if (options_.shaper == nullptr) continue;
        PSRING_ASSIGN_OR_RETURN(data, options_.shaper->Wrap(std::move(data)));
      }
    }
    return std::move(peers_);
  }

 private:
  absl::Status ReadCard(int peer, const std::string& card) {
    const std::vector<std::string> fields = absl::StrSplit(card, ' ');
    int port = 0, sockets = 0;
    if (fields.size() != 6 || !absl::SimpleAtoi(fields[0], &port) || fields[2].size() != sizeof(Token) ||
        !absl::SimpleAtoi(fields[5], &sockets)) {
      return absl::InternalError(absl::StrCat("rank ", peer, " published an invalid address: ", card));
    }
    if (peer == 0) std::copy(fields[2].begin(), fields[2].end(), token_.begin());
    if (fields[4] != options_.transport || sockets != options_.sockets_per_peer) {
      return absl::FailedPreconditionError(absl::StrCat(
          "rank ", peer, " uses transport ", fields[4], " with ", sockets, " sockets a peer, rank ", rank_,
          " ", options_.transport, " with ", options_.sockets_per_peer));
    }
    // Connects to lower ranks immediately; their listen backlog holds the connection until they accept it.
    if (peer >= rank_) return absl::OkStatus();
    PeerConnections& mine = peers_[peer];
    if (options_.transport == "shm" || (options_.transport == "auto" && OnOneNode(peer))) {
      absl::StatusOr<UnixSocket> socket = UnixSocket::Connect(fields[3]);
      if (socket.ok()) {
        mine.unix_socket = *std::move(socket);
        PSRING_RETURN_IF_ERROR(SayHello(mine.unix_socket.fd(), peer, Channel::kUnix, 0));
      } else if (options_.transport == "shm") {
        return absl::FailedPreconditionError(
            absl::StrCat("rank ", rank_, " cannot share memory with rank ", peer,
                         ": they are not on one host (or in one network namespace); choose transport auto or "
                         "tcp (",
                         socket.status().message(), ")"));
      }
    }
    const int data = mine.unix_socket.valid() ? 0 : options_.sockets_per_peer;
    mine.data.resize(data);
    for (int i = 0; i < data; ++i) {
      PSRING_ASSIGN_OR_RETURN(mine.data[i], ConnectTo(peer, fields[1], port, Channel::kData, i));
    }
    PSRING_ASSIGN_OR_RETURN(mine.control, ConnectTo(peer, fields[1], port, Channel::kControl, 0));
    return absl::OkStatus();
  }

  bool OnOneNode(int peer) const {
    const int each = options_.ranks_per_node;
    return each <= 0 || peer / each == rank_ / each;
  }

  absl::StatusOr<FileDescriptor> ConnectTo(int peer, const std::string& host, int port, Channel channel,
                                           int index) {
    absl::StatusOr<FileDescriptor> socket = ConnectTcp(host, port, deadline_);
    if (!socket.ok()) return Unreachable(peer, socket.status());
    PSRING_RETURN_IF_ERROR(SayHello(socket->get(), peer, channel, index));
    return socket;
  }

  absl::Status SayHello(int socket, int peer, Channel channel, int index) {
    Hello hello;
    hello.token = token_;
    hello.rank = rank_;
    hello.channel = static_cast<uint32_t>(channel) + index;
    const absl::Status status = WriteAll(socket, &hello, sizeof hello, deadline_);
    return status.ok() ? status : Unreachable(peer, status);
  }

  absl::Status Unreachable(int peer, const absl::Status& why) const {
    return absl::Status(why.code(),
                        absl::StrCat("rank ", rank_, " cannot reach rank ", peer, ": ", why.message()));
  }

  // The place of a TCP connection; null if it is not expected.
  FileDescriptor* Slot(const Hello& hello) {
    PeerConnections& peer = peers_[hello.rank];
    if (hello.channel == static_cast<uint32_t>(Channel::kControl)) return &peer.control;
    const uint32_t index = hello.channel - static_cast<uint32_t>(Channel::kData);
    if (index >= uint32_t(options_.sockets_per_peer)) return nullptr;
    peer.data.resize(options_.sockets_per_peer);
    return &peer.data[index];
  }

  bool Complete(const PeerConnections& peer) const {
    if (!peer.control.valid()) return false;
    if (peer.unix_socket.valid()) return true;
    return !peer.data.empty() && std::all_of(peer.data.begin(), peer.data.end(),
                                             [](const FileDescriptor& fd) { return fd.valid(); });
  }

  std::vector<int> Missing() const {
    std::vector<int> missing;
    for (int peer = rank_ + 1; peer < size_; ++peer) {
      if (!Complete(peers_[peer])) missing.push_back(peer);
    }
    return missing;
  }

  absl::Status AcceptHigherRanks(int listener, int unix_listener) {
    std::vector<pollfd> waiting;
    while (!Missing().empty()) {
      waiting.assign({{listener, POLLIN, 0}, {unix_listener, POLLIN, 0}});  // poll() ignores -1
      const size_t listeners = waiting.size();
      for (const PendingConnection& connection : pending_)
        waiting.push_back({connection.socket.get(), POLLIN, 0});
      const int ready = poll(waiting.data(), waiting.size(), PollTimeoutMs(deadline_));
      if (ready < 0 && errno != EINTR) return SystemError("cannot wait for connections");
      if (ready <= 0 && absl::Now() >= deadline_) {
        return absl::DeadlineExceededError(
            absl::StrCat("rank ", rank_, " waited ", absl::FormatDuration(rendezvous_.options().timeout),
                         " for a connection from rank ", absl::StrJoin(Missing(), ", rank ")));
      }
      if (ready <= 0) continue;
      for (size_t i = waiting.size(); i-- > listeners;) {
        if (waiting[i].revents != 0 && ReadHello(pending_[i - listeners])) {
          pending_.erase(pending_.begin() + (i - listeners));
        }
      }
      if (waiting[0].revents != 0) PSRING_RETURN_IF_ERROR(Accept(listener, /*is_unix=*/false));
      if (waiting[1].revents != 0) PSRING_RETURN_IF_ERROR(Accept(unix_listener, /*is_unix=*/true));
    }
    return absl::OkStatus();
  }

  absl::Status Accept(int listener, bool is_unix) {
    PendingConnection connection{.is_unix = is_unix};
    connection.socket = FileDescriptor(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!connection.socket.valid()) {
      const bool gone_again = errno == EAGAIN || errno == EINTR || errno == ECONNABORTED;
      return gone_again ? absl::OkStatus() : SystemError("cannot accept a connection");
    }
    if (pending_.size() == kMostPending) pending_.erase(pending_.begin());
    pending_.push_back(std::move(connection));
    return absl::OkStatus();
  }

  // True if the connection is no longer pending: it belongs to a peer now, or must be dropped.
  bool ReadHello(PendingConnection& connection) {
    char* const hello = reinterpret_cast<char*>(&connection.hello);
    const ssize_t n =
        recv(connection.socket.get(), hello + connection.received, sizeof(Hello) - connection.received, 0);
    if (n <= 0) return n == 0 || (errno != EAGAIN && errno != EINTR);
    connection.received += n;
    if (connection.received < sizeof(Hello)) return false;
    const Hello& received = connection.hello;
    const bool ours = received.magic == Hello().magic && received.token == token_ &&
                      int64_t{received.rank} > rank_ && received.rank < uint32_t(size_) &&
                      connection.is_unix == (received.channel == static_cast<uint32_t>(Channel::kUnix));
    if (!ours) return true;
    if (connection.is_unix) {
      UnixSocket& slot = peers_[received.rank].unix_socket;
      if (!slot.valid()) slot = UnixSocket(std::move(connection.socket));
      return true;
    }
    FileDescriptor* const slot = Slot(received);
    if (slot == nullptr || slot->valid() || !PrepareTcpSocket(connection.socket.get()).ok()) return true;
    *slot = std::move(connection.socket);
    return true;
  }

  Rendezvous& rendezvous_;
  const MeshOptions options_;
  const int rank_;
  const int size_;
  absl::Time deadline_;
  Token token_ = {};
  std::vector<PeerConnections> peers_;
  std::vector<PendingConnection> pending_;
};

}  // namespace

absl::StatusOr<std::vector<PeerConnections>> ConnectMesh(Rendezvous& rendezvous, const MeshOptions& options) {
  return MeshBuilder(rendezvous, options).Build();
}

}  // namespace psring
