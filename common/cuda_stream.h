// Streams of a GPU: CUDA's own, with errors that are kept until somebody asks, and waits that end.
//
// Nobody waits inside CUDA: whoever must wait looks at an event, again and again, and between the looks asks
// the stream's *watches* whether something outside this GPU has gone wrong, such as a peer that died in the
// middle of a collective, for which an event would never answer.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/cuda_context.h"
#include "common/device.h"

namespace psring {

// Asked by every thread that waits for a stream; thread-safe.
class CudaWatch {
 public:
  virtual ~CudaWatch() = default;
  // An error ends the wait, and becomes the stream's.
  virtual absl::Status Look() = 0;
};

class CudaStream : public Stream {
 public:
  // The GPU's stream that `stream` is; null: it is no GPU's.
  static CudaStream* From(Stream& stream) { return dynamic_cast<CudaStream*>(&stream); }

  // `work` puts work of the GPU on the given CUDA stream, in this stream's order, and does not wait for it.
  // It runs on the caller's thread (kCompute) or on the stream's own. `what` names it in errors, and lives
  // as long as the program.
  virtual void Enqueue(const char* what, std::function<absl::Status(cudaStream_t)> work) = 0;

  // In stream order, like everything else; for as long as `watch` lives elsewhere.
  virtual void Watch(std::weak_ptr<CudaWatch> watch) = 0;

  // See recorded_work.h, which is the door to these. Compute streams only.
  virtual absl::Status BeginCapture() = 0;
  // The caller owns it.
  virtual absl::StatusOr<cudaGraph_t> EndCapture() = 0;
};

// A stream that cannot be made is one that has failed: Synchronize tells.
std::unique_ptr<Stream> NewCudaStream(std::shared_ptr<CudaContext> context, StreamKind kind,
                                      const std::string& name);

}  // namespace psring
