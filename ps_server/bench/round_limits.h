// What a round of one parameter server costs at least on this host, measured by the processes that run the
// real rounds, in turn with them:
//
//   raw     the same round over plain TCP: every worker sends its gradient, the server adds each up as it
//           comes, updates the weights (plain SGD) and sends them to all. No messages, no framework.
//   fused   the memory work alone: the server adds all workers' gradients, updates the weights and writes
//           them for every worker in one pass, on as many threads as the real one can keep busy (2 at most).
//
// Both are for measuring. A connection joins as a worker with 16 bytes, and sends 16 bytes for each round,
// before its gradient. The first request of a round sets its kind and size: a worker that asks for another,
// or for more than the server has memory for, gets the reason and is disconnected. A worker number is taken
// for as long as its connection lasts.
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

namespace psring {

enum class RoundLimit : uint32_t { kRaw = 1, kFused = 2 };
const char* Name(RoundLimit kind);  // "raw", "fused"

// The server's side; a thread per connection.
class RoundLimitServer {
 public:
  // `timeout`: how long a worker waits for another in a round, and the server for a worker's next bytes in
  // it.
  static absl::StatusOr<std::unique_ptr<RoundLimitServer>> Start(const std::string& host, int workers,
                                                                 absl::Duration timeout);
  virtual ~RoundLimitServer() = default;
  virtual std::string address() const = 0;  // "host:port"
};

// A worker's side. All workers make the same calls in the same order.
class RoundLimitClient {
 public:
  static absl::StatusOr<RoundLimitClient> Connect(const std::string& address, int worker,
                                                  absl::Duration timeout);

  // One round. kRaw: `weights` gets minus the mean of all gradients of all rounds of this size since a worker
  // connected; kFused: neither is touched, and the server does its work in memory of its own. Both have the
  // same count above 0; float32.
  absl::Status Run(RoundLimit kind, ConstSpan gradient, Span weights);

 private:
  RoundLimitClient(FileDescriptor socket, int worker) : socket_(std::move(socket)), worker_(worker) {}
  FileDescriptor socket_;
  int worker_ = 0;
};

}  // namespace psring
