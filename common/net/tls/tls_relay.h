// Copies between TLS connections and local sockets, on a few threads that share the connections. Threads,
// because users of the local socket may block, and encryption of several connections then uses several cores.
#pragma once

#include <openssl/ssl.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/file_descriptor.h"
#include "common/base/mutex.h"

namespace psring {

struct SslDelete {
  void operator()(SSL* ssl) const { SSL_free(ssl); }
  void operator()(SSL_CTX* context) const { SSL_CTX_free(context); }
};
using SslPtr = std::unique_ptr<SSL, SslDelete>;
using SslContextPtr = std::unique_ptr<SSL_CTX, SslDelete>;

// Thread-safe.
class TlsRelays {
 public:
  explicit TlsRelays(int64_t rekey_bytes);
  // Delivers data that was written into local sockets for at most 5 s, then closes all connections.
  ~TlsRelays();
  TlsRelays(const TlsRelays&) = delete;
  TlsRelays& operator=(const TlsRelays&) = delete;

  // `ssl` has completed its handshake on the non-blocking `tcp`. Returns the non-blocking local socket. When
  // it is closed, what was written into it is still sent, unless the peer takes nothing for 5 s.
  absl::StatusOr<FileDescriptor> Start(SslPtr ssl, FileDescriptor tcp);

 private:
  class Relay;
  class Loop;

  // The thread with the fewest connections; a new one if there are few threads.
  absl::StatusOr<Loop*> LeastLoop() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const int64_t rekey_bytes_;
  Mutex mutex_;
  std::vector<std::unique_ptr<Loop>> loops_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace psring
