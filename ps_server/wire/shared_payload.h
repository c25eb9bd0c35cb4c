// Payload through shared memory, if a worker and the server are on one host: the server adds gradients from
// the worker's memory and writes weights to it. gRPC transports only control messages. The handshake, which
// proves that both access the same memory, is in payload.md; the worker's Join names its token.
//
// The server accepts only memory that cannot shrink (common/base/shared_memory.h) and checks every offset.
// Not protected: a worker may change its gradient while the server adds it, also after the check for NaN.
//
// A worker that computes on a GPU adds handles of its gradients and weights there (CUDA IPC). A server on a
// GPU opens them if it can, and confirms it. Such a handle is valid only on one host; the page has proved
// that worker and server are on the same. CUDA does not allow the worker to free memory that the server has
// open, so the server keeps the local connection until it has closed the handles, and a worker that has left
// waits for the connection's end.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "common/base/deadline.h"
#include "common/base/shared_memory.h"
#include "common/device/device.h"
#include "common/net/job_secret.h"
#include "common/net/unix_socket.h"
#include "ps_server/client/ps_client.h"

namespace psring {

// A worker's gradients and weights, mapped by the server.
struct WorkerMemory {
  UnixSocket in_use;  // to the worker, if on_gpu(); declared first: closed after the handles
  SharedMemory gradients, weights;
  // The same on the worker's GPU, used if the server's GPU can access it; otherwise empty.
  Buffer gradients_on_gpu, weights_on_gpu;
  bool on_gpu() const { return gradients_on_gpu.data() != nullptr; }
};

// The server's side.
class PayloadReceiver {
 public:
  // Listens under a unique name, for a server on `device`, which outlives the memory. Only workers with the
  // same secret are accepted. FailedPrecondition: it is not set. Other errors are the system's.
  static absl::StatusOr<std::unique_ptr<PayloadReceiver>> Open(Device& device, const JobSecret& secret);
  // Waits for its thread, up to 2 s if a handshake is in progress.
  virtual ~PayloadReceiver() = default;

  // What a worker needs to connect: printable.
  virtual std::string offer() const = 0;

  // The memory that was sent with `token`, once. nullopt if there is none, or it is older than a minute.
  virtual std::optional<WorkerMemory> Take(const std::string& token) = 0;
};

// The worker's side. The offset of `span` in the memory that the worker shares; nullopt if it is elsewhere.
std::optional<uint64_t> PlaceIn(const SharedSpan& shared, ConstSpan span);

struct HandedOver {
  std::string token;    // for the Join
  bool on_gpu = false;  // the server uses the worker's GPU
  UnixSocket in_use;    // if on_gpu: the server closes it when it no longer does
};
// An error states why there is no common memory. A GPU is used if both are on it.
absl::StatusOr<HandedOver> HandOverMemory(const std::string& offer, const JobSecret& secret,
                                          const SharedSpan& gradients, const SharedSpan& weights,
                                          MonotonicTime deadline);

}  // namespace psring
