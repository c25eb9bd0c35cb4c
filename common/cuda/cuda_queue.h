// One CUDA stream and what psring remembers about it. Used by one thread at a time; cuda_stream.cc puts the
// two kinds of Stream around it.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/mutex.h"
#include "common/cuda/cuda_context.h"
#include "common/cuda/cuda_stream.h"
#include "common/device/device.h"

namespace psring {

// What a wait for a stream needs to know, shared with the events of the stream. Thread-safe.
class CudaWaits {
 public:
  explicit CudaWaits(std::shared_ptr<CudaContext> context) : context_(std::move(context)) {}

  void Add(std::weak_ptr<CudaWatch> watch);
  void AddThoseOf(CudaWaits& other);
  // Notes that `what` was enqueued, for the error of something that fails later.
  void Note(const char* what);

  // Until `event` has happened. DeadlineExceeded names the device; the GPU's own failure comes with the last
  // calls before it.
  absl::Status Await(cudaEvent_t event, absl::Time deadline);
  // The first error that one of them has.
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
  // Waits for what is queued.
  ~CudaQueue();

  void Copy(void* to, const void* from, size_t bytes);
  void Zero(void* to, size_t bytes);
  void Enqueue(const char* what, const std::function<absl::Status(cudaStream_t)>& work);
  // Waits, then works.
  void Run(const std::function<absl::Status()>& work);
  void Watch(std::weak_ptr<CudaWatch> watch);
  void Stamp(int64_t& ns);
  // A point of this queue that Record can be told to mark later, from the queue's thread.
  std::shared_ptr<Event::State> NewEvent();
  void Record(Event::State& event);
  void WaitFor(const Event& event);
  absl::Status Synchronize();
  // Until EndCapture, what is enqueued is noted and not done; all that is no work of the GPU's is an error.
  // Another queue takes part from where it waits for an event of one that does.
  absl::Status BeginCapture();
  absl::StatusOr<CudaStream::Captured> EndCapture();
  std::shared_ptr<CudaRecording> recording() const { return IsRecorded() ? recording_ : nullptr; }
  void Replay(cudaGraphExec_t graph, CudaRecording& recording);

 private:
  struct PendingStamp {
    cudaEvent_t event;
    int64_t* ns;
    bool recorded = false;  // the event is a recording's
  };

  absl::Status Open();
  bool IsRecorded() const { return recording_ != nullptr && recording_->under_way; }
  // Notes the error where work is being captured, to which `what` cannot belong.
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
  bool began_ = false;                        // the recording under way
  std::shared_ptr<CudaRecording> recording_;  // the last that it took part in
  // Times are told from an event whose moment is known: milliseconds in a float, so it must not be long ago.
  cudaEvent_t origin_ = nullptr;
  int64_t origin_ns_ = 0;
  std::vector<PendingStamp> stamps_;
};

}  // namespace psring
