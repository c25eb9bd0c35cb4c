#include "common/cuda/cuda_stream.h"

#include <utility>

#include "common/base/mutex.h"
#include "common/base/work_queue.h"
#include "common/cuda/cuda_queue.h"

namespace psring {
namespace {

// The caller's own stream: its calls enqueue on the GPU and return.
class ComputeStream : public CudaStream {
 public:
  explicit ComputeStream(std::shared_ptr<CudaContext> context)
      : queue_(std::move(context), /*records=*/true) {}

  void Copy(void* to, const void* from, size_t bytes) override { queue_.Copy(to, from, bytes); }
  void Zero(void* to, size_t bytes) override { queue_.Zero(to, bytes); }
  void Run(std::function<absl::Status()> work) override { queue_.Run(work); }
  void Stamp(int64_t& ns) override { queue_.Stamp(ns); }
  void WaitFor(const Event& event) override { queue_.WaitFor(event); }
  absl::Status Synchronize() override { return queue_.Synchronize(); }

  Event Record() override {
    std::shared_ptr<Event::State> event = queue_.NewEvent();
    queue_.Record(*event);
    return Event(std::move(event));
  }

  void Enqueue(const char* what, std::function<absl::Status(cudaStream_t)> work) override {
    queue_.Enqueue(what, work);
  }

  void Watch(std::weak_ptr<CudaWatch> watch) override { queue_.Watch(std::move(watch)); }
  absl::Status BeginCapture() override { return queue_.BeginCapture(); }
  absl::StatusOr<Captured> EndCapture() override { return queue_.EndCapture(); }
  std::shared_ptr<CudaRecording> recording() override { return queue_.recording(); }
  void Replay(cudaGraphExec_t graph, CudaRecording& recording) override { queue_.Replay(graph, recording); }

 private:
  CudaQueue queue_;
};

// A thread that enqueues, so that host work between GPU work does not block other threads.
class BackgroundStream : public CudaStream {
 public:
  BackgroundStream(std::shared_ptr<CudaContext> context, const std::string& name)
      : queue_(std::move(context), /*records=*/false), thread_(name) {}

  void Copy(void* to, const void* from, size_t bytes) override {
    thread_.Push([=, this] { queue_.Copy(to, from, bytes); });
  }
  void Zero(void* to, size_t bytes) override {
    thread_.Push([=, this] { queue_.Zero(to, bytes); });
  }
  void Run(std::function<absl::Status()> work) override {
    thread_.Push([this, work = std::move(work)] { queue_.Run(work); });
  }
  void Stamp(int64_t& ns) override {
    thread_.Push([this, &ns] { queue_.Stamp(ns); });
  }
  void WaitFor(const Event& event) override {
    thread_.Push([this, event] { queue_.WaitFor(event); });
  }
  void Enqueue(const char* what, std::function<absl::Status(cudaStream_t)> work) override {
    thread_.Push([this, what, work = std::move(work)] { queue_.Enqueue(what, work); });
  }
  void Watch(std::weak_ptr<CudaWatch> watch) override {
    thread_.Push([this, watch = std::move(watch)] { queue_.Watch(watch); });
  }
  // Work of another thread cannot be part of a caller's recording.
  absl::Status BeginCapture() override {
    return absl::UnimplementedError("only a GPU's compute stream can be recorded");
  }
  absl::StatusOr<Captured> EndCapture() override { return BeginCapture(); }
  std::shared_ptr<CudaRecording> recording() override { return nullptr; }
  void Replay(cudaGraphExec_t graph, CudaRecording& recording) override {
    thread_.Push([this, graph, &recording] { queue_.Replay(graph, recording); });
  }

  Event Record() override {
    std::shared_ptr<Event::State> event = queue_.NewEvent();
    thread_.Push([this, event] { queue_.Record(*event); });
    return Event(std::move(event));
  }

  // Every item has its own deadline, so this wait ends too.
  absl::Status Synchronize() override {
    Mutex mutex;
    CondVar changed;
    bool done = false;
    absl::Status status;
    thread_.Push([&] {
      const absl::Status result = queue_.Synchronize();
      MutexLock lock(mutex);
      status = result;
      done = true;
      changed.NotifyAll();
    });
    MutexLock lock(mutex);
    while (!done) changed.Wait(mutex);
    return status;
  }

 private:
  CudaQueue queue_;
  WorkQueue thread_;  // last: its work uses the above
};

}  // namespace

CudaRecording::~CudaRecording() {
  for (const Stamp& stamp : stamps) context_->GiveBack(CudaContext::EventUse::kTime, stamp.event);
}

std::unique_ptr<Stream> NewCudaStream(std::shared_ptr<CudaContext> context, StreamKind kind,
                                      const std::string& name) {
  if (kind == StreamKind::kCompute) return std::make_unique<ComputeStream>(std::move(context));
  return std::make_unique<BackgroundStream>(std::move(context), name);
}

}  // namespace psring
