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

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <deque>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "common/check.h"
#include "common/mutex.h"
#include "ring_worker/process_group.h"
#include "ring_worker/transport.h"
#include "ring_worker/transports/frame_stream.h"
#include "ring_worker/transports/tcp_mesh.h"

namespace psring {
namespace {

// How long a lost data connection waits for the reason to arrive on its control connection.
constexpr absl::Duration kFarewellPatience = absl::Seconds(1);

struct Farewell {
  uint32_t magic = 0x42535031;
  int32_t code = 0;  // absl::StatusCode; 0: done
  uint32_t length = 0;
  char message[1012] = {};
};
static_assert(sizeof(Farewell) == 1024);

struct Peer {
  Peer(int rank, int peer, PeerSockets sockets)
      : data(rank, peer, std::move(sockets.data)), control(std::move(sockets.control)) {}

  FrameStream data;
  FileDescriptor control;
  Farewell farewell;
  size_t farewell_received = 0;
  bool left = false;  // has said its farewell
};

class TcpTransport final : public Transport {
 public:
  TcpTransport(int rank, std::vector<PeerSockets> sockets, FileDescriptor wake)
      : rank_(rank), wake_(std::move(wake)), window_(kWindowBytes + sizeof(float)) {
    for (PeerSockets& peer : sockets) peers_.emplace_back(rank, size(), std::move(peer));
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
    FrameStream& data = peers_[peer].data;
    data.Add(OutgoingFrame{Header(tag, from.bytes()), tag, static_cast<const std::byte*>(from.data)});
    // At once, so that the peer need not wait for our next wait.
    if (data.out().size() == 1 && early_failure_.ok()) early_failure_ = Write(peer);
  }

  void Receive(int peer, Tag tag, Span to, Combine combine) override {
    PSRING_CHECK(peer >= 0 && peer < size() && peer != rank_);
    IncomingFrame in = {Header(tag, to.bytes()), tag, to, combine, receives_started_++};
    for (int other = 0; other < size(); ++other) {
      const std::deque<IncomingFrame>& queue = peers_[other].data.in();
      for (auto earlier = queue.rbegin(); earlier != queue.rend() && earlier->tag == tag; ++earlier) {
        if (earlier->to.data != to.data || (in.after_peer >= 0 && earlier->number < in.after_number))
          continue;
        in.after_peer = other;
        in.after_number = earlier->number;
      }
    }
    peers_[peer].data.Add(in);
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
        more |= peers_[peer].data.may_write() || MayRead(peers_[peer]);
      }
      if (more || Done(tag)) continue;
      PSRING_ASSIGN_OR_RETURN(const bool woken, Sleep(deadline));
      if (!woken && absl::Now() >= deadline) return TooLate(tag, absl::Now() - begin);
    }
  }

  // Transfers with one peer complete in the order in which they were started, and so do their tags.
  static bool AwaitsSend(const Peer& peer, const Tag& tag) {
    return !peer.data.out().empty() && peer.data.out().front().tag <= tag;
  }
  static bool AwaitsReceive(const Peer& peer, const Tag& tag) {
    return !peer.data.in().empty() && peer.data.in().front().tag <= tag;
  }
  bool Done(const Tag& tag) const {
    for (const Peer& peer : peers_) {
      if (AwaitsSend(peer, tag) || AwaitsReceive(peer, tag)) return false;
    }
    return true;
  }

  bool WantsRead(const Peer& peer) const {
    return !peer.data.in().empty() && !Blocked(peer.data.in().front());
  }
  bool MayRead(const Peer& peer) const { return peer.data.may_read() && WantsRead(peer); }

  bool Blocked(const IncomingFrame& in) const {
    if (in.after_peer < 0) return false;
    const std::deque<IncomingFrame>& queue = peers_[in.after_peer].data.in();
    return !queue.empty() && queue.front().number <= in.after_number;
  }

  absl::Status Write(int rank) {
    FrameStream& data = peers_[rank].data;
    if (!data.may_write()) return absl::OkStatus();
    const absl::StatusOr<size_t> bytes = data.Write();
    if (!bytes.ok()) return Explain(rank, bytes.status());
    sent_bytes_.fetch_add(*bytes, std::memory_order_relaxed);
    return absl::OkStatus();
  }

  absl::Status Read(int rank) {
    if (!MayRead(peers_[rank])) return absl::OkStatus();
    const absl::StatusOr<size_t> bytes = peers_[rank].data.Read(window_);
    if (!bytes.ok()) return Explain(rank, bytes.status());
    received_bytes_.fetch_add(*bytes, std::memory_order_relaxed);
    return absl::OkStatus();
  }

  // Until something can move or somebody speaks. False at the deadline.
  absl::StatusOr<bool> Sleep(absl::Time deadline) {
    polled_.assign(1, {wake_.get(), POLLIN, 0});
    for (const Peer& peer : peers_) {
      // A negative descriptor is left out.
      polled_.push_back({peer.left ? -1 : peer.control.get(), POLLIN, 0});
      const short events = (WantsRead(peer) ? POLLIN : 0) | (peer.data.out().empty() ? 0 : POLLOUT);
      polled_.push_back({events == 0 ? -1 : peer.data.fd(), events, 0});
    }
    const int ready = poll(polled_.data(), polled_.size(), PollTimeoutMs(deadline));
    if (ready < 0 && errno != EINTR) return SystemError("cannot wait for peers");
    if (ready <= 0) return false;
    for (int rank = 0; rank < size(); ++rank) {
      if (polled_[1 + 2 * rank].revents != 0) PSRING_RETURN_IF_ERROR(HearControl(rank));
      const short events = polled_[2 + 2 * rank].revents;
      const short broken = POLLHUP | POLLERR | POLLNVAL;
      peers_[rank].data.SetReady((events & (POLLIN | broken)) != 0, (events & (POLLOUT | broken)) != 0);
    }
    return true;
  }

  absl::Status TooLate(const Tag& tag, absl::Duration waited) const {
    std::vector<std::string> whom;
    for (int rank = 0; rank < size(); ++rank) {
      const Peer& peer = peers_[rank];
      if (AwaitsReceive(peer, tag)) {
        whom.push_back(absl::StrCat("rank ", rank, " to send"));
      } else if (AwaitsSend(peer, tag)) {
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
      const int fd = peer.control.get();
      if (fd >= 0) (void)send(fd, &farewell, sizeof farewell, MSG_NOSIGNAL | MSG_DONTWAIT);
    }
  }

  absl::Status HearControl(int rank) {
    Peer& peer = peers_[rank];
    while (peer.farewell_received < sizeof peer.farewell) {
      const ssize_t n =
          recv(peer.control.get(), reinterpret_cast<std::byte*>(&peer.farewell) + peer.farewell_received,
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

  // Why a transfer with `rank` failed. Where its data connection is lost, the reason is on its control
  // connection, or will be soon.
  absl::Status Explain(int rank, const absl::Status& symptom) {
    if (!absl::IsUnavailable(symptom)) return symptom;
    Peer& peer = peers_[rank];
    const absl::Time deadline = absl::Now() + kFarewellPatience;
    while (!peer.left && absl::Now() < deadline) {
      pollfd waiting = {peer.control.get(), POLLIN, 0};
      if (poll(&waiting, 1, PollTimeoutMs(deadline)) > 0) PSRING_RETURN_IF_ERROR(HearControl(rank));
    }
    if (!peer.left) {
      return absl::UnavailableError(absl::StrCat("rank ", rank, " is lost: ", symptom.message()));
    }
    const auto& expected = peer.data.in();
    return absl::UnavailableError(
        absl::StrCat("rank ", rank, " has left; rank ", rank_, " still needs it for ",
                     ToString(expected.empty() ? call_header_ : expected.front().expected)));
  }

  const int rank_;
  std::deque<Peer> peers_;  // by rank; this rank's own is not used
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

absl::StatusOr<std::unique_ptr<Transport>> MakeMeshTransport(Rendezvous& rendezvous,
                                                             const GroupOptions& options) {
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
