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
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/cuda/cuda_context.h"
#include "common/device/device.h"

namespace psring {

// Asked by every thread that waits for a stream; thread-safe.
class CudaWatch {
 public:
  virtual ~CudaWatch() = default;
  // An error ends the wait, and becomes the stream's.
  virtual absl::Status Look() = 0;
};

class CudaStream;

// What belongs to recorded work besides its graph (recorded_work.h). One thread: the one that records, and
// replays.
class CudaRecording {
 public:
  struct Stamp {
    cudaEvent_t event;  // marked by the graph
    int64_t* ns;
  };

  explicit CudaRecording(std::shared_ptr<CudaContext> context) : context_(std::move(context)) {}
  ~CudaRecording();

  bool under_way = true;
  std::vector<Stamp> stamps;
  // Of the streams that took part: asked before the work is replayed, too.
  std::vector<std::weak_ptr<CudaWatch>> watches;
  // Called whenever the work has been put on a stream, with that; not while it is recorded.
  std::vector<std::function<absl::Status(cudaStream_t)>> behind;

 private:
  const std::shared_ptr<CudaContext> context_;
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
  struct Captured {
    cudaGraph_t graph;  // the caller owns it
    std::shared_ptr<CudaRecording> recording;
  };
  virtual absl::StatusOr<Captured> EndCapture() = 0;
  // That this stream takes part in now; null: what is enqueued is done.
  virtual std::shared_ptr<CudaRecording> recording() = 0;
  virtual void Replay(cudaGraphExec_t graph, CudaRecording& recording) = 0;
};

// A stream that cannot be made is one that has failed: Synchronize tells.
std::unique_ptr<Stream> NewCudaStream(std::shared_ptr<CudaContext> context, StreamKind kind,
                                      const std::string& name);

}  // namespace psring
