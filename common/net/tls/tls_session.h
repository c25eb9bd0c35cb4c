// An encrypted connection after its handshake: SSL_write and SSL_read on its socket.
#pragma once

#include <openssl/ssl.h>
#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/base/mutex.h"
#include "common/net/tls/socket_bio.h"

namespace psring {

struct SslDelete {
  void operator()(SSL* ssl) const { SSL_free(ssl); }
  void operator()(SSL_CTX* context) const { SSL_CTX_free(context); }
};
using SslPtr = std::unique_ptr<SSL, SslDelete>;
using SslContextPtr = std::unique_ptr<SSL_CTX, SslDelete>;

// Of connections that the peer has closed in order.
inline constexpr char kConnectionEnded[] = "the connection ended";

// Thread-safe: a call holds a lock, and waits only if the socket does. Errors are Unavailable: the connection
// is lost. The contracts of Send and Receive: member_socket.h.
class TlsSession {
 public:
  // `ssl` has completed its handshake; its BIO is a SocketBio on `socket`, which outlives this. The
  // key for sending is replaced after `rekey_bytes`.
  TlsSession(SslPtr ssl, int socket, int64_t rekey_bytes);
  // EndSending, if the socket accepts it now.
  ~TlsSession();
  TlsSession(const TlsSession&) = delete;
  TlsSession& operator=(const TlsSession&) = delete;

  // Uses another socket from now on; -1: none.
  void SetSocket(int socket);
  // Reads up to `bytes` with one system call. poll() then reports only what Receive has not read already:
  // call Receive until it returns less than was asked for.
  void ReadAhead(size_t bytes);

  absl::StatusOr<size_t> Send(absl::Span<const iovec> parts);
  absl::StatusOr<size_t> Receive(absl::Span<const iovec> parts);
  // Tells the peer that nothing more follows (close_notify). False: the socket does not accept it yet.
  bool EndSending();
  // The peer has told the same, so the end of what Receive returns is not that of a connection cut off.
  bool peer_has_ended() const;

 private:
  // Of a call that returned `result`; OK: it must be repeated when the socket is ready.
  absl::Status Explain(int result, absl::string_view what) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // `bytes` of `parts`, from `offset` on, with a new key if it is time.
  absl::Status Encrypt(absl::Span<const iovec> parts, size_t offset, size_t bytes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const int64_t rekey_bytes_;
  mutable Mutex mutex_;
  const SslPtr ssl_ ABSL_GUARDED_BY(mutex_);
  SocketBio& bio_ ABSL_GUARDED_BY(mutex_);  // of ssl_
  int socket_ ABSL_GUARDED_BY(mutex_);
  absl::Status broken_ ABSL_GUARDED_BY(mutex_);        // not OK: no more calls of OpenSSL
  bool has_ended_ ABSL_GUARDED_BY(mutex_) = false;     // EndSending has succeeded
  size_t encrypted_ ABSL_GUARDED_BY(mutex_) = 0;       // bytes that wait to be sent
  int64_t with_this_key_ ABSL_GUARDED_BY(mutex_) = 0;  // bytes
  std::vector<std::byte> gathered_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace psring
