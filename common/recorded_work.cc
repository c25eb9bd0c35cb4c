#include "common/recorded_work.h"

#include <cuda_runtime_api.h>

#include "common/check.h"
#include "common/cuda_context.h"
#include "common/cuda_stream.h"

namespace psring {
namespace {

class CudaGraph : public RecordedWork {
 public:
  CudaGraph(CudaStream& stream, cudaGraphExec_t graph) : stream_(stream), graph_(graph) {}
  ~CudaGraph() override { cudaGraphExecDestroy(graph_); }

  void Replay() override {
    stream_.Enqueue("graph", [graph = graph_](cudaStream_t queue) {
      return CudaStatus("cudaGraphLaunch", cudaGraphLaunch(graph, queue));
    });
  }

 private:
  CudaStream& stream_;
  const cudaGraphExec_t graph_;
};

absl::StatusOr<std::unique_ptr<RecordedWork>> GraphOf(CudaStream& stream, cudaGraph_t graph) {
  size_t nodes = 0;
  PSRING_RETURN_IF_ERROR(CudaStatus("cudaGraphGetNodes", cudaGraphGetNodes(graph, nullptr, &nodes)));
  if (nodes == 0) return nullptr;
  cudaGraphExec_t made = nullptr;
  PSRING_RETURN_IF_ERROR(
      CudaStatus("cudaGraphInstantiate", cudaGraphInstantiateWithFlags(&made, graph, /*flags=*/0)));
  return std::make_unique<CudaGraph>(stream, made);
}

}  // namespace

absl::Status BeginRecording(Stream& stream) {
  CudaStream* const cuda = CudaStream::From(stream);
  if (cuda == nullptr) return absl::UnimplementedError("only a GPU's compute stream can be recorded");
  return cuda->BeginCapture();
}

absl::StatusOr<std::unique_ptr<RecordedWork>> EndRecording(Stream& stream) {
  CudaStream* const cuda = CudaStream::From(stream);
  PSRING_CHECK(cuda != nullptr);
  PSRING_ASSIGN_OR_RETURN(const cudaGraph_t graph, cuda->EndCapture());
  absl::StatusOr<std::unique_ptr<RecordedWork>> made = GraphOf(*cuda, graph);
  cudaGraphDestroy(graph);
  return made;
}

}  // namespace psring
