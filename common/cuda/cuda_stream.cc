#include "common/cuda/cuda_stream.h"

#include <future>
#include <optional>
#include <utility>

#include "common/base/check.h"
#include "common/base/errors.h"
#include "common/base/work_queue.h"
#include "common/cuda/cuda_queue.h"
#include "common/cuda/recorded_work.h"

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

  // For RecordedWork. Null: work of another thread cannot be part of a caller's recording.
  CudaQueue* recordable() { return thread_.has_value() ? nullptr : &queue_; }

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

class CudaGraph : public RecordedWork {
 public:
  CudaGraph(CudaQueue& queue, cudaGraphExec_t graph, std::shared_ptr<CudaRecording> recording)
      : queue_(queue), graph_(graph), recording_(std::move(recording)) {}
  ~CudaGraph() override { cudaGraphExecDestroy(graph_); }

  void Replay() override { queue_.Replay(graph_, *recording_); }

 private:
  CudaQueue& queue_;
  const cudaGraphExec_t graph_;
  const std::shared_ptr<CudaRecording> recording_;
};

absl::StatusOr<std::unique_ptr<RecordedWork>> GraphOf(CudaQueue& queue, CudaQueue::Captured captured) {
  size_t nodes = 0;
  PSRING_RETURN_IF_ERROR(CudaStatus("cudaGraphGetNodes", cudaGraphGetNodes(captured.graph, nullptr, &nodes)));
  if (nodes == 0) return nullptr;
  cudaGraphExec_t made = nullptr;
  PSRING_RETURN_IF_ERROR(
      CudaStatus("cudaGraphInstantiate", cudaGraphInstantiateWithFlags(&made, captured.graph, /*flags=*/0)));
  return std::make_unique<CudaGraph>(queue, made, std::move(captured.recording));
}

CudaQueue* RecordableQueueOf(Stream& stream) {
  auto* const of_a_gpu = dynamic_cast<QueueStream*>(&stream);
  return of_a_gpu == nullptr ? nullptr : of_a_gpu->recordable();
}

}  // namespace

CudaRecording::~CudaRecording() {
  for (const Stamp& stamp : stamps) context_->GiveBack(CudaContext::EventUse::kTime, stamp.event);
}

std::unique_ptr<Stream> NewCudaStream(std::shared_ptr<CudaContext> context, StreamKind kind,
                                      const std::string& name) {
  return std::make_unique<QueueStream>(std::move(context), kind, name);
}

absl::Status BeginRecording(Stream& stream) {
  CudaQueue* const queue = RecordableQueueOf(stream);
  if (queue == nullptr) return Unimplemented("only a GPU's compute stream can be recorded");
  return queue->BeginCapture();
}

absl::StatusOr<std::unique_ptr<RecordedWork>> EndRecording(Stream& stream) {
  CudaQueue* const queue = RecordableQueueOf(stream);
  PSRING_CHECK(queue != nullptr);
  PSRING_ASSIGN_OR_RETURN(const CudaQueue::Captured captured, queue->EndCapture());
  absl::StatusOr<std::unique_ptr<RecordedWork>> made = GraphOf(*queue, captured);
  cudaGraphDestroy(captured.graph);
  return made;
}

}  // namespace psring
