// One CUDA stream and its state. Used by one thread at a time; cuda_stream.cc builds the two kinds of Stream
// on it.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/base/deadline.h"
#include "common/base/mutex.h"
#include "common/cuda/cuda_context.h"
#include "common/cuda/cuda_stream.h"
#include "common/device/device.h"

namespace psring {

// The part of a stream's state that waits need, shared with the stream's events. Thread-safe.
class CudaWaits {
 public:
  explicit CudaWaits(std::shared_ptr<CudaContext> context) : context_(std::move(context)) {}

  void Add(std::weak_ptr<CudaWatch> watch);
  void AddThoseOf(CudaWaits& other);
  // Notes that `what` was enqueued, for the error message of a later failure.
  void Note(const char* what);

  // Waits until `event` has happened. DeadlineExceeded names the device; an error of the GPU contains the
  // last calls before it.
  absl::Status Await(cudaEvent_t event, MonotonicTime deadline);
  // The first error of any watch.
  absl::Status AskWatches();

 private:
  absl::Status Failed(cudaError_t error);

  const std::shared_ptr<CudaContext> context_;
  Mutex mutex_;
  std::vector<std::weak_ptr<CudaWatch>> watches_ ABSL_GUARDED_BY(mutex_);
  std::array<const char*, 6> last_ ABSL_GUARDED_BY(mutex_) = {};
  size_t noted_ ABSL_GUARDED_BY(mutex_) = 0;
};

class CudaQueue {
 public:
  // `records`: may take part in recordings.
  CudaQueue(std::shared_ptr<CudaContext> context, bool records);
  // Waits for the queued work.
  ~CudaQueue();

  void Copy(void* to, const void* from, size_t bytes);
  void Zero(void* to, size_t bytes);
  void Enqueue(const char* what, const std::function<absl::Status(cudaStream_t)>& work);
  // Waits for the queued work, then runs the function.
  void Run(const std::function<absl::Status()>& work);
  void Watch(std::weak_ptr<CudaWatch> watch);
  void Stamp(int64_t& ns);
  // A point of this queue that Record marks later, on the queue's thread.
  std::shared_ptr<Event::State> NewEvent();
  void Record(Event::State& event);
  void WaitFor(const Event& event);
  absl::Status Synchronize();
  // Until EndCapture, enqueued work is recorded instead of run; anything but GPU work is an error. Another
  // queue takes part once it waits for an event of a queue that takes part.
  absl::Status BeginCapture();
  struct Captured {
    cudaGraph_t graph;  // the caller owns it
    std::shared_ptr<CudaRecording> recording;
  };
  absl::StatusOr<Captured> EndCapture();
  std::shared_ptr<CudaRecording> recording() const { return IsRecorded() ? recording_ : nullptr; }
  void Replay(cudaGraphExec_t graph, CudaRecording& recording);

 private:
  struct PendingStamp {
    cudaEvent_t event;
    int64_t* ns;
    bool recorded = false;  // the event belongs to a recording
  };

  absl::Status Open();
  bool IsRecorded() const { return recording_ != nullptr && recording_->under_way; }
  // Stores an error if work is being captured, which `what` cannot be part of.
  void RefuseInCapture(const char* what);
  absl::Status TakePart(const std::shared_ptr<CudaRecording>& recording);
  absl::Status Await();
  absl::Status SetClock();
  void ResolveStamps();

  const std::shared_ptr<CudaContext> context_;
  const std::shared_ptr<CudaWaits> waits_;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t done_ = nullptr;
  absl::Status error_;
  const bool records_;
  bool began_ = false;                        // the current recording began here
  std::shared_ptr<CudaRecording> recording_;  // the last one in which it took part
  // Times are computed from an event with a known time. CUDA returns milliseconds as a float, so that event
  // must be recent.
  cudaEvent_t origin_ = nullptr;
  int64_t origin_ns_ = 0;
  std::vector<PendingStamp> stamps_;
};

}  // namespace psring
