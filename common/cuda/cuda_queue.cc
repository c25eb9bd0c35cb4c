#include "common/cuda/cuda_queue.h"

#include <sched.h>

#include <cmath>

#include "absl/time/clock.h"
#include "common/base/check.h"
#include "common/base/errors.h"
#include "common/measure/trace.h"

namespace psring {
namespace {

using Use = CudaContext::EventUse;

constexpr absl::Duration kSpin =
    absl::Milliseconds(1);  // covers a step's waits; then it sleeps between polls
constexpr absl::Duration kLook = absl::Microseconds(50);
// Longer than any GPU work of ours between two waits. Work that depends on peers has a watch with a shorter
// deadline.
constexpr absl::Duration kStuck = absl::Minutes(10);
// How long work may still run after its peers have failed.
constexpr absl::Duration kGivenUp = absl::Seconds(1);
constexpr int64_t kOldOriginNs = 10'000'000'000;

// A point of a CudaQueue, marked by the queue's thread.
class CudaEvent : public Event::State {
 public:
  CudaEvent(std::shared_ptr<CudaContext> context, std::shared_ptr<CudaWaits> waits)
      : context_(std::move(context)), waits_(std::move(waits)) {}

  ~CudaEvent() override {
    if (event_ != nullptr) context_->GiveBack(Use::kOrder, event_);
  }

  // `error` of the work so far; if it is OK, `stream` marks the point, within `recording` unless that is
  // null.
  absl::Status Record(absl::Status error, cudaStream_t stream, std::shared_ptr<CudaRecording> recording) {
    cudaEvent_t event = nullptr;
    if (error.ok()) {
      absl::StatusOr<cudaEvent_t> taken = context_->TakeEvent(Use::kOrder);
      if (taken.ok()) event = *taken;
      error = taken.ok() ? CudaStatus("cudaEventRecord", cudaEventRecord(event, stream)) : taken.status();
    }
    MutexLock lock(mutex_);
    event_ = event;
    error_ = error;
    recording_ = std::move(recording);
    recorded_ = true;
    changed_.NotifyAll();
    return error;
  }

  bool Happened() const override {
    MutexLock lock(mutex_);
    if (recorded_ && recording_ != nullptr) return false;
    return recorded_ && (!error_.ok() || QueryEvent(event_) != cudaErrorNotReady);
  }

  absl::Status Wait(MonotonicTime deadline) override {
    PSRING_RETURN_IF_ERROR(WaitUntilRecorded(deadline));
    if (recording_ != nullptr) {
      return Internal(context_->name(), ": cannot wait for a point of recorded work");
    }
    return waits_->Await(event_, deadline);
  }

  // The recording that contains the point; null: none.
  absl::StatusOr<std::shared_ptr<CudaRecording>> recording() {
    PSRING_RETURN_IF_ERROR(WaitUntilRecorded(MonotonicNow() + kStuck));
    return recording_;
  }

  // Later work on `stream` starts after this event. `waits` gets this event's watches.
  absl::Status Precede(cudaStream_t stream, CudaWaits& waits) {
    PSRING_RETURN_IF_ERROR(WaitUntilRecorded(MonotonicNow() + kStuck));
    if (&waits != waits_.get()) waits.AddThoseOf(*waits_);
    return CudaStatus("cudaStreamWaitEvent", cudaStreamWaitEvent(stream, event_, 0));
  }

 private:
  absl::Status WaitUntilRecorded(MonotonicTime deadline) {
    MutexLock lock(mutex_);
    while (!recorded_) {
      if (!changed_.WaitUntil(mutex_, deadline) && !recorded_) {
        return DeadlineExceeded(context_->name(),
                                ": the work before an event was not enqueued by the deadline");
      }
    }
    return error_;
  }

  const std::shared_ptr<CudaContext> context_;
  const std::shared_ptr<CudaWaits> waits_;
  mutable Mutex mutex_;
  CondVar changed_;
  bool recorded_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status error_ ABSL_GUARDED_BY(mutex_);
  cudaEvent_t event_ = nullptr;               // written once, before recorded_
  std::shared_ptr<CudaRecording> recording_;  // likewise
};

}  // namespace

void CudaWaits::Add(std::weak_ptr<CudaWatch> watch) {
  MutexLock lock(mutex_);
  std::erase_if(watches_, [&](const std::weak_ptr<CudaWatch>& w) {
    return w.expired() ||
           (!w.owner_before(watch) && !watch.owner_before(w));  // destroyed, or present already
  });
  watches_.push_back(std::move(watch));
}

void CudaWaits::AddThoseOf(CudaWaits& other) {
  std::vector<std::weak_ptr<CudaWatch>> watches;
  {
    MutexLock lock(other.mutex_);
    watches = other.watches_;
  }
  for (const std::weak_ptr<CudaWatch>& watch : watches) Add(watch);
}

void CudaWaits::Note(const char* what) {
  MutexLock lock(mutex_);
  last_[noted_++ % last_.size()] = what;
}

absl::Status CudaWaits::Await(cudaEvent_t event, MonotonicTime deadline) {
  const MonotonicTime begin = MonotonicNow();
  while (true) {
    const cudaError_t state = QueryEvent(event);
    if (state == cudaSuccess) return absl::OkStatus();
    if (state != cudaErrorNotReady) return Failed(state);
    const MonotonicTime now = MonotonicNow();
    if (absl::Status gone = AskWatches(); !gone.ok()) {
      // The failure also ends the enqueued work. Waits briefly for that, since its memory is freed next.
      while (QueryEvent(event) == cudaErrorNotReady && MonotonicNow() < now + kGivenUp) absl::SleepFor(kLook);
      return gone;
    }
    if (now > deadline) {
      return DeadlineExceeded(context_->name(), ": the enqueued work was not done after ",
                              absl::FormatDuration(now - begin), " of waiting");
    }
    if (now > begin + kSpin) {
      absl::SleepFor(kLook);
    } else {
      sched_yield();
    }
  }
}

absl::Status CudaWaits::AskWatches() {
  std::vector<std::shared_ptr<CudaWatch>> watches;
  {
    MutexLock lock(mutex_);
    for (const std::weak_ptr<CudaWatch>& weak : watches_) {
      if (std::shared_ptr<CudaWatch> watch = weak.lock()) watches.push_back(std::move(watch));
    }
  }
  for (const auto& watch : watches) PSRING_RETURN_IF_ERROR(watch->Look());
  return absl::OkStatus();
}

// The GPU does not tell which call failed, so the error names the candidates.
absl::Status CudaWaits::Failed(cudaError_t error) {
  std::string calls;
  MutexLock lock(mutex_);
  for (size_t i = noted_ < last_.size() ? 0 : noted_ - last_.size(); i < noted_; ++i) {
    absl::StrAppend(&calls, calls.empty() ? "" : ", ", last_[i % last_.size()]);
  }
  return Internal(context_->name(), ": ", cudaGetErrorString(error),
                  "; the last calls before it, oldest first: ", calls,
                  " (CUDA_LAUNCH_BLOCKING=1 shows the failing call)");
}

CudaQueue::CudaQueue(std::shared_ptr<CudaContext> context, bool records)
    : context_(std::move(context)),
      waits_(std::make_shared<CudaWaits>(context_)),
      error_(Open()),
      records_(records) {}

absl::Status CudaQueue::Open() {
  PSRING_RETURN_IF_ERROR(context_->Select());
  PSRING_RETURN_IF_ERROR(
      CudaStatus("cudaStreamCreate", cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking)));
  PSRING_ASSIGN_OR_RETURN(done_, context_->TakeEvent(Use::kOrder));
  return absl::OkStatus();
}

CudaQueue::~CudaQueue() {
  if (began_) {
    const absl::StatusOr<CudaQueue::Captured> captured = EndCapture();
    if (captured.ok()) cudaGraphDestroy(captured->graph);
  }
  if (error_.ok()) {
    (void)Await();
  } else if (done_ != nullptr && cudaEventRecord(done_, stream_) == cudaSuccess) {
    // Work that was enqueued before the error may still use memory that its owner frees next.
    const MonotonicTime deadline = MonotonicNow() + kGivenUp;
    while (QueryEvent(done_) == cudaErrorNotReady && MonotonicNow() < deadline) absl::SleepFor(kLook);
  }
  for (const PendingStamp& stamp : stamps_) {
    if (!stamp.recorded) context_->GiveBack(Use::kTime, stamp.event);
  }
  if (origin_ != nullptr) context_->GiveBack(Use::kTime, origin_);
  if (done_ != nullptr) context_->GiveBack(Use::kOrder, done_);
  if (stream_ != nullptr) cudaStreamDestroy(stream_);
}

void CudaQueue::Copy(void* to, const void* from, size_t bytes) {
  if (bytes == 0) return;
  Enqueue("copy", [&](cudaStream_t stream) {
    return CudaStatus("cudaMemcpyAsync", cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream));
  });
}

void CudaQueue::Zero(void* to, size_t bytes) {
  if (bytes == 0) return;
  Enqueue("zero", [&](cudaStream_t stream) {
    return CudaStatus("cudaMemsetAsync", cudaMemsetAsync(to, 0, bytes, stream));
  });
}

void CudaQueue::Enqueue(const char* what, const std::function<absl::Status(cudaStream_t)>& work) {
  if (!error_.ok()) return;
  waits_->Note(what);
  error_ = context_->Select();
  if (error_.ok()) error_ = work(stream_);
  // A failed kernel launch is reported here.
  if (error_.ok()) error_ = CudaStatus("launch", cudaGetLastError());
  if (!error_.ok()) error_ = Prefixed(error_, context_->name(), ": ", what, ": ");
}

void CudaQueue::Watch(std::weak_ptr<CudaWatch> watch) {
  if (IsRecorded()) recording_->watches.push_back(watch);
  waits_->Add(std::move(watch));
}

void CudaQueue::Run(const std::function<absl::Status()>& work) {
  RefuseInCapture("host work");
  if (error_.ok()) error_ = Await();
  if (error_.ok()) error_ = work();
}

absl::Status CudaQueue::Await() {
  PSRING_RETURN_IF_ERROR(context_->Select());
  PSRING_RETURN_IF_ERROR(CudaStatus("cudaEventRecord", cudaEventRecord(done_, stream_)));
  return waits_->Await(done_, MonotonicNow() + kStuck);
}

void CudaQueue::Stamp(int64_t& ns) {
  if (origin_ == nullptr && error_.ok() && !IsRecorded()) error_ = SetClock();
  if (!error_.ok()) return;
  absl::StatusOr<cudaEvent_t> event = context_->TakeEvent(Use::kTime);
  error_ = event.status();
  if (!error_.ok()) return;
  if (IsRecorded()) {  // the graph marks it at each replay
    recording_->stamps.push_back({*event, &ns});
    error_ = CudaStatus("cudaEventRecordWithFlags",
                        cudaEventRecordWithFlags(*event, stream_, cudaEventRecordExternal));
    return;
  }
  stamps_.push_back({*event, &ns});
  error_ = CudaStatus("cudaEventRecord", cudaEventRecord(*event, stream_));
}

// The host notices the event some microseconds late, which limits the accuracy of time stamps.
absl::Status CudaQueue::SetClock() {
  PSRING_RETURN_IF_ERROR(context_->Select());
  if (origin_ == nullptr) {
    PSRING_ASSIGN_OR_RETURN(origin_, context_->TakeEvent(Use::kTime));
  }
  PSRING_RETURN_IF_ERROR(CudaStatus("cudaEventRecord", cudaEventRecord(origin_, stream_)));
  PSRING_RETURN_IF_ERROR(waits_->Await(origin_, MonotonicNow() + kStuck));
  origin_ns_ = MonotonicNanos();
  return absl::OkStatus();
}

void CudaQueue::ResolveStamps() {
  for (const PendingStamp& stamp : stamps_) {
    float ms = 0;
    if (error_.ok())
      error_ = CudaStatus("cudaEventElapsedTime", cudaEventElapsedTime(&ms, origin_, stamp.event));
    *stamp.ns = origin_ns_ + std::llround(1e6 * double{ms});
    if (!stamp.recorded) context_->GiveBack(Use::kTime, stamp.event);
  }
  const bool any = !stamps_.empty();
  stamps_.clear();
  if (any && error_.ok() && MonotonicNanos() - origin_ns_ > kOldOriginNs) error_ = SetClock();
}

std::shared_ptr<Event::State> CudaQueue::NewEvent() { return std::make_shared<CudaEvent>(context_, waits_); }

void CudaQueue::Record(Event::State& event) {
  if (error_.ok()) error_ = context_->Select();
  error_ = static_cast<CudaEvent&>(event).Record(error_, stream_, recording());
}

void CudaQueue::WaitFor(const Event& event) {
  if (!error_.ok() || event.state() == nullptr) return;
  auto* const of_a_gpu = dynamic_cast<CudaEvent*>(event.state());
  if (of_a_gpu == nullptr) RefuseInCapture("a wait for unrecorded work");
  if (error_.ok()) error_ = context_->Select();
  if (!error_.ok()) return;
  if (of_a_gpu == nullptr) {
    error_ = event.Wait(MonotonicNow() + kStuck);
    return;
  }
  const absl::StatusOr<std::shared_ptr<CudaRecording>> recorded = of_a_gpu->recording();
  error_ = recorded.ok() ? TakePart(*recorded) : recorded.status();
  if (error_.ok()) error_ = of_a_gpu->Precede(stream_, *waits_);
}

// This queue waits for a point of `recorded`; null: for a point that is not recorded.
absl::Status CudaQueue::TakePart(const std::shared_ptr<CudaRecording>& recorded) {
  if (recorded == recording()) return absl::OkStatus();
  if (recorded == nullptr) {
    RefuseInCapture("a wait for unrecorded work");
    return error_;
  }
  if (!recorded->under_way || IsRecorded() || !records_) {
    return Internal(context_->name(), ": a wait for a point of recorded work, ",
                    records_ ? "which is not under way" : "in which only compute streams take part");
  }
  recording_ = recorded;
  return absl::OkStatus();
}

// Only this thread captures; other threads are not affected.
absl::Status CudaQueue::BeginCapture() {
  if (error_.ok()) error_ = context_->Select();
  if (error_.ok()) {
    error_ = CudaStatus("cudaStreamBeginCapture",
                        cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
  }
  began_ = error_.ok();
  if (began_) recording_ = std::make_shared<CudaRecording>(context_);
  return error_;
}

absl::StatusOr<CudaQueue::Captured> CudaQueue::EndCapture() {
  if (!began_) return Internal("no capture has begun");
  began_ = false;
  recording_->under_way = false;
  cudaGraph_t graph = nullptr;
  // An error during the capture is more specific than the capture's own.
  const absl::Status status = CudaStatus("cudaStreamEndCapture", cudaStreamEndCapture(stream_, &graph));
  if (error_.ok()) error_ = status;
  if (error_.ok()) return Captured{graph, recording_};
  if (graph != nullptr) cudaGraphDestroy(graph);
  return error_;
}

void CudaQueue::Replay(cudaGraphExec_t graph, CudaRecording& recording) {
  for (const auto& watch : recording.watches) waits_->Add(watch);
  // A recording must not be launched after one of its watches has failed.
  if (error_.ok()) error_ = waits_->AskWatches();
  if (error_.ok() && origin_ == nullptr && !recording.stamps.empty()) error_ = SetClock();
  Enqueue("graph", [&](cudaStream_t stream) {
    PSRING_RETURN_IF_ERROR(CudaStatus("cudaGraphLaunch", cudaGraphLaunch(graph, stream)));
    for (const auto& call : recording.behind) PSRING_RETURN_IF_ERROR(call(stream));
    return absl::OkStatus();
  });
  if (!error_.ok()) return;
  for (const CudaRecording::Stamp& stamp : recording.stamps) {
    stamps_.push_back({stamp.event, stamp.ns, /*recorded=*/true});
  }
}

void CudaQueue::RefuseInCapture(const char* what) {
  if (!IsRecorded() || !error_.ok()) return;
  error_ = Internal(context_->name(), ": ", what, " while work is recorded");
}

absl::Status CudaQueue::Synchronize() {
  RefuseInCapture("a wait of the host");
  if (error_.ok()) error_ = Await();
  ResolveStamps();
  return error_;
}

}  // namespace psring
