#include "ring_worker/transports/tcp_mesh.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <random>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "common/check.h"

namespace psring {
namespace {

using Token = std::array<char, 32>;  // hex digits; random, made by rank 0, told through the rendezvous

enum class Channel : uint32_t { kData, kControl };

// The first bytes on every connection.
struct Hello {
  std::array<char, 8> magic = {'p', 's', 'r', 'i', 'n', 'g', '0', '1'};
  Token token;
  uint32_t rank = 0;
  Channel channel = Channel::kData;
};
static_assert(sizeof(Hello) == 48);

// More than this many connections that have not said hello: the oldest is dropped.
constexpr size_t kMostStrangers = 256;

struct Stranger {
  FileDescriptor socket;
  Hello hello;
  size_t received = 0;
};

Token NewToken() {
  std::random_device random;
  Token token;
  for (char& digit : token) digit = "0123456789abcdef"[random() % 16];
  return token;
}

class MeshBuilder {
 public:
  MeshBuilder(Rendezvous& rendezvous, const GroupOptions& options)
      : rendezvous_(rendezvous),
        options_(options),
        rank_(rendezvous.options().rank),
        size_(rendezvous.options().world_size),
        peers_(size_) {}

  absl::StatusOr<std::vector<PeerSockets>> Build() {
    const std::string& host = options_.bind_host;
    if (host.empty() || host == "0.0.0.0" || host == "::") {
      return absl::InvalidArgumentError(
          absl::StrCat("\"", host, "\" is no address that other ranks can reach; name one of this machine"));
    }
    PSRING_ASSIGN_OR_RETURN(Listener listener, Listen(host));
    PSRING_ASSIGN_OR_RETURN(
        std::vector<std::string> cards,
        rendezvous_.Exchange("tcp mesh", absl::StrCat(listener.port, " ", host, " ",
                                                      absl::string_view(NewToken().data(), sizeof(Token)))));
    deadline_ = absl::Now() + rendezvous_.options().timeout;
    for (int peer = 0; peer <= rank_; ++peer) PSRING_RETURN_IF_ERROR(ReadCard(peer, cards[peer]));
    PSRING_RETURN_IF_ERROR(AcceptHigherRanks(listener.socket.get()));
    return std::move(peers_);
  }

 private:
  // Connects to lower ranks at once; their backlog takes the connection even before they accept.
  absl::Status ReadCard(int peer, const std::string& card) {
    const std::vector<std::string> fields = absl::StrSplit(card, ' ');
    int port = 0;
    if (fields.size() != 3 || !absl::SimpleAtoi(fields[0], &port) || fields[2].size() != sizeof(Token)) {
      return absl::InternalError(absl::StrCat("rank ", peer, " published a strange address: ", card));
    }
    if (peer == 0) std::copy(fields[2].begin(), fields[2].end(), token_.begin());
    if (peer == rank_) return absl::OkStatus();
    for (Channel channel : {Channel::kData, Channel::kControl}) {
      absl::StatusOr<FileDescriptor> socket = Connect(fields[1], port, deadline_);
      Hello hello;
      hello.token = token_;
      hello.rank = rank_;
      hello.channel = channel;
      const absl::Status status =
          socket.ok() ? WriteAll(socket->get(), &hello, sizeof hello, deadline_) : socket.status();
      if (!status.ok()) {
        return absl::Status(
            status.code(), absl::StrCat("rank ", rank_, " cannot reach rank ", peer, ": ", status.message()));
      }
      Slot(peer, channel) = *std::move(socket);
    }
    return absl::OkStatus();
  }

  FileDescriptor& Slot(int peer, Channel channel) {
    return channel == Channel::kData ? peers_[peer].data : peers_[peer].control;
  }

  std::vector<int> Missing() const {
    std::vector<int> missing;
    for (int peer = rank_ + 1; peer < size_; ++peer) {
      if (!peers_[peer].data.valid() || !peers_[peer].control.valid()) missing.push_back(peer);
    }
    return missing;
  }

  absl::Status AcceptHigherRanks(int listener) {
    std::vector<pollfd> waiting;
    while (!Missing().empty()) {
      waiting.assign(1, {listener, POLLIN, 0});
      for (const Stranger& stranger : strangers_) waiting.push_back({stranger.socket.get(), POLLIN, 0});
      const int ready = poll(waiting.data(), waiting.size(), PollTimeoutMs(deadline_));
      if (ready < 0 && errno != EINTR) return SystemError("cannot wait for connections");
      if (ready <= 0 && absl::Now() >= deadline_) {
        return absl::DeadlineExceededError(
            absl::StrCat("rank ", rank_, " waited ", absl::FormatDuration(rendezvous_.options().timeout),
                         " for a connection from rank ", absl::StrJoin(Missing(), ", rank ")));
      }
      if (ready <= 0) continue;
      for (size_t i = waiting.size() - 1; i > 0; --i) {
        if (waiting[i].revents != 0 && HearHello(strangers_[i - 1]))
          strangers_.erase(strangers_.begin() + i - 1);
      }
      if (waiting[0].revents != 0) PSRING_RETURN_IF_ERROR(Accept(listener));
    }
    return absl::OkStatus();
  }

  absl::Status Accept(int listener) {
    Stranger stranger;
    stranger.socket = FileDescriptor(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!stranger.socket.valid()) {
      const bool gone_again = errno == EAGAIN || errno == EINTR || errno == ECONNABORTED;
      return gone_again ? absl::OkStatus() : SystemError("cannot accept a connection");
    }
    if (strangers_.size() == kMostStrangers) strangers_.erase(strangers_.begin());
    strangers_.push_back(std::move(stranger));
    return absl::OkStatus();
  }

  // True when it is no stranger any more: it has become a peer, or it is to be dropped.
  bool HearHello(Stranger& stranger) {
    char* const hello = reinterpret_cast<char*>(&stranger.hello);
    const ssize_t n =
        recv(stranger.socket.get(), hello + stranger.received, sizeof(Hello) - stranger.received, 0);
    if (n <= 0) return n == 0 || (errno != EAGAIN && errno != EINTR);
    stranger.received += n;
    if (stranger.received < sizeof(Hello)) return false;
    const Hello& said = stranger.hello;
    const bool ours = said.magic == Hello().magic && said.token == token_ && int64_t{said.rank} > rank_ &&
                      said.rank < uint32_t(size_) &&
                      (said.channel == Channel::kData || said.channel == Channel::kControl);
    if (!ours || Slot(said.rank, said.channel).valid() || !PrepareSocket(stranger.socket.get()).ok()) {
      return true;
    }
    Slot(said.rank, said.channel) = std::move(stranger.socket);
    return true;
  }

  Rendezvous& rendezvous_;
  const GroupOptions options_;
  const int rank_;
  const int size_;
  absl::Time deadline_;
  Token token_ = {};
  std::vector<PeerSockets> peers_;
  std::vector<Stranger> strangers_;
};

}  // namespace

absl::StatusOr<std::vector<PeerSockets>> ConnectMesh(Rendezvous& rendezvous, const GroupOptions& options) {
  return MeshBuilder(rendezvous, options).Build();
}

}  // namespace psring
