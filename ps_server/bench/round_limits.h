// Lower bounds of a round of one parameter server on this host, measured by the processes that run the real
// rounds, alternating with them:
//
//   raw     the same round over plain TCP: every worker sends its gradient, the server adds each as it
//           arrives, updates the weights (plain SGD) and sends them to all. No messages, no framework.
//   fused   only the memory accesses: the server adds all gradients, updates the weights and writes them for
//           every worker in one pass, on as many threads as the real server keeps busy (at most 2).
//
// An authenticated connection joins as a worker with a request of 16 bytes, and sends such a request for each
// round, before its gradient. The first request of a round sets its kind and size. A worker that requests
// another kind or size, or more than the server has memory for, gets an error text and is disconnected. A
// worker number is in use while its connection lasts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/file_descriptor.h"
#include "common/device/device.h"
#include "common/net/job_secret.h"

namespace psring {

enum class RoundLimit : uint32_t { kRaw = 1, kFused = 2 };
const char* Name(RoundLimit kind);  // "raw", "fused"

// The server's side; a thread per connection.
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

  // One round. kRaw: `weights` becomes minus the sum of the mean gradients of all rounds of this size since
  // the last worker connected. kFused: uses neither; the server works in its own memory. Both are float32 and
  // have the same count, above 0.
  absl::Status Run(RoundLimit kind, ConstSpan gradient, Span weights);

 private:
  RoundLimitClient(FileDescriptor socket, int worker) : socket_(std::move(socket)), worker_(worker) {}
  FileDescriptor socket_;
  int worker_ = 0;
};

}  // namespace psring
