// Events, captures and graphs of the fake CUDA runtime.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "tests/common/cuda/fake_cuda.h"
#include "tests/common/cuda/fake_cuda_streams.h"

namespace psring::fake {
namespace {

bool Follows(const Nodes& nodes, const std::set<size_t>& from, size_t what) {
  return std::any_of(from.begin(), from.end(),
                     [&](size_t node) { return node == what || Follows(nodes, nodes[node].follows, what); });
}

// Whether the first stream waits for the ends of all others.
bool IsJoined(const Capture& capture) {
  for (const FakeStream* stream : capture.streams) {
    for (const size_t last : stream->follows) {
      if (!Follows(capture.nodes, capture.streams[0]->follows, last)) return false;
    }
  }
  return true;
}

// Unordered work runs in both orders: alternately the first stream's work as early and as late as possible.
void RunGraph(const Nodes& nodes, bool late_first) {
  std::vector<bool> done(nodes.size());
  for (size_t i = 0; i < nodes.size(); ++i) {
    std::optional<size_t> next;
    for (size_t n = 0; n < nodes.size(); ++n) {
      const auto is_done = [&](size_t other) { return done[other]; };
      if (done[n] || !std::all_of(nodes[n].follows.begin(), nodes[n].follows.end(), is_done)) continue;
      if (!next.has_value() ||
          (late_first ? nodes[n].branch > nodes[*next].branch : nodes[n].branch < nodes[*next].branch)) {
        next = n;
      }
    }
    PSRING_CHECK(next.has_value());
    nodes[*next].work();
    done[*next] = true;
  }
}

}  // namespace
}  // namespace psring::fake

namespace fake = psring::fake;
using psring::TheFakeCuda;

extern "C" {

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  auto* const made = new fake::FakeEvent{{flags, fake::selected, false, fake::NewMarks()}};
  return fake::Give(event, reinterpret_cast<cudaEvent_t>(made));
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  if (fake::Of(event)->opened) --TheFakeCuda().opened;
  delete fake::Of(event);
  return cudaSuccess;
}
cudaError_t cudaIpcGetEventHandle(cudaIpcEventHandle_t* handle, cudaEvent_t event) {
  const unsigned needed = cudaEventInterprocess | cudaEventDisableTiming;
  if ((fake::Of(event)->flags & needed) != needed) return fake::Return(cudaErrorInvalidResourceHandle);
  std::memset(handle->reserved, 0, sizeof(handle->reserved));
  const fake::EventHandle& described = *fake::Of(event);
  std::memcpy(handle->reserved, &described, sizeof(described));
  return cudaSuccess;
}
cudaError_t cudaIpcOpenEventHandle(cudaEvent_t* event, cudaIpcEventHandle_t handle) {
  if (!TheFakeCuda().handles_open) return fake::Return(cudaErrorInvalidResourceHandle);
  fake::EventHandle described;
  std::memcpy(&described, handle.reserved, sizeof(described));
  auto* const made = new fake::FakeEvent{described};
  made->device = fake::selected;
  made->opened = true;
  *event = reinterpret_cast<cudaEvent_t>(made);
  ++TheFakeCuda().opened;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  if (fake::Of(event)->device != fake::Of(stream)->device) {
    return fake::Return(cudaErrorInvalidResourceHandle);
  }
  fake::Of(event)->capture = fake::Of(stream)->capture;
  if (fake::Of(stream)->capture != nullptr) {
    fake::Of(event)->follows = fake::Of(stream)->follows;
    return cudaSuccess;
  }
  if (fake::Forbidden()) return fake::Return(cudaErrorStreamCaptureUnsupported);
  fake::Marks* const marks = fake::Of(event)->marks;
  const uint64_t record = marks->Record();
  fake::Push(*fake::Of(stream), [=] { marks->Reach(record); });
  return cudaSuccess;
}
// At each launch of the captured graph.
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags) {
  if (flags != cudaEventRecordExternal || fake::Of(stream)->capture == nullptr) {
    return fake::Return(cudaErrorInvalidValue);
  }
  fake::AddNode(*fake::Of(stream), [marks = fake::Of(event)->marks] { marks->Reach(marks->Record()); });
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  if (fake::Forbidden()) return fake::Return(cudaErrorStreamCaptureUnsupported);
  if (!fake::Of(event)->capture.expired()) return fake::Return(cudaErrorCapturedEvent);
  const fake::Marks& marks = *fake::Of(event)->marks;
  if (!marks.Has(marks.recorded)) {
    fake::HostPolls(fake::Of(event)->device, &marks);
    return fake::Return(cudaErrorNotReady);
  }
  return fake::failed ? cudaErrorIllegalAddress : cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t from, cudaEvent_t to) {
  const auto ns = [](cudaEvent_t event) { return fake::Of(event)->marks->ns.load(); };
  return fake::Give(ms, 1e-6f * static_cast<float>(ns(to) - ns(from)));
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  fake::FakeStream& waiting = *fake::Of(stream);
  if (const auto capture = fake::Of(event)->capture.lock()) {
    if (waiting.capture == nullptr) {  // it joins the capture
      waiting.capture = capture;
      waiting.branch = static_cast<int>(capture->streams.size());
      waiting.follows.clear();
      capture->streams.push_back(&waiting);
    }
    if (waiting.capture != capture) return fake::Return(cudaErrorStreamCaptureMerge);
    waiting.follows.insert(fake::Of(event)->follows.begin(), fake::Of(event)->follows.end());
    return cudaSuccess;
  }
  if (waiting.capture != nullptr) {
    waiting.capture->broken = true;
    return fake::Return(cudaErrorStreamCaptureIsolation);
  }
  if (fake::Forbidden()) return fake::Return(cudaErrorStreamCaptureUnsupported);
  const fake::Marks* const marks = fake::Of(event)->marks;
  fake::Push(waiting, [marks, record = marks->recorded.load()] { marks->Await(record); });
  return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  // Any other mode would affect other threads.
  if (fake::Forbidden() || mode != cudaStreamCaptureModeThreadLocal) {
    return fake::Return(cudaErrorStreamCaptureUnsupported);
  }
  fake::FakeStream& first = *fake::Of(stream);
  first.capture = std::make_shared<fake::Capture>();
  first.capture->streams.push_back(&first);
  first.branch = 0;
  first.follows.clear();
  fake::capturing = first.capture.get();
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  *graph = nullptr;
  const std::shared_ptr<fake::Capture> capture = fake::Of(stream)->capture;
  if (capture == nullptr || capture.get() != fake::capturing) return fake::Return(cudaErrorIllegalState);
  if (capture->streams[0] != fake::Of(stream)) return fake::Return(cudaErrorStreamCaptureUnmatched);
  fake::capturing = nullptr;
  for (fake::FakeStream* stream : capture->streams) stream->capture = nullptr;
  if (capture->broken) return fake::Return(cudaErrorStreamCaptureInvalidated);
  if (!fake::IsJoined(*capture)) return fake::Return(cudaErrorStreamCaptureUnjoined);
  return fake::Give(graph, reinterpret_cast<cudaGraph_t>(new fake::FakeGraph{std::move(capture->nodes)}));
}
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, size_t* count) {
  if (nodes != nullptr) return fake::Return(cudaErrorNotSupported);
  return fake::Give(count, reinterpret_cast<fake::FakeGraph*>(graph)->nodes.size());
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete reinterpret_cast<fake::FakeGraph*>(graph);
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* made, cudaGraph_t graph, unsigned long long) {
  *made = reinterpret_cast<cudaGraphExec_t>(
      new fake::FakeGraph(*reinterpret_cast<const fake::FakeGraph*>(graph)));
  ++TheFakeCuda().graphs;
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) {
  delete reinterpret_cast<fake::FakeGraph*>(graph);
  --TheFakeCuda().graphs;
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream) {
  if (fake::Forbidden()) return fake::Return(cudaErrorStreamCaptureUnsupported);
  const bool late_first = TheFakeCuda().graph_launches++ % 2 == 0;
  fake::Do(stream, [nodes = reinterpret_cast<const fake::FakeGraph*>(graph)->nodes, late_first] {
    fake::RunGraph(nodes, late_first);
  });
  return cudaSuccess;
}

}  // extern "C"
