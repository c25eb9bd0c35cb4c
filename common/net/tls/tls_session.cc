#include "common/net/tls/tls_session.h"

#include <openssl/err.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "common/base/check.h"
#include "common/base/errors.h"

namespace psring {
namespace {

constexpr size_t kRecordBytes = SSL3_RT_MAX_PLAIN_LENGTH;
// Bytes that one system call sends.
constexpr size_t kFirstBatch = 64 << 10, kLargestBatch = 256 << 10;

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
    : rekey_bytes_(rekey_bytes),
      ssl_(std::move(ssl)),
      bio_(SocketBio::Of(SSL_get_wbio(ssl_.get()))),
      socket_(socket) {
  bio_.Hold();
}

TlsSession::~TlsSession() { EndSending(); }

void TlsSession::SetSocket(int socket) {
  MutexLock lock(mutex_);
  socket_ = socket;
  bio_.SetSocket(socket);
}

void TlsSession::ReadAhead(size_t bytes) {
  MutexLock lock(mutex_);
  bio_.ReadAhead(bytes);
}

absl::StatusOr<size_t> TlsSession::Send(absl::Span<const iovec> parts) {
  MutexLock lock(mutex_);
  PSRING_RETURN_IF_ERROR(broken_);
  size_t total = 0, sent = 0;
  for (const iovec& part : parts) total += part.iov_len;
  while (sent < total) {
    // The first bytes leave early, so that the peer can begin to decrypt.
    const size_t batch = std::min(total - sent, std::clamp(sent, kFirstBatch, kLargestBatch));
    if (encrypted_ == 0) PSRING_RETURN_IF_ERROR(Encrypt(parts, sent, batch));
    PSRING_CHECK(encrypted_ <= total - sent);
    if (!bio_.Flush(sent + encrypted_ < total)) {
      if (errno == EAGAIN) break;
      return broken_ = Unavailable("cannot send: ", std::strerror(errno));
    }
    sent += std::exchange(encrypted_, 0);
  }
  return sent;
}

absl::Status TlsSession::Encrypt(absl::Span<const iovec> parts, size_t offset, size_t bytes) {
  ERR_clear_error();
  while (encrypted_ < bytes) {
    // Before a record, so that a peer that reads all data has read the message, too.
    if (with_this_key_ >= rekey_bytes_ && SSL_key_update(ssl_.get(), SSL_KEY_UPDATE_NOT_REQUESTED) == 1) {
      with_this_key_ = 0;  // SSL_write sends the message before the record
    }
    const size_t length = std::min(kRecordBytes, bytes - encrypted_);
    const int result = SSL_write(ssl_.get(), BytesAt(parts, offset + encrypted_, length, gathered_),
                                 static_cast<int>(length));
    if (result <= 0) {
      PSRING_RETURN_IF_ERROR(Explain(result, "cannot send"));
      return broken_ = Unavailable("cannot send: TLS: a record was not encrypted");
    }
    encrypted_ += length;
    with_this_key_ += static_cast<int64_t>(length);
  }
  return absl::OkStatus();
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
  if ((SSL_get_shutdown(ssl_.get()) & SSL_SENT_SHUTDOWN) == 0) {
    (void)SSL_shutdown(ssl_.get());
    ERR_clear_error();
  }
  has_ended_ = bio_.Flush() || errno != EAGAIN;
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
      (void)bio_.Flush();  // the alert
      // poll() then reports it, also if nothing more arrives and the last Receive has returned data.
      (void)shutdown(socket_, SHUT_RDWR);
    }
  }
  ERR_clear_error();
  return broken_;
}

}  // namespace psring
