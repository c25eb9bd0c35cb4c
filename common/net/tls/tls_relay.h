// Copies between TLS connections and local sockets, for gRPC, on a few threads that share the connections.
// Threads, because gRPC's may block, and encryption of several connections then uses several cores.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/file_descriptor.h"
#include "common/base/mutex.h"
#include "common/net/tls/tls_session.h"

namespace psring {

// Thread-safe.
class TlsRelays {
 public:
  TlsRelays();
  // Delivers data that was written into local sockets for at most 5 s, then closes all connections.
  ~TlsRelays();
  TlsRelays(const TlsRelays&) = delete;
  TlsRelays& operator=(const TlsRelays&) = delete;

  // `session` is on the non-blocking `tcp`. Returns the non-blocking local socket. When it is closed, what
  // was written into it is still sent, unless the peer takes nothing for 5 s.
  absl::StatusOr<FileDescriptor> Start(std::unique_ptr<TlsSession> session, FileDescriptor tcp);

 private:
  class Relay;
  class Loop;

  // The thread with the fewest connections; a new one if there are few threads.
  absl::StatusOr<Loop*> LeastLoop() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Mutex mutex_;
  std::vector<std::unique_ptr<Loop>> loops_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace psring
