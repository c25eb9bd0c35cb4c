// Streams, events and captures of the fake CUDA runtime.
#pragma once

#include <sched.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "common/base/work_queue.h"
#include "common/measure/trace.h"
#include "tests/common/cuda/fake_cuda.h"
#include "tests/common/cuda/fake_cuda_memory.h"

namespace psring::fake {

// The records of an event, and which of them were reached, in memory that forked processes share. A wait is
// for one record, even if the event is recorded again.
struct Marks {
  static constexpr uint64_t kRecords = 64;  // the most in flight

  std::atomic<uint64_t> recorded;
  std::atomic<uint64_t> reached[kRecords];  // at n modulo kRecords: n, when it was reached
  std::atomic<int64_t> ns;                  // of the last one that was reached

  uint64_t Record() {
    const uint64_t record = ++recorded;
    PSRING_CHECK(record <= kRecords || Has(record - kRecords));
    return record;
  }
  void Reach(uint64_t record) {
    ns = MonotonicNanos();
    reached[record % kRecords] = record;
  }
  bool Has(uint64_t record) const { return reached[record % kRecords] >= record; }
  void Await(uint64_t record) const {
    for (int polls = 0; !Has(record); ++polls) {
      if (polls < 50) {
        sched_yield();
      } else {
        std::this_thread::sleep_for(std::chrono::microseconds(20));
      }
    }
  }
};

// Never reused: the tests need fewer.
inline Marks* NewMarks() {
  constexpr size_t kMax = 1 << 20;
  static auto* const all =
      static_cast<Marks*>(mmap(nullptr, (kMax + 1) * sizeof(Marks), PROT_READ | PROT_WRITE,
                               MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  PSRING_CHECK(all != MAP_FAILED);
  const uint64_t number = 1 + all[0].recorded++;
  PSRING_CHECK(number <= kMax);
  return &all[number];
}

// A node of a graph: work, and the nodes that it follows.
struct Node {
  int branch;  // index of the stream in the capture
  std::set<size_t> follows;
  std::function<void()> work;
};
using Nodes = std::vector<Node>;
struct FakeGraph {
  Nodes nodes;
};
struct FakeStream;
struct Capture {
  Nodes nodes;
  std::vector<FakeStream*> streams;  // the first one began the capture
  bool broken = false;
};
struct EventHandle {
  unsigned flags = 0;
  int device = 0;
  bool opened = false;
  Marks* marks = nullptr;
};
struct FakeEvent : EventHandle {
  std::weak_ptr<Capture> capture = {};  // at its last record
  std::set<size_t> follows = {};
};
struct FakeStream {
  int device = 0;
  WorkQueue queue{"fake gpu"};
  std::shared_ptr<Capture> capture = nullptr;  // in progress
  int branch = 0;
  std::set<size_t> follows = {};  // the nodes that the next node follows
};

inline FakeCuda::Pace& PaceOf(int device) { return TheFakeCuda().pace[static_cast<size_t>(device) % 8]; }

inline void Push(FakeStream& stream, std::function<void()> work) {
  FakeCuda::Pace& pace = PaceOf(stream.device);
  ++pace.enqueued;
  stream.queue.Push([&pace, work = std::move(work)] {
    while (pace.paused) std::this_thread::sleep_for(std::chrono::microseconds(20));
    work();
    ++pace.finished;
  });
}

inline void HostWaits(int device) {
  FakeCuda::Pace& pace = PaceOf(device);
  if (!pace.paused) return;
  pace.enqueued_at_wait = pace.enqueued.load();
  pace.paused = false;
}

// A poll of an event that has not happened. A few polls are not a wait.
inline void HostPolls(int device, const Marks* at) {
  constexpr int kWaits = 100;
  thread_local std::map<const Marks*, int> polls;
  if (!PaceOf(device).paused || ++polls[at] < kWaits) return;
  polls.clear();
  HostWaits(device);
}

inline void AddNode(FakeStream& stream, std::function<void()> work) {
  Nodes& nodes = stream.capture->nodes;
  nodes.push_back({stream.branch, stream.follows, std::move(work)});
  stream.follows = {nodes.size() - 1};
}

inline std::atomic<bool> failed = false;  // permanently, like a GPU after an illegal address
inline thread_local cudaError_t last_error = cudaSuccess;

// This thread's capture, if any.
inline thread_local Capture* capturing = nullptr;

// For calls that are forbidden during a capture.
inline bool Forbidden() {
  if (capturing != nullptr) capturing->broken = true;
  return capturing != nullptr;
}

inline cudaError_t Return(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

template <typename T>
cudaError_t Give(T* to, std::type_identity_t<T> value) {
  *to = value;
  return cudaSuccess;
}

inline FakeStream* Of(cudaStream_t stream) { return reinterpret_cast<FakeStream*>(stream); }
inline FakeEvent* Of(cudaEvent_t event) { return reinterpret_cast<FakeEvent*>(event); }

// GPU work: runs later, in order, with access to device memory.
inline void Do(cudaStream_t stream, std::function<void()> work) {
  if (Of(stream)->capture != nullptr) return AddNode(*Of(stream), std::move(work));
  Push(*Of(stream), [work = std::move(work)] {
    if (failed) return;
    TheArena().Open();
    work();
    TheArena().Close();
  });
}

inline bool IsSelected(cudaStream_t stream) { return Of(stream)->device == selected; }

inline void Drain(cudaStream_t stream) {
  std::promise<void> drained;
  HostWaits(Of(stream)->device);
  Of(stream)->queue.Push([&] { drained.set_value(); });
  drained.get_future().wait();
}

}  // namespace psring::fake
