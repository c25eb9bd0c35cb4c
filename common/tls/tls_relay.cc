#include "common/tls/tls_relay.h"

#include <openssl/err.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/base/check.h"

namespace psring {
namespace {

constexpr size_t kPieceBytes = 64 << 10;  // of one system call on the local socket: four records
constexpr absl::Duration kDrainTime = absl::Seconds(5);

class Relay {
 public:
  Relay(SslPtr ssl, FileDescriptor tcp, FileDescriptor local, int closing, int64_t rekey_bytes)
      : ssl_(std::move(ssl)),
        tcp_(std::move(tcp)),
        local_(std::move(local)),
        closing_(closing),
        rekey_bytes_(rekey_bytes) {}

  void Run() {
    while (true) {
      const bool sent = Send(), received = Receive();
      if (out_ended_ && (in_ended_ || user_has_closed_)) return;
      if (sent || received) {
        progress_ = absl::Now();
      } else if (!Wait()) {
        return;
      }
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
    // Half-close. (A broken connection cannot be closed in order.)
    ERR_clear_error();
    const int closed = SSL_shutdown(ssl_.get());
    if (closed < 0 && (send_wants_ = Wanted(closed)) != 0) return moved;
    shutdown(tcp_.get(), SHUT_WR);
    return out_ended_ = true;
  }

  bool Write() {
    ERR_clear_error();
    const int wrote =
        SSL_write(ssl_.get(), out_.bytes.data() + out_.begin, static_cast<int>(out_.end - out_.begin));
    if (wrote <= 0) {
      send_wants_ = Wanted(wrote);
      if (send_wants_ == 0) AbandonSending();
      return send_wants_ == 0;
    }
    out_.begin += static_cast<size_t>(wrote);
    with_this_key_ += wrote;
    if (with_this_key_ >= rekey_bytes_ && SSL_key_update(ssl_.get(), SSL_KEY_UPDATE_NOT_REQUESTED) == 1) {
      with_this_key_ = 0;
    }
    return true;
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
      while (!net_ended_ && in_.end < in_.bytes.size()) {
        ERR_clear_error();
        const int got =
            SSL_read(ssl_.get(), in_.bytes.data() + in_.end, static_cast<int>(in_.bytes.size() - in_.end));
        if (got > 0) {
          in_.end += static_cast<size_t>(got);
          continue;
        }
        receive_wants_ = Wanted(got);
        if (receive_wants_ != 0) break;
        net_ended_ = moved = true;
        is_broken_ = SSL_get_error(ssl_.get(), got) != SSL_ERROR_ZERO_RETURN;
      }
    }
    if (!in_.empty()) return Deliver() || moved;
    if (!net_ended_) return moved;
    shutdown(local_.get(), SHUT_WR);
    if (is_broken_) AbandonSending();
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

  // The event of poll() after which to repeat a call that returned `result`; 0: never.
  short Wanted(int result) const {
    switch (SSL_get_error(ssl_.get(), result)) {
      case SSL_ERROR_WANT_READ:
        return POLLIN;
      case SSL_ERROR_WANT_WRITE:
        return POLLOUT;
      default:
        return 0;
    }
  }

  // False: what is left cannot be delivered in time.
  bool Wait() {
    const bool has_out = !out_ended_ && (!out_.empty() || local_ended_);
    const bool reads_net = !in_ended_ && !net_ended_ && in_.empty();
    const bool reads_local = !out_ended_ && !has_out;
    const short net = static_cast<short>((has_out ? send_wants_ : 0) | (reads_net ? receive_wants_ : 0));
    const short local = static_cast<short>((reads_local ? POLLIN : 0) | (!in_.empty() ? POLLOUT : 0));
    // After the peer's half-close, a reset is noticed here.
    const bool only_sends = in_ended_ && reads_local;
    pollfd waits[] = {{is_closing_ ? -1 : closing_, POLLIN, 0},
                      {net != 0 || only_sends ? tcp_.get() : -1, net, 0},
                      {user_has_closed_ ? -1 : local_.get(), local, 0}};
    absl::Time until = absl::InfiniteFuture();
    if (user_has_closed_ || is_closing_) until = progress_ + kDrainTime;
    if (is_closing_) until = std::min(until, closed_at_ + kDrainTime);
    const absl::Duration left = until - absl::Now();
    if (left <= absl::ZeroDuration()) return false;
    const int timeout_ms = until == absl::InfiniteFuture()
                               ? -1
                               : static_cast<int>(absl::ToInt64Milliseconds(left + absl::Milliseconds(1)));
    if (poll(waits, 3, timeout_ms) <= 0) return true;
    if (waits[0].revents != 0) {
      is_closing_ = true;
      closed_at_ = progress_ = absl::Now();
    }
    if (only_sends && net == 0 && (waits[1].revents & (POLLERR | POLLHUP)) != 0) AbandonSending();
    if ((waits[2].revents & POLLHUP) != 0) {  // both directions have ended
      user_has_closed_ = true;
      progress_ = absl::Now();
    }
    return true;
  }

  const SslPtr ssl_;
  const FileDescriptor tcp_, local_;
  const int closing_;
  const int64_t rekey_bytes_;

  Piece out_, in_;
  short send_wants_ = POLLOUT, receive_wants_ = POLLIN;
  bool local_ended_ = false;  // the user will write nothing more
  bool out_ended_ = false;    // and it has been sent, or cannot be
  bool net_ended_ = false;    // the peer will send nothing more
  bool is_broken_ = false;    // because the connection failed
  bool in_ended_ = false;     // and it has been delivered, or cannot be
  bool user_has_closed_ = false, is_closing_ = false;
  int64_t with_this_key_ = 0;  // bytes
  absl::Time progress_ = absl::Now(), closed_at_;
};

// Signals are for the threads that wait for them.
void BlockSignals() {
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, nullptr);
}

}  // namespace

TlsRelays::TlsRelays(int64_t rekey_bytes)
    : rekey_bytes_(rekey_bytes), closing_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

TlsRelays::~TlsRelays() {
  const uint64_t one = 1;
  if (closing_.valid()) PSRING_CHECK(write(closing_.get(), &one, sizeof one) == sizeof one);
  MutexLock lock(mutex_);
  for (Thread& thread : threads_) thread.thread.join();
}

absl::StatusOr<FileDescriptor> TlsRelays::Start(SslPtr ssl, FileDescriptor tcp) {
  int ends[2];
  if (!closing_.valid() || socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0) {
    return absl::UnavailableError(absl::StrCat("cannot open a local socket for TLS: ", std::strerror(errno)));
  }
  FileDescriptor users(ends[0]);
  auto relay = std::make_unique<Relay>(std::move(ssl), std::move(tcp), FileDescriptor(ends[1]),
                                       closing_.get(), rekey_bytes_);
  MutexLock lock(mutex_);
  threads_.remove_if([](Thread& thread) {
    if (!thread.over) return false;
    thread.thread.join();
    return true;
  });
  Thread& thread = threads_.emplace_back();
  try {
    thread.thread = std::thread([relay = std::move(relay), &thread]() mutable {
      BlockSignals();
      relay->Run();
      relay.reset();
      thread.over = true;
    });
  } catch (const std::system_error&) {
    threads_.pop_back();
    return absl::ResourceExhaustedError("cannot start a thread for TLS; raise the limit of processes");
  }
  return users;
}

}  // namespace psring
