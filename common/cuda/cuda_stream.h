// Streams of a GPU: CUDA's, with errors that are kept until requested and waits that have deadlines.
//
// No thread waits inside CUDA. A wait polls an event and, between polls, the stream's *watches*, which report
// failures outside this GPU, such as a peer that died during a collective, whose event would never happen.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/cuda/cuda_context.h"
#include "common/device/device.h"

namespace psring {

// Queried by every thread that waits for a stream; thread-safe.
class CudaWatch {
 public:
  virtual ~CudaWatch() = default;
  // An error ends the wait and becomes the stream's.
  virtual absl::Status Look() = 0;
};

class CudaStream;

// The state of recorded work besides its graph (recorded_work.h). Used by the thread that records and
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
  // The watches of the streams that took part; also queried before a replay.
  std::vector<std::weak_ptr<CudaWatch>> watches;
  // Called with the stream after each replay has been enqueued.
  std::vector<std::function<absl::Status(cudaStream_t)>> behind;

 private:
  const std::shared_ptr<CudaContext> context_;
};

class CudaStream : public Stream {
 public:
  // `stream` as a GPU stream; null if it is not a GPU's.
  static CudaStream* From(Stream& stream) { return dynamic_cast<CudaStream*>(&stream); }

  // `work` enqueues GPU work on the given CUDA stream, in this stream's order, and does not wait for it. It
  // runs on the caller's thread (kCompute) or on the stream's own. `what` names it in errors and must be a
  // string literal.
  virtual void Enqueue(const char* what, std::function<absl::Status(cudaStream_t)> work) = 0;

  // Adds a watch, in stream order, until its owner destroys it.
  virtual void Watch(std::weak_ptr<CudaWatch> watch) = 0;

  // The recording in which this stream takes part; null: work is run, not recorded.
  virtual std::shared_ptr<CudaRecording> recording() = 0;
};

// If a stream cannot be created, a failed one is returned: Synchronize returns the error.
std::unique_ptr<Stream> NewCudaStream(std::shared_ptr<CudaContext> context, StreamKind kind,
                                      const std::string& name);

}  // namespace psring
