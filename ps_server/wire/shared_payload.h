// Payload through shared memory, where a worker and the server stand on one host: how they find out, and what
// the server then sees of the worker. gRPC carries the rest: who has pushed what, and when it is answered.
//
// *worker memory*: two areas of the worker, its gradients and its weights, of which the server has a mapping.
// The server adds straight out of the one and writes replies straight into the other.
//
// How they find out: the server listens on a local socket and offers its name and a token over gRPC. The
// worker connects there, if it can; it hands over its memory and a page in which a token of its own stands.
// The server reads that token through its mapping and writes the offered one beside it, where the worker
// reads it. So both have seen the other's hand in the same memory; names of hosts play no part. The worker's
// Join names the worker's token.
//
// A worker that computes on a GPU adds handles of its gradients and weights there (CUDA IPC). A server on a
// GPU opens them where it can, and says so; such a handle means something on the host alone on which it was
// made, and that both are on one the page has shown.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/shared_memory.h"
#include "common/device/device.h"

namespace psring {

struct WorkerMemory {
  SharedMemory gradients, weights;
  // The same on the worker's GPU, where the server's own GPU reaches it: it then works there, and not in the
  // above. Empty otherwise.
  Buffer gradients_on_gpu, weights_on_gpu;
  bool on_gpu() const { return gradients_on_gpu.data() != nullptr; }
};

// The server's side.
class PayloadDoor {
 public:
  // Listens under a name of its own, for a server on `device`, which outlives what is taken. Errors are the
  // system's.
  static absl::StatusOr<std::unique_ptr<PayloadDoor>> Open(Device& device);
  // Waits for its thread, which ends within a second or two where somebody stands in the door.
  virtual ~PayloadDoor() = default;

  // What a worker needs to come in: printable, without meaning to others.
  virtual std::string offer() const = 0;

  // The memory that was handed over with `token`; once. Nothing where none was, or longer than a minute ago.
  virtual std::optional<WorkerMemory> Take(const std::string& token) = 0;
};

// The worker's side: hands over `gradients` and `weights` (descriptors of shared memory, and how many bytes
// of it; they stay the caller's). An error says why there is no common
// memory.
struct MemoryToShare {
  int gradients_fd = -1;
  size_t gradients_bytes = 0;
  int weights_fd = -1;
  size_t weights_bytes = 0;
  std::string gradients_on_gpu = {}, weights_on_gpu = {};  // as in SharedSpan; both or neither
};
struct HandedOver {
  std::string token;    // for the Join
  bool on_gpu = false;  // the server works on the worker's GPU
};
absl::StatusOr<HandedOver> HandOverMemory(const std::string& offer, const MemoryToShare& memory,
                                          absl::Time deadline);

}  // namespace psring
