#include "ring_worker/transports/mesh_connections.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "common/base/check.h"
#include "common/net/authentication.h"
#include "common/net/link_shaper.h"
#include "common/net/peer_text.h"
#include "common/net/random_token.h"

namespace psring {
namespace {

constexpr size_t kTokenDigits = 32;
constexpr size_t kMostCardBytes = 1024;  // of a rank's addresses
constexpr absl::Duration kBetweenTries = absl::Milliseconds(20);

enum class Channel : uint32_t { kControl, kUnix, kData };  // kData + i: connection i

// Between checks whether a rank has died that this one waits for.
constexpr absl::Duration kCheckRanksEvery = absl::Milliseconds(200);
// After a connection has failed: how long to wait until the store knows of the rank that died.
constexpr absl::Duration kLossTimeout = absl::Seconds(1);

// What a connection is for: the detail of its authentication.
struct Link {
  uint32_t rank = 0;  // that connects
  uint32_t channel = 0;

  uint64_t detail() const { return uint64_t{rank} << 32 | channel; }
  static Link FromDetail(uint64_t detail) {
    return {static_cast<uint32_t>(detail >> 32), static_cast<uint32_t>(detail)};
  }
};

class MeshBuilder {
 public:
  MeshBuilder(Rendezvous& rendezvous, const MeshOptions& options)
      : rendezvous_(rendezvous),
        options_(options),
        rank_(rendezvous.options().rank),
        size_(rendezvous.options().world_size),
        credentials_{.secret = rendezvous.options().secret, .purpose = Purpose::kMesh},
        peers_(size_) {}

  absl::StatusOr<std::vector<PeerConnections>> Build() {
    const std::string& host = options_.bind_host;
    if (host.empty() || host == "0.0.0.0" || host == "::") {
      return absl::InvalidArgumentError(absl::StrCat(
          "\"", host, "\" is not an address that other ranks can reach; choose one of this machine"));
    }
    PSRING_RETURN_IF_ERROR(CheckCredentials(credentials_));
    PSRING_ASSIGN_OR_RETURN(TcpListener listener, ListenTcp(host));
    // Exists only in this host and network namespace: a rank that can connect to it can share memory with us.
    const std::string unix_name = absl::StrCat("psring-", RandomToken(kTokenDigits));
    UnixSocket unix_listener;
    if (options_.transport != "tcp") {
      PSRING_ASSIGN_OR_RETURN(unix_listener, UnixSocket::Listen(unix_name));
    }
    PSRING_ASSIGN_OR_RETURN(
        std::vector<std::string> cards,
        rendezvous_.Exchange(
            "mesh", absl::StrCat(listener.port, " ", host, " ", RandomToken(kTokenDigits), " ", unix_name,
                                 " ", options_.transport, " ", options_.sockets_per_peer)));
    deadline_ = absl::Now() + rendezvous_.options().timeout;
    absl::Status connected;
    for (int peer = 0; peer < size_ && connected.ok(); ++peer) connected = ReadCard(peer, cards[peer]);
    if (connected.ok()) connected = AcceptHigherRanks(listener.socket.get(), unix_listener.fd());
    if (!connected.ok()) return Explain(connected);
    for (PeerConnections& peer : peers_) {
      for (FileDescriptor& data : peer.data) {
        if (options_.shaper == nullptr) continue;
        PSRING_ASSIGN_OR_RETURN(data, options_.shaper->Wrap(std::move(data)));
      }
    }
    return std::move(peers_);
  }

 private:
  // For messages.
  int Name(int rank) const { return rendezvous_.options().JobRank(rank); }

  absl::Status ReadCard(int peer, const std::string& card) {
    const std::vector<std::string> fields = absl::StrSplit(card, ' ');
    int port = 0, sockets = 0;
    if (card.size() > kMostCardBytes || fields.size() != 6 || !absl::SimpleAtoi(fields[0], &port) ||
        fields[2].size() != kTokenDigits || !absl::SimpleAtoi(fields[5], &sockets)) {
      return absl::InternalError(
          absl::StrCat("rank ", Name(peer), " published an invalid address: ", PeerText(card)));
    }
    // Several jobs of one user may have the same secret.
    if (peer == 0) credentials_.secret = credentials_.secret.Derived(absl::StrCat("mesh ", fields[2]));
    if (fields[4] != options_.transport || sockets != options_.sockets_per_peer) {
      return absl::FailedPreconditionError(
          absl::StrCat("rank ", Name(peer), " uses transport ", PeerText(fields[4]), " with ", sockets,
                       " sockets a peer, rank ", Name(rank_), " ", options_.transport, " with ",
                       options_.sockets_per_peer));
    }
    // Connects to lower ranks, which accept once they are connected to all ranks below them.
    if (peer >= rank_) return absl::OkStatus();
    PeerConnections& mine = peers_[peer];
    if (options_.transport == "shm" || (options_.transport == "auto" && OnOneNode(peer))) {
      absl::StatusOr<UnixSocket> socket = UnixSocket::Connect(fields[3]);
      if (socket.ok()) {
        const auto connect = [&] { return UnixSocket::Connect(fields[3]); };
        PSRING_ASSIGN_OR_RETURN(mine.unix_socket,
                                Authenticated(*std::move(socket), connect, peer, Channel::kUnix, 0));
      } else if (options_.transport == "shm") {
        PSRING_RETURN_IF_ERROR(CheckRanks());
        return absl::FailedPreconditionError(
            absl::StrCat("rank ", Name(rank_), " cannot share memory with rank ", Name(peer),
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
    const auto connect = [&] { return ConnectTcp(host, port, deadline_); };
    absl::StatusOr<FileDescriptor> socket = connect();
    if (!socket.ok()) return Unreachable(peer, socket.status());
    return Authenticated(*std::move(socket), connect, peer, channel, index);
  }

  // Authenticates on `socket`. A rank with too many connections from strangers may close one of ours: then
  // tries again with another one.
  template <typename Socket, typename Connect>
  absl::StatusOr<Socket> Authenticated(Socket socket, const Connect& connect, int peer, Channel channel,
                                       int index) {
    const Link link = {static_cast<uint32_t>(rank_), static_cast<uint32_t>(channel) + index};
    while (true) {
      const absl::Status status = Authenticate(socket, link.detail());
      if (status.ok()) return socket;
      if (!absl::IsUnavailable(status) || absl::Now() + kBetweenTries >= deadline_) {
        return Unreachable(peer, status);
      }
      absl::SleepFor(kBetweenTries);
      absl::StatusOr<Socket> next = connect();
      if (!next.ok()) return Unreachable(peer, next.status());
      socket = *std::move(next);
    }
  }

  absl::Status Authenticate(FileDescriptor& socket, uint64_t detail) const {
    return AuthenticateTcp(socket, credentials_, "it", deadline_, detail);
  }
  absl::Status Authenticate(const UnixSocket& socket, uint64_t detail) const {
    return AuthenticateTo(socket.fd(), credentials_, "it", deadline_, detail);
  }

  absl::Status Unreachable(int peer, const absl::Status& why) const {
    return absl::Status(why.code(), absl::StrCat("rank ", Name(rank_), " cannot reach rank ", Name(peer),
                                                 ": ", why.message()));
  }

  // The place of a TCP connection; null if it is not expected.
  FileDescriptor* Slot(const Link& link) {
    PeerConnections& peer = peers_[link.rank];
    if (link.channel == static_cast<uint32_t>(Channel::kControl)) return &peer.control;
    const uint32_t index = link.channel - static_cast<uint32_t>(Channel::kData);
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

  absl::Status CheckRanks() { return rendezvous_.CheckRanks("to connect"); }

  // A peer closes its connections when it dies, and also when it has lost another one.
  absl::Status Explain(const absl::Status& symptom) {
    const absl::Time deadline = absl::Now() + kLossTimeout;
    while (absl::IsUnavailable(symptom)) {
      PSRING_RETURN_IF_ERROR(CheckRanks());
      if (absl::Now() >= deadline) break;
      absl::SleepFor(absl::Milliseconds(20));
    }
    return symptom;
  }

  absl::Status AcceptHigherRanks(int listener, int unix_listener) {
    const auto name = [this](std::string* to, int rank) { absl::StrAppend(to, Name(rank)); };
    PendingConnections pending(credentials_);
    while (!Missing().empty()) {
      PSRING_ASSIGN_OR_RETURN(
          std::vector<PendingConnections::Member> members,
          pending.Wait({listener, unix_listener}, std::min(deadline_, absl::Now() + kCheckRanksEvery)));
      if (members.empty()) PSRING_RETURN_IF_ERROR(CheckRanks());
      if (members.empty() && absl::Now() >= deadline_) {
        return absl::DeadlineExceededError(absl::StrCat(
            "rank ", Name(rank_), " waited ", absl::FormatDuration(rendezvous_.options().timeout),
            " for a connection from rank ", absl::StrJoin(Missing(), ", rank ", name)));
      }
      for (PendingConnections::Member& member : members) Place(std::move(member));
    }
    return absl::OkStatus();
  }

  // Drops a connection that is not expected.
  void Place(PendingConnections::Member member) {
    const Link link = Link::FromDetail(member.detail);
    const bool is_unix = member.listener == 1;
    if (int64_t{link.rank} <= rank_ || link.rank >= uint32_t(size_) ||
        is_unix != (link.channel == static_cast<uint32_t>(Channel::kUnix))) {
      return;
    }
    if (is_unix) {
      UnixSocket& slot = peers_[link.rank].unix_socket;
      if (!slot.valid()) slot = UnixSocket(std::move(member.socket));
      return;
    }
    FileDescriptor* const slot = Slot(link);
    if (slot == nullptr || slot->valid()) return;
    *slot = std::move(member.socket);
  }

  Rendezvous& rendezvous_;
  const MeshOptions options_;
  const int rank_;
  const int size_;
  Credentials credentials_;
  absl::Time deadline_;
  std::vector<PeerConnections> peers_;
};

}  // namespace

absl::StatusOr<std::vector<PeerConnections>> ConnectMesh(Rendezvous& rendezvous, const MeshOptions& options) {
  return MeshBuilder(rendezvous, options).Build();
}

}  // namespace psring
