// Every pair of ranks has two connections. *Data* carries frames: a header, then payload. *Control* carries
// at most one farewell, "I am done" or "I gave up, because ...", and is watched in every wait: bad news must
// not stand in line behind payload that nobody reads. A control connection that ends without a farewell is a
// process that died.
//
// There are no threads: bytes move inside Send and Wait, on the caller's thread, which sleeps in poll() when
// nothing can move. Frames of one peer come in the order in which receives are started, so a payload is read
// straight into its place (kCopy), or through a window that stays in the cache (kAdd).

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <deque>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "common/check.h"
#include "common/mutex.h"
#include "ring_worker/transport.h"
#include "ring_worker/transports/add_floats.h"
#include "ring_worker/transports/tcp_mesh.h"

namespace psring {
namespace {

// Read, then added while it is still in the second-level cache.
constexpr size_t kWindowBytes = 128 << 10;
// How long a lost data connection waits for the reason to arrive on its control connection.
constexpr absl::Duration kFarewellPatience = absl::Seconds(1);

// Both sides have the same byte order: the magic number says so.
struct FrameHeader {
  uint32_t magic = 0x52535031;
  uint32_t call = 0, round = 0, segment = 0;
  uint64_t bytes = 0;     // of the payload
  uint64_t elements = 0;  // of the whole call
  char operation[24] = {};
};
static_assert(sizeof(FrameHeader) == 56);

std::string Describe(const FrameHeader& h) {
  const std::string operation(h.operation, strnlen(h.operation, sizeof h.operation));
  return absl::StrCat(ToString(CallInfo{h.call, operation, h.elements}), " (round ", h.round, ", segment ",
                      h.segment, ", ", h.bytes, " bytes)");
}

struct Farewell {
  uint32_t magic = 0x42535031;
  int32_t code = 0;  // absl::StatusCode; 0: done
  uint32_t length = 0;
  char message[1012] = {};
};
static_assert(sizeof(Farewell) == 1024);

struct Outgoing {
  FrameHeader header;
  Tag tag;
  const std::byte* payload;
  size_t sent = 0;  // header and payload

  size_t size() const { return sizeof header + header.bytes; }
};

struct Incoming {
  FrameHeader expected;
  Tag tag;
  Span to;
  Combine combine;
  uint64_t number;      // of this rank's receives
  int after_peer = -1;  // an earlier receive into the same memory, which must be complete first
  uint64_t after_number = 0;
  size_t received = 0;  // of the payload, carried bytes not counted
};

struct Peer {
  PeerSockets sockets;
  std::deque<Outgoing> out;
  std::deque<Incoming> in;
  FrameHeader header;  // of the frame that is coming in
  size_t header_received = 0;
  // kAdd: bytes that do not make a float yet.
  std::byte carry[4];
  size_t carried = 0;
  // False from a call that moved less than it might have, until poll() says otherwise.
  bool readable = false;
  bool writable = true;
  // Control.
  Farewell farewell;
  size_t farewell_received = 0;
  bool left = false;  // said that it is done
};

class TcpTransport final : public Transport {
 public:
  TcpTransport(int rank, std::vector<PeerSockets> sockets, FileDescriptor wake)
      : rank_(rank), peers_(sockets.size()), wake_(std::move(wake)), window_(kWindowBytes + 64) {
    for (int peer = 0; peer < size(); ++peer) peers_[peer].sockets = std::move(sockets[peer]);
  }

  ~TcpTransport() override {
    MutexLock lock(failure_mutex_);
    if (failure_.ok()) SayFarewell(absl::OkStatus());
  }

  std::string name() const override { return "tcp"; }
  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(peers_.size()); }

  void BeginCall(const CallInfo& call) override {
    call_header_ = FrameHeader{};
    call_header_.call = call.number;
    call_header_.elements = call.elements;
    call.operation.copy(call_header_.operation, sizeof call_header_.operation);
  }

  void Send(int peer, Tag tag, ConstSpan from) override {
    PSRING_CHECK(peer >= 0 && peer < size() && peer != rank_);
    peers_[peer].out.push_back({Header(tag, from.bytes()), tag, static_cast<const std::byte*>(from.data)});
    // At once, so that the peer need not wait for our next wait.
    if (peers_[peer].out.size() == 1 && early_failure_.ok()) early_failure_ = Write(peer);
  }

  void Receive(int peer, Tag tag, Span to, Combine combine) override {
    PSRING_CHECK(peer >= 0 && peer < size() && peer != rank_);
    Incoming in = {Header(tag, to.bytes()), tag, to, combine, receives_started_++};
    for (int other = 0; other < size(); ++other) {
      const std::deque<Incoming>& queue = peers_[other].in;
      for (auto earlier = queue.rbegin(); earlier != queue.rend() && earlier->tag == tag; ++earlier) {
        if (earlier->to.data != to.data || (in.after_peer >= 0 && earlier->number < in.after_number))
          continue;
        in.after_peer = other;
        in.after_number = earlier->number;
      }
    }
    peers_[peer].in.push_back(in);
  }

  absl::Status Wait(Tag tag, absl::Time deadline) override {
    absl::Status status = Progress(tag, deadline);
    if (status.ok()) return status;
    Abort(status);
    return failure();
  }

  void Abort(absl::Status why) override {
    MutexLock lock(failure_mutex_);
    if (!failure_.ok()) return;
    failure_ = std::move(why);
    SayFarewell(failure_);
    aborted_.store(true, std::memory_order_release);
    const uint64_t one = 1;
    PSRING_CHECK(write(wake_.get(), &one, sizeof one) == sizeof one);
  }

  Traffic traffic() const override {
    return {sent_bytes_.load(std::memory_order_relaxed), received_bytes_.load(std::memory_order_relaxed)};
  }

 private:
  FrameHeader Header(const Tag& tag, size_t bytes) const {
    PSRING_CHECK(tag.call == call_header_.call);
    FrameHeader header = call_header_;
    header.round = tag.round;
    header.segment = tag.segment;
    header.bytes = bytes;
    return header;
  }

  absl::Status failure() {
    MutexLock lock(failure_mutex_);
    return failure_;
  }

  absl::Status Progress(const Tag& tag, absl::Time deadline) {
    PSRING_RETURN_IF_ERROR(early_failure_);
    const absl::Time begin = absl::Now();
    while (true) {
      if (aborted_.load(std::memory_order_acquire)) return failure();
      if (Done(tag)) return absl::OkStatus();
      // Sends first: others wait for them. In turns, so that neither direction starves.
      bool more = false;
      for (int peer = 0; peer < size(); ++peer) {
        if (peer == rank_) continue;
        PSRING_RETURN_IF_ERROR(Write(peer));
        PSRING_RETURN_IF_ERROR(Read(peer));
        more |= CanWrite(peers_[peer]) || CanRead(peers_[peer]);
      }
      if (more || Done(tag)) continue;
      PSRING_ASSIGN_OR_RETURN(const bool woken, Sleep(deadline));
      if (!woken && absl::Now() >= deadline) return TooLate(tag, absl::Now() - begin);
    }
  }

  // Transfers with one peer complete in the order in which they were started.
  bool Done(const Tag& tag) const {
    for (const Peer& peer : peers_) {
      if (!peer.out.empty() && peer.out.front().tag <= tag) return false;
      if (!peer.in.empty() && peer.in.front().tag <= tag) return false;
    }
    return true;
  }

  bool CanWrite(const Peer& peer) const { return peer.writable && !peer.out.empty(); }
  bool WantsRead(const Peer& peer) const { return !peer.in.empty() && !Blocked(peer.in.front()); }
  bool CanRead(const Peer& peer) const { return peer.readable && WantsRead(peer); }

  bool Blocked(const Incoming& in) const {
    if (in.after_peer < 0) return false;
    const std::deque<Incoming>& queue = peers_[in.after_peer].in;
    return !queue.empty() && queue.front().number <= in.after_number;
  }

  // Writes of the first frame what the socket takes.
  absl::Status Write(int rank) {
    Peer& peer = peers_[rank];
    if (!CanWrite(peer)) return absl::OkStatus();
    Outgoing& out = peer.out.front();
    iovec parts[2];
    int count = 0;
    if (out.sent < sizeof out.header) {
      parts[count++] = {reinterpret_cast<std::byte*>(&out.header) + out.sent, sizeof out.header - out.sent};
    }
    const size_t payload_sent = out.sent - std::min(out.sent, sizeof out.header);
    parts[count++] = {const_cast<std::byte*>(out.payload) + payload_sent, out.header.bytes - payload_sent};
    msghdr message = {};
    message.msg_iov = parts;
    message.msg_iovlen = count;
    const ssize_t n = sendmsg(peer.sockets.data.get(), &message, MSG_NOSIGNAL);
    if (n < 0) {
      if (errno == EINTR) return absl::OkStatus();
      peer.writable = false;
      return errno == EAGAIN ? absl::OkStatus() : Lost(rank, std::strerror(errno));
    }
    out.sent += n;
    const size_t now_sent = out.sent - std::min(out.sent, sizeof out.header);
    sent_bytes_.fetch_add(now_sent - payload_sent, std::memory_order_relaxed);
    if (out.sent == out.size()) {
      peer.out.pop_front();
    } else {
      peer.writable = false;
    }
    return absl::OkStatus();
  }

  // Reads of the first frame what is there, at most a window.
  absl::Status Read(int rank) {
    Peer& peer = peers_[rank];
    if (!CanRead(peer)) return absl::OkStatus();
    Incoming& in = peer.in.front();
    iovec parts[2];
    int count = 0;
    const size_t header_missing = sizeof peer.header - peer.header_received;
    if (header_missing > 0) {
      parts[count++] = {reinterpret_cast<std::byte*>(&peer.header) + peer.header_received, header_missing};
    }
    const size_t payload_missing = in.to.bytes() - in.received - peer.carried;
    if (in.combine == Combine::kCopy) {
      parts[count++] = {static_cast<std::byte*>(in.to.data) + in.received, payload_missing};
    } else {
      parts[count++] = {window_.data() + peer.carried, std::min(payload_missing, kWindowBytes)};
    }
    const ssize_t n = readv(peer.sockets.data.get(), parts, count);
    if (n == 0) return Lost(rank, "its data connection ended");
    if (n < 0) {
      if (errno == EINTR) return absl::OkStatus();
      peer.readable = false;
      return errno == EAGAIN ? absl::OkStatus() : Lost(rank, std::strerror(errno));
    }
    size_t asked = 0;
    for (int i = 0; i < count; ++i) asked += parts[i].iov_len;
    if (size_t(n) < asked) peer.readable = false;

    const size_t header_bytes = std::min<size_t>(n, header_missing);
    peer.header_received += header_bytes;
    if (peer.header_received < sizeof peer.header) return absl::OkStatus();
    if (header_missing > 0) PSRING_RETURN_IF_ERROR(CompareHeaders(rank));
    TakePayload(peer, in, n - header_bytes);
    return absl::OkStatus();
  }

  absl::Status CompareHeaders(int rank) const {
    const FrameHeader& said = peers_[rank].header;
    const FrameHeader& expected = peers_[rank].in.front().expected;
    if (std::memcmp(&said, &expected, sizeof said) == 0) return absl::OkStatus();
    if (said.magic != expected.magic) {
      return absl::DataLossError(absl::StrCat("rank ", rank, " sent no frame: it begins with ",
                                              absl::Hex(said.magic), ", not ", absl::Hex(expected.magic)));
    }
    return absl::FailedPreconditionError(absl::StrCat("the calls of the ranks differ: rank ", rank, " is in ",
                                                      Describe(said), ", rank ", rank_, " in ",
                                                      Describe(expected)));
  }

  void TakePayload(Peer& peer, Incoming& in, size_t bytes) {
    received_bytes_.fetch_add(bytes, std::memory_order_relaxed);
    if (in.combine == Combine::kCopy) {
      in.received += bytes;
    } else {
      // The carried bytes stand in front of those that were read behind them.
      std::memcpy(window_.data(), peer.carry, peer.carried);
      const size_t there = peer.carried + bytes;
      const size_t floats = there / sizeof(float);
      AddFloats(in.to.floats() + in.received / sizeof(float), reinterpret_cast<float*>(window_.data()),
                floats);
      in.received += floats * sizeof(float);
      peer.carried = there - floats * sizeof(float);
      std::memcpy(peer.carry, window_.data() + floats * sizeof(float), peer.carried);
    }
    if (in.received < in.to.bytes()) return;
    peer.in.pop_front();
    peer.header_received = 0;
  }

  // Until something can move or somebody speaks. False at the deadline.
  absl::StatusOr<bool> Sleep(absl::Time deadline) {
    polled_.assign(1, {wake_.get(), POLLIN, 0});
    for (const Peer& peer : peers_) {
      // A negative descriptor is left out.
      polled_.push_back({peer.left ? -1 : peer.sockets.control.get(), POLLIN, 0});
      const short events = (WantsRead(peer) ? POLLIN : 0) | (peer.out.empty() ? 0 : POLLOUT);
      polled_.push_back({events == 0 ? -1 : peer.sockets.data.get(), events, 0});
    }
    const int ready = poll(polled_.data(), polled_.size(), PollTimeoutMs(deadline));
    if (ready < 0 && errno != EINTR) return SystemError("cannot wait for peers");
    if (ready <= 0) return false;
    for (int rank = 0; rank < size(); ++rank) {
      if (polled_[1 + 2 * rank].revents != 0) PSRING_RETURN_IF_ERROR(HearControl(rank));
      const short events = polled_[2 + 2 * rank].revents;
      const short broken = POLLHUP | POLLERR | POLLNVAL;
      peers_[rank].readable |= (events & (POLLIN | broken)) != 0;
      peers_[rank].writable |= (events & (POLLOUT | broken)) != 0;
    }
    return true;
  }

  absl::Status TooLate(const Tag& tag, absl::Duration waited) const {
    std::vector<std::string> whom;
    for (int rank = 0; rank < size(); ++rank) {
      const Peer& peer = peers_[rank];
      if (!peer.in.empty() && peer.in.front().tag <= tag) {
        whom.push_back(absl::StrCat("rank ", rank, " to send"));
      } else if (!peer.out.empty() && peer.out.front().tag <= tag) {
        whom.push_back(absl::StrCat("rank ", rank, " to receive"));
      }
    }
    return absl::DeadlineExceededError(absl::StrCat("rank ", rank_, " waited ", absl::FormatDuration(waited),
                                                    " for ", absl::StrJoin(whom, " and "), " (",
                                                    ToString(tag), ")"));
  }

  // Tells every peer, once. Short enough for an empty socket buffer; a peer that cannot hear is gone itself.
  void SayFarewell(const absl::Status& why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(failure_mutex_) {
    Farewell farewell;
    farewell.code = static_cast<int32_t>(why.code());
    // A reason that came from another rank is handed on as it is.
    const std::string text = why.ok()   ? ""
                             : relayed_ ? std::string(why.message())
                                        : absl::StrCat("rank ", rank_, " gave up: ", why.message());
    farewell.length = static_cast<uint32_t>(text.copy(farewell.message, sizeof farewell.message));
    for (const Peer& peer : peers_) {
      const int fd = peer.sockets.control.get();
      if (fd >= 0) (void)send(fd, &farewell, sizeof farewell, MSG_NOSIGNAL | MSG_DONTWAIT);
    }
  }

  absl::Status HearControl(int rank) {
    Peer& peer = peers_[rank];
    while (peer.farewell_received < sizeof peer.farewell) {
      const ssize_t n = recv(peer.sockets.control.get(),
                             reinterpret_cast<std::byte*>(&peer.farewell) + peer.farewell_received,
                             sizeof peer.farewell - peer.farewell_received, 0);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0 && errno == EAGAIN) return absl::OkStatus();
      if (n <= 0) {
        return absl::UnavailableError(
            absl::StrCat("rank ", rank, " closed its connection to rank ", rank_, "; its process has ended"));
      }
      peer.farewell_received += n;
    }
    if (peer.farewell.magic != Farewell().magic) {
      return absl::DataLossError(
          absl::StrCat("rank ", rank, " sent no farewell but ", absl::Hex(peer.farewell.magic)));
    }
    peer.left = true;
    if (peer.farewell.code == 0) return absl::OkStatus();
    {
      MutexLock lock(failure_mutex_);
      relayed_ = true;
    }
    const size_t length = std::min<size_t>(peer.farewell.length, sizeof peer.farewell.message);
    return absl::Status(static_cast<absl::StatusCode>(peer.farewell.code),
                        absl::string_view(peer.farewell.message, length));
  }

  // The data connection to `rank` is of no more use: its control connection knows why, or will soon.
  absl::Status Lost(int rank, absl::string_view symptom) {
    Peer& peer = peers_[rank];
    const absl::Time deadline = absl::Now() + kFarewellPatience;
    while (!peer.left && absl::Now() < deadline) {
      pollfd waiting = {peer.sockets.control.get(), POLLIN, 0};
      if (poll(&waiting, 1, PollTimeoutMs(deadline)) > 0) PSRING_RETURN_IF_ERROR(HearControl(rank));
    }
    if (!peer.left) return absl::UnavailableError(absl::StrCat("rank ", rank, " is lost: ", symptom));
    return absl::UnavailableError(
        absl::StrCat("rank ", rank, " has left; rank ", rank_, " still needs it for ",
                     Describe(peer.in.empty() ? call_header_ : peer.in.front().expected)));
  }

  const int rank_;
  std::vector<Peer> peers_;  // by rank
  const FileDescriptor wake_;
  std::vector<std::byte> window_;
  std::vector<pollfd> polled_;  // kept, for its memory
  FrameHeader call_header_;
  uint64_t receives_started_ = 0;
  absl::Status early_failure_;  // of a Send; Wait returns it
  std::atomic<uint64_t> sent_bytes_ = 0, received_bytes_ = 0;

  Mutex failure_mutex_;
  absl::Status failure_ ABSL_GUARDED_BY(failure_mutex_);
  bool relayed_ ABSL_GUARDED_BY(failure_mutex_) = false;  // the failure is what a peer said
  std::atomic<bool> aborted_ = false;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Transport>> MakeTcpTransport(Rendezvous& rendezvous,
                                                            const TcpOptions& options) {
  PSRING_ASSIGN_OR_RETURN(std::vector<PeerSockets> sockets, ConnectMesh(rendezvous, options));
  for (const PeerSockets& peer : sockets) {
    const int bytes = options.socket_buffer_bytes;
    if (bytes == 0 || !peer.data.valid()) continue;
    if (setsockopt(peer.data.get(), SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes) != 0 ||
        setsockopt(peer.data.get(), SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes) != 0) {
      return SystemError("cannot set the size of a socket's buffers");
    }
  }
  FileDescriptor wake(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake.valid()) return SystemError("cannot open an eventfd");
  return std::make_unique<TcpTransport>(rendezvous.options().rank, std::move(sockets), std::move(wake));
}

}  // namespace psring
