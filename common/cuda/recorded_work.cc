#include "common/cuda/recorded_work.h"

#include <cuda_runtime_api.h>

#include <utility>

#include "common/base/check.h"
#include "common/cuda/cuda_context.h"
#include "common/cuda/cuda_stream.h"

namespace psring {
namespace {

class CudaGraph : public RecordedWork {
 public:
  CudaGraph(CudaStream& stream, cudaGraphExec_t graph, std::shared_ptr<CudaRecording> recording)
      : stream_(stream), graph_(graph), recording_(std::move(recording)) {}
  ~CudaGraph() override { cudaGraphExecDestroy(graph_); }

  void Replay() override { stream_.Replay(graph_, *recording_); }

 private:
  CudaStream& stream_;
  const cudaGraphExec_t graph_;
  const std::shared_ptr<CudaRecording> recording_;
};

absl::StatusOr<std::unique_ptr<RecordedWork>> GraphOf(CudaStream& stream, CudaStream::Captured captured) {
  size_t nodes = 0;
  PSRING_RETURN_IF_ERROR(CudaStatus("cudaGraphGetNodes", cudaGraphGetNodes(captured.graph, nullptr, &nodes)));
  if (nodes == 0) return nullptr;
  cudaGraphExec_t made = nullptr;
  PSRING_RETURN_IF_ERROR(
      CudaStatus("cudaGraphInstantiate", cudaGraphInstantiateWithFlags(&made, captured.graph, /*flags=*/0)));
  return std::make_unique<CudaGraph>(stream, made, std::move(captured.recording));
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
  PSRING_ASSIGN_OR_RETURN(const CudaStream::Captured captured, cuda->EndCapture());
  absl::StatusOr<std::unique_ptr<RecordedWork>> made = GraphOf(*cuda, captured);
  cudaGraphDestroy(captured.graph);
  return made;
}

}  // namespace psring
