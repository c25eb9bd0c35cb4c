// Lower bounds of a round of one parameter server on this host, measured by the processes that run the real
// rounds, alternating with them:
//
//   raw     the same round over plain TCP: every worker sends its gradient, the server adds each as it
//           arrives, updates the weights (plain SGD) and sends them to all. No messages, no framework.
//   fused   only the memory accesses: the server adds all gradients, updates the weights and writes them for
//           every worker in one pass, on as many threads as the real server keeps busy (at most 2).
//
// Each worker has one authenticated connection, over which it sends a request for each round, before its
// gradient. A round begins when all workers have sent the same request. Two different requests, one for more
// than the server has memory for, and the end of a connection end all connections.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/device/device.h"
#include "common/net/job_secret.h"
#include "common/net/tls/member_socket.h"

namespace psring {

enum class RoundLimit : uint32_t { kRaw = 1, kFused = 2 };
const char* Name(RoundLimit kind);  // "raw", "fused"

// The server's side; a thread per worker.
class RoundLimitServer {
 public:
  // `timeout`: how long a worker may wait for another in a round, and the server for a worker's next bytes.
  static absl::StatusOr<std::unique_ptr<RoundLimitServer>> Start(const std::string& host,
                                                                 const JobSecret& secret, int workers,
                                                                 absl::Duration timeout);
  virtual ~RoundLimitServer() = default;
  virtual std::string address() const = 0;  // to publish: "host:port/token"
};

// A worker's side. All workers make the same calls in the same order.
class RoundLimitClient {
 public:
  static absl::StatusOr<RoundLimitClient> Connect(const std::string& address, const JobSecret& secret,
                                                  int worker, absl::Duration timeout);

  // One round. kRaw: `weights` becomes minus the sum of the mean gradients of this round and of all rounds of
  // this size before it, without one of another size in between. kFused: uses neither; the server works in
  // its own memory. Both are float32 and have the same count, above 0.
  absl::Status Run(RoundLimit kind, ConstSpan gradient, Span weights);

 private:
  explicit RoundLimitClient(MemberSocket socket) : socket_(std::move(socket)) {}
  MemberSocket socket_;
};

}  // namespace psring
