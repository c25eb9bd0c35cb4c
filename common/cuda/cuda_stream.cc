#include "common/cuda/cuda_stream.h"

#include <future>
#include <optional>
#include <utility>

#include "common/base/work_queue.h"
#include "common/cuda/cuda_queue.h"

namespace psring {
namespace {

// kCompute: calls enqueue on the GPU and return. kBackground: a thread enqueues, so that host work between
// GPU work does not block other threads.
class QueueStream : public CudaStream {
 public:
  QueueStream(std::shared_ptr<CudaContext> context, StreamKind kind, const std::string& name)
      : queue_(std::move(context), /*records=*/kind == StreamKind::kCompute) {
    if (kind == StreamKind::kBackground) thread_.emplace(name);
  }

  void Copy(void* to, const void* from, size_t bytes) override {
    Do([=, this] { queue_.Copy(to, from, bytes); });
  }
  void Zero(void* to, size_t bytes) override {
    Do([=, this] { queue_.Zero(to, bytes); });
  }
  void Run(std::function<absl::Status()> work) override {
    Do([this, work = std::move(work)] { queue_.Run(work); });
  }
  void Stamp(int64_t& ns) override {
    Do([this, &ns] { queue_.Stamp(ns); });
  }
  void WaitFor(const Event& event) override {
    Do([this, event] { queue_.WaitFor(event); });
  }
  void Enqueue(const char* what, std::function<absl::Status(cudaStream_t)> work) override {
    Do([this, what, work = std::move(work)] { queue_.Enqueue(what, work); });
  }
  void Watch(std::weak_ptr<CudaWatch> watch) override {
    Do([this, watch = std::move(watch)] { queue_.Watch(watch); });
  }
  void Replay(cudaGraphExec_t graph, CudaRecording& recording) override {
    Do([this, graph, &recording] { queue_.Replay(graph, recording); });
  }

  // Work of another thread cannot be part of a caller's recording.
  absl::Status BeginCapture() override {
    if (!thread_.has_value()) return queue_.BeginCapture();
    return absl::UnimplementedError("only a GPU's compute stream can be recorded");
  }
  absl::StatusOr<Captured> EndCapture() override {
    if (!thread_.has_value()) return queue_.EndCapture();
    return BeginCapture();
  }
  std::shared_ptr<CudaRecording> recording() override { return queue_.recording(); }

  Event Record() override {
    std::shared_ptr<Event::State> event = queue_.NewEvent();
    Do([this, event] { queue_.Record(*event); });
    return Event(std::move(event));
  }

  // Every item has its own deadline, so this wait ends too.
  absl::Status Synchronize() override {
    if (!thread_.has_value()) return queue_.Synchronize();
    const auto result = std::make_shared<std::promise<absl::Status>>();
    thread_->Push([this, result] { result->set_value(queue_.Synchronize()); });
    return result->get_future().get();
  }

 private:
  template <typename Work>
  void Do(Work work) {
    if (thread_.has_value()) {
      thread_->Push(std::move(work));
    } else {
      work();
    }
  }

  CudaQueue queue_;
  std::optional<WorkQueue> thread_;  // last: its work uses the above
};

}  // namespace

CudaRecording::~CudaRecording() {
  for (const Stamp& stamp : stamps) context_->GiveBack(CudaContext::EventUse::kTime, stamp.event);
}

std::unique_ptr<Stream> NewCudaStream(std::shared_ptr<CudaContext> context, StreamKind kind,
                                      const std::string& name) {
  return std::make_unique<QueueStream>(std::move(context), kind, name);
}

}  // namespace psring
