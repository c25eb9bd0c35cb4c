#include "common/net/tls/tls_session.h"

#include <openssl/err.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "common/base/check.h"
#include "common/base/errors.h"
#include "common/net/tls/socket_bio.h"

namespace psring {
namespace {

constexpr size_t kRecordBytes = SSL3_RT_MAX_PLAIN_LENGTH;
constexpr size_t kBytesReadAtOnce = 65536;

// `length` bytes from `offset` on: in place, or copied to `gathered` if they are in several parts.
const std::byte* BytesAt(absl::Span<const iovec> parts, size_t offset, size_t length,
                         std::vector<std::byte>& gathered) {
  size_t i = 0;
  while (offset >= parts[i].iov_len) offset -= parts[i++].iov_len;
  const auto* const first = static_cast<const std::byte*>(parts[i].iov_base) + offset;
  if (parts[i].iov_len - offset >= length) return first;
  gathered.clear();
  for (; gathered.size() < length; ++i, offset = 0) {
    const auto* const from = static_cast<const std::byte*>(parts[i].iov_base) + offset;
    gathered.insert(gathered.end(), from,
                    from + std::min(parts[i].iov_len - offset, length - gathered.size()));
  }
  return gathered.data();
}

}  // namespace

TlsSession::TlsSession(SslPtr ssl, int socket, int64_t rekey_bytes)
    : rekey_bytes_(rekey_bytes), ssl_(std::move(ssl)), socket_(socket) {}

TlsSession::~TlsSession() { EndSending(); }

void TlsSession::SetSocket(int socket) {
  MutexLock lock(mutex_);
  socket_ = socket;
  psring::SetSocket(SSL_get_wbio(ssl_.get()), socket);  // also the one that reads
}

void TlsSession::ReadAhead() {
  MutexLock lock(mutex_);
  SSL_set_default_read_buffer_len(ssl_.get(), kBytesReadAtOnce);
  SSL_set_read_ahead(ssl_.get(), 1);
}

absl::StatusOr<size_t> TlsSession::Send(absl::Span<const iovec> parts) {
  MutexLock lock(mutex_);
  PSRING_RETURN_IF_ERROR(broken_);
  size_t total = 0, sent = 0;
  for (const iovec& part : parts) total += part.iov_len;
  while (sent < total) {
    // Before a record, so that a peer that reads all data has read the message, too.
    if (encrypted_ == 0 && with_this_key_ >= rekey_bytes_) Rekey();
    // OpenSSL wants the same length again for what it has encrypted already.
    const size_t length = encrypted_ > 0 ? encrypted_ : std::min(kRecordBytes, total - sent);
    PSRING_CHECK(length <= total - sent);
    SetMore(SSL_get_wbio(ssl_.get()), sent + length < total);
    ERR_clear_error();
    errno = 0;
    size_t wrote = 0;
    if (const int result = SSL_write_ex(ssl_.get(), BytesAt(parts, sent, length, gathered_), length, &wrote);
        result != 1) {
      encrypted_ = length;
      PSRING_RETURN_IF_ERROR(Explain(result, "cannot send"));
      break;
    }
    encrypted_ = 0;
    sent += wrote;
    with_this_key_ += static_cast<int64_t>(wrote);
  }
  return sent;
}

absl::StatusOr<size_t> TlsSession::Receive(absl::Span<const iovec> parts) {
  MutexLock lock(mutex_);
  PSRING_RETURN_IF_ERROR(broken_);
  size_t received = 0;
  for (const iovec& part : parts) {
    for (size_t at = 0; at < part.iov_len;) {
      ERR_clear_error();
      errno = 0;
      size_t got = 0;
      const int result =
          SSL_read_ex(ssl_.get(), static_cast<std::byte*>(part.iov_base) + at, part.iov_len - at, &got);
      if (result != 1) {
        const absl::Status status = Explain(result, "cannot receive");
        if (status.ok() || received > 0) return received;  // the next call returns the error
        return status;
      }
      at += got;
      received += got;
    }
  }
  return received;
}

bool TlsSession::EndSending() {
  MutexLock lock(mutex_);
  if (has_ended_ || !broken_.ok()) return true;
  ERR_clear_error();
  const int result = SSL_shutdown(ssl_.get());
  has_ended_ = result >= 0 || SSL_get_error(ssl_.get(), result) != SSL_ERROR_WANT_WRITE;
  ERR_clear_error();
  return has_ended_;
}

bool TlsSession::peer_has_ended() const {
  MutexLock lock(mutex_);
  return (SSL_get_shutdown(ssl_.get()) & SSL_RECEIVED_SHUTDOWN) != 0;
}

absl::Status TlsSession::Explain(int result, absl::string_view what) {
  const int number = errno;
  switch (SSL_get_error(ssl_.get(), result)) {
    case SSL_ERROR_WANT_READ:
    case SSL_ERROR_WANT_WRITE:
      return absl::OkStatus();
    case SSL_ERROR_ZERO_RETURN:
      return Unavailable(kConnectionEnded);
    case SSL_ERROR_SYSCALL:
      broken_ = Unavailable(number == 0 ? "the connection was cut off"
                                        : absl::StrCat(what, ": ", std::strerror(number)));
      break;
    default: {
      const unsigned long error = ERR_peek_last_error();
      const char* const text = ERR_reason_error_string(error);
      broken_ = Unavailable(what, ": TLS: ", text != nullptr ? text : absl::StrCat("error ", error));
      // poll() then reports it, also if nothing more arrives and the last Receive has returned data.
      (void)shutdown(socket_, SHUT_RDWR);
    }
  }
  ERR_clear_error();
  return broken_;
}

// While the message waits to be sent, OpenSSL does not read either. So it is sent at once, when the socket
// has space; the limit of a key is far higher than `rekey_bytes_`.
void TlsSession::Rekey() {
  pollfd space = {socket_, POLLOUT, 0};
  if (poll(&space, 1, 0) != 1 || space.revents != POLLOUT) return;
  if (SSL_key_update(ssl_.get(), SSL_KEY_UPDATE_NOT_REQUESTED) != 1) return;
  (void)SSL_do_handshake(ssl_.get());  // the next call reports an error
  with_this_key_ = 0;
}

}  // namespace psring
