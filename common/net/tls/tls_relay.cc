#include "common/net/tls/tls_relay.h"

#include <poll.h>
#include <signal.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <list>
#include <system_error>
#include <utility>

#include "absl/time/time.h"
#include "common/base/check.h"
#include "common/base/deadline.h"
#include "common/base/errors.h"
#include "common/base/poll_waker.h"

namespace psring {
namespace {

constexpr size_t kPieceBytes = 64 << 10;  // of one system call on the local socket: four records
constexpr absl::Duration kDrainTime = absl::Seconds(5);

// Between two calls of poll(), so that a busy connection delays others little.
constexpr int kTurns = 8;

// At least as many connections as a rank of a ring has can be encrypted at the same time.
size_t MostLoops() { return std::clamp<size_t>(2 * std::thread::hardware_concurrency(), 4, 32); }

// Signals are for the threads that wait for them.
void BlockSignals() {
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, nullptr);
}

}  // namespace

// One connection.
class TlsRelays::Relay {
 public:
  Relay(std::unique_ptr<TlsSession> session, FileDescriptor tcp, FileDescriptor local)
      : tcp_(std::move(tcp)), local_(std::move(local)), session_(std::move(session)) {
    session_->ReadAhead(kPieceBytes);
  }

  // Moves what can be moved, if anything may. False: the connection has ended.
  bool Run() {
    for (int turn = 0; is_ready_ && turn < kTurns; ++turn) {
      const bool sent = Send(), received = Receive();
      if (out_ended_ && (in_ended_ || user_has_closed_)) return false;
      is_ready_ = sent || received;
      if (is_ready_) progress_ = MonotonicNow();
    }
    return is_ready_ || MonotonicNow() < Until();
  }
  bool is_ready() const { return is_ready_; }

  // When what is left cannot be delivered in time any more.
  MonotonicTime Until() const {
    if (is_closing_) return std::min(progress_, closed_at_) + kDrainTime;
    return user_has_closed_ ? progress_ + kDrainTime : MonotonicTime::InfiniteFuture();
  }

  void BeginClosing() {
    if (is_closing_) return;
    is_closing_ = is_ready_ = true;
    closed_at_ = progress_ = MonotonicNow();
  }

  // For poll(): of the TCP connection and of the local socket.
  static constexpr size_t kWaits = 2;
  void AddWaits(std::vector<pollfd>& waits) const {
    const bool has_out = HasOut();
    const bool reads_net = !in_ended_ && !net_ended_ && in_.empty();
    const short net = static_cast<short>((has_out ? POLLOUT : 0) | (reads_net ? POLLIN : 0));
    const short local = static_cast<short>((ReadsLocal() ? POLLIN : 0) | (!in_.empty() ? POLLOUT : 0));
    waits.push_back({net != 0 || OnlySends() ? tcp_.get() : -1, net, 0});
    waits.push_back({user_has_closed_ ? -1 : local_.get(), local, 0});
  }
  // What poll() has returned for them.
  void Notice(const pollfd* waits) {
    is_ready_ |= waits[0].revents != 0 || waits[1].revents != 0;
    if (OnlySends() && waits[0].events == 0 && (waits[0].revents & (POLLERR | POLLHUP)) != 0)
      AbandonSending();
    if ((waits[1].revents & POLLHUP) != 0) {  // both directions have ended
      user_has_closed_ = true;
      progress_ = MonotonicNow();
    }
  }

 private:
  // Bytes in transit in one direction.
  struct Piece {
    std::array<char, kPieceBytes> bytes;
    size_t begin = 0, end = 0;
    bool empty() const { return begin == end; }
  };

  // Local socket to TLS. False: nothing moved.
  bool Send() {
    if (out_ended_) return false;
    bool moved = false;
    if (out_.empty() && !local_ended_) {
      const ssize_t got = recv(local_.get(), out_.bytes.data(), out_.bytes.size(), MSG_DONTWAIT);
      const bool later = got < 0 && (errno == EAGAIN || errno == EINTR);
      out_.begin = 0;
      out_.end = static_cast<size_t>(std::max<ssize_t>(got, 0));
      local_ended_ = later ? is_closing_ : got <= 0;
      moved = !later || local_ended_;
    }
    if (!out_.empty()) return Write() || moved;
    if (!local_ended_) return moved;
    if (!session_->EndSending()) return moved;  // half-close
    shutdown(tcp_.get(), SHUT_WR);
    return out_ended_ = true;
  }

  bool Write() {
    const iovec part = {out_.bytes.data() + out_.begin, out_.end - out_.begin};
    const absl::StatusOr<size_t> sent = session_->Send({&part, 1});
    if (!sent.ok()) AbandonSending();
    out_.begin += sent.value_or(0);
    return !sent.ok() || *sent > 0;
  }

  // The user's next write fails, as on a connection that was reset.
  void AbandonSending() {
    out_.begin = out_.end;
    out_ended_ = true;
    shutdown(local_.get(), SHUT_RD);
  }

  // TLS to the local socket. False: nothing moved.
  bool Receive() {
    if (in_ended_) return false;
    if (is_closing_ || user_has_closed_) return in_ended_ = true;
    bool moved = false;
    if (in_.empty()) {
      in_.begin = in_.end = 0;
      if (!net_ended_) {
        const iovec part = {in_.bytes.data(), in_.bytes.size()};
        const absl::StatusOr<size_t> got = session_->Receive({&part, 1});
        in_.end = got.value_or(0);
        net_ended_ = moved = !got.ok();
      }
    }
    if (!in_.empty()) return Deliver() || moved;
    if (!net_ended_) return moved;
    shutdown(local_.get(), SHUT_WR);
    if (!session_->peer_has_ended()) AbandonSending();
    return in_ended_ = true;
  }

  bool Deliver() {
    const ssize_t sent =
        send(local_.get(), in_.bytes.data() + in_.begin, in_.end - in_.begin, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0 && (errno == EAGAIN || errno == EINTR)) return false;
    if (sent < 0) return in_ended_ = true;  // the user no longer reads
    in_.begin += static_cast<size_t>(sent);
    return true;
  }

  bool HasOut() const { return !out_ended_ && (!out_.empty() || local_ended_); }
  bool ReadsLocal() const { return !out_ended_ && !HasOut(); }
  // After the peer's half-close, a reset is noticed by poll().
  bool OnlySends() const { return in_ended_ && ReadsLocal(); }

  const FileDescriptor tcp_, local_;
  const std::unique_ptr<TlsSession> session_;  // uses tcp_

  Piece out_, in_;
  bool local_ended_ = false;  // the user will write nothing more
  bool out_ended_ = false;    // and it has been sent, or cannot be
  bool net_ended_ = false;    // the peer will send nothing more
  bool in_ended_ = false;     // and it has been delivered, or cannot be
  bool user_has_closed_ = false, is_closing_ = false;
  bool is_ready_ = true;  // something may be able to move
  MonotonicTime progress_ = MonotonicNow(), closed_at_;
};

// A thread and its connections.
class TlsRelays::Loop {
 public:
  // Unavailable, ResourceExhausted: the system has no descriptors, or no threads.
  static absl::StatusOr<std::unique_ptr<Loop>> Start() {
    std::unique_ptr<Loop> loop(new Loop);
    if (!loop->wake_.valid()) return Unavailable("cannot open an eventfd for TLS: ", std::strerror(errno));
    try {
      loop->thread_ = std::thread([loop = loop.get()] { loop->Run(); });
    } catch (const std::system_error&) {
      return ResourceExhausted("cannot start a thread for TLS; raise the limit of processes");
    }
    return loop;
  }
  ~Loop() {
    if (!thread_.joinable()) return;
    BeginClosing();
    thread_.join();
  }

  void Add(std::unique_ptr<Relay> relay) {
    MutexLock lock(mutex_);
    added_.push_back(std::move(relay));
    ++count_;
    Wake();
  }
  void BeginClosing() {
    MutexLock lock(mutex_);
    closing_ = true;
    Wake();
  }
  size_t count() {
    MutexLock lock(mutex_);
    return count_;
  }

 private:
  Loop() = default;

  void Wake() { wake_.Wake(); }

  void Run() {
    BlockSignals();
    std::list<std::unique_ptr<Relay>> relays;
    std::vector<pollfd> waits;
    while (true) {
      bool closing = false;
      {
        MutexLock lock(mutex_);
        relays.splice(relays.end(), added_);
        closing = closing_;
      }
      if (closing && relays.empty()) return;
      size_t ended = 0;
      bool busy = false;
      MonotonicTime until = MonotonicTime::InfiniteFuture();
      waits.assign(1, {wake_.fd(), POLLIN, 0});
      for (auto relay = relays.begin(); relay != relays.end();) {
        if (closing) (*relay)->BeginClosing();
        if (!(*relay)->Run()) {
          relay = relays.erase(relay);
          ++ended;
          continue;
        }
        busy |= (*relay)->is_ready();
        until = std::min(until, (*relay)->Until());
        (*relay)->AddWaits(waits);
        ++relay;
      }
      if (ended > 0) {
        MutexLock lock(mutex_);
        count_ -= ended;
        continue;  // a new one may have come, or this may be the end
      }
      const int64_t left_ms = absl::ToInt64Milliseconds(until - MonotonicNow() + absl::Milliseconds(1));
      const int timeout_ms = busy                                       ? 0
                             : until == MonotonicTime::InfiniteFuture() ? -1
                                                                        : static_cast<int>(left_ms);
      if (poll(waits.data(), waits.size(), timeout_ms) <= 0) continue;
      if (waits[0].revents != 0) wake_.Clear();
      size_t at = 1;
      for (const std::unique_ptr<Relay>& relay : relays) {
        relay->Notice(&waits[at]);
        at += Relay::kWaits;
      }
    }
  }

  const PollWaker wake_{};
  Mutex mutex_;
  std::list<std::unique_ptr<Relay>> added_ ABSL_GUARDED_BY(mutex_);
  size_t count_ ABSL_GUARDED_BY(mutex_) = 0;
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

TlsRelays::TlsRelays() = default;

TlsRelays::~TlsRelays() {
  MutexLock lock(mutex_);
  for (const std::unique_ptr<Loop>& loop : loops_) loop->BeginClosing();  // all at the same time
}

absl::StatusOr<TlsRelays::Loop*> TlsRelays::LeastLoop() {
  if (loops_.size() < MostLoops()) {
    absl::StatusOr<std::unique_ptr<Loop>> loop = Loop::Start();
    if (loop.ok()) {
      loops_.push_back(*std::move(loop));
    } else if (loops_.empty()) {
      return loop.status();
    }
  }
  return std::ranges::min_element(loops_, {}, [](const auto& loop) { return loop->count(); })->get();
}

absl::StatusOr<FileDescriptor> TlsRelays::Start(std::unique_ptr<TlsSession> session, FileDescriptor tcp) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0) {
    const int why = errno;
    session.reset();  // before `tcp`, which it uses
    return Unavailable("cannot open a local socket for TLS: ", std::strerror(why));
  }
  FileDescriptor users(ends[0]);
  auto relay = std::make_unique<Relay>(std::move(session), std::move(tcp), FileDescriptor(ends[1]));
  MutexLock lock(mutex_);
  PSRING_ASSIGN_OR_RETURN(Loop* const loop, LeastLoop());
  loop->Add(std::move(relay));
  return users;
}

}  // namespace psring
