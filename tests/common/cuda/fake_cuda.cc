#include "tests/common/cuda/fake_cuda.h"

#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <future>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <thread>
#include <vector>

#include "common/base/check.h"
#include "common/base/mutex.h"
#include "common/base/work_queue.h"
#include "common/cuda/cuda_kernels.h"
#include "common/cuda/cuda_stream.h"
#include "common/cuda_ops/cuda_launcher.h"
#include "common/measure/trace.h"
#include "tests/common/cuda/gpu_in_loops.h"

namespace psring {

FakeCuda& TheFakeCuda() {
  static FakeCuda fake;
  return fake;
}

namespace {

constexpr size_t kArena = size_t{1100} << 20;
constexpr size_t kPage = 4096;

thread_local int selected = 0;

// Device memory: one mapping, or two if opened handles have other addresses. Protected except while the fake
// works in it.
class Arena {
 public:
  Arena() {
    if (!TheFakeCuda().opens_elsewhere) {
      memory_ = opened_ = Map(MAP_PRIVATE | MAP_ANONYMOUS, -1);
      // Its protection changes for every piece of work, in time proportional to its pages.
      (void)madvise(memory_, kArena, MADV_HUGEPAGE);
      return;
    }
    const int fd = memfd_create("fake gpu", MFD_CLOEXEC);
    PSRING_CHECK(fd >= 0 && ftruncate(fd, kArena) == 0);
    memory_ = Map(MAP_SHARED, fd);
    opened_ = Map(MAP_SHARED, fd);
    close(fd);
  }

  void* Allocate(size_t bytes) {
    std::lock_guard lock(mutex_);
    bytes = (bytes + kPage - 1) / kPage * kPage;
    if (TheFakeCuda().used + bytes > TheFakeCuda().memory) return nullptr;
    size_t at = TheFakeCuda().memory_from;
    for (const auto& [first, taken] : taken_) {
      if (first - at >= bytes) break;
      at = first + taken.bytes;
    }
    if (at + bytes > kArena) return nullptr;
    taken_[at] = {bytes, selected};
    Reach(at + bytes);
    TheFakeCuda().used += bytes;
    ++TheFakeCuda().buffers;
    return memory_ + at;
  }

  void Free(void* memory) {
    std::lock_guard lock(mutex_);
    const auto it = taken_.find(static_cast<char*>(memory) - memory_);
    PSRING_CHECK(it != taken_.end());
    TheFakeCuda().used -= it->second.bytes;
    --TheFakeCuda().buffers;
    taken_.erase(it);
  }

  bool Owns(const void* address) const { return address >= memory_ && address < memory_ + kArena; }
  bool Holds(const void* address) const {
    return Owns(address) || (address >= opened_ && address < opened_ + kArena);
  }
  // The address at which a process that opens a handle sees the owner's `address`.
  void* Opened(const void* address) const { return opened_ + (static_cast<const char*>(address) - memory_); }
  struct Taken {
    size_t bytes = 0;
    int device = -1;
  };
  // This process's buffer that contains the address.
  Taken Holding(const void* address) {
    std::lock_guard lock(mutex_);
    auto it = taken_.upper_bound(static_cast<size_t>(static_cast<const char*>(address) - memory_));
    return it == taken_.begin() ? Taken() : std::prev(it)->second;
  }
  // The end of another process's memory.
  void ReachTo(const void* end) {
    std::lock_guard lock(mutex_);
    Reach(static_cast<size_t>(static_cast<const char*>(end) - memory_));
  }

  void Open() {
    std::lock_guard lock(mutex_);
    if (open_++ == 0) Protect(PROT_READ | PROT_WRITE);
  }
  void Close() {
    std::lock_guard lock(mutex_);
    if (--open_ == 0) Protect(PROT_NONE);
  }

 private:
  // The rest is always protected.
  void Reach(size_t end) {
    if (end <= reach_) return;
    reach_ = end;
    if (open_ > 0) Protect(PROT_READ | PROT_WRITE);
  }
  static char* Map(int flags, int fd) {
    void* const memory = mmap(nullptr, kArena, PROT_NONE, flags | MAP_NORESERVE, fd, 0);
    PSRING_CHECK(memory != MAP_FAILED);
    return static_cast<char*>(memory);
  }
  void Protect(int protection) {
    PSRING_CHECK(mprotect(memory_, reach_, protection) == 0);
    if (opened_ != memory_) PSRING_CHECK(mprotect(opened_, reach_, protection) == 0);
  }

  std::mutex mutex_;
  char *memory_, *opened_;
  int open_ = 0;
  size_t reach_ = 0;               // where the last buffer so far ended
  std::map<size_t, Taken> taken_;  // by first byte
};

// The contents of a memory handle; at the same address in forked processes.
struct MemoryHandle {
  char* memory;
  size_t bytes;
};

Arena& TheArena() {
  static Arena* const arena = new Arena;
  return *arena;
}

std::mutex pinned_mutex;
std::map<const char*, size_t>& Pinned() {
  static auto* const pinned = new std::map<const char*, size_t>;
  return *pinned;
}

bool IsPinned(const void* address) {
  std::lock_guard lock(pinned_mutex);
  auto it = Pinned().upper_bound(static_cast<const char*>(address));
  if (it == Pinned().begin()) return false;
  --it;
  return static_cast<const char*>(address) < it->first + it->second;
}

// The records of an event, and those that were reached; in memory that forked processes share. The n-th
// record is reached when its stream gets there, whatever the event has recorded since: a wait is for one
// record.
struct Marks {
  static constexpr uint64_t kRecords = 64;  // under way together, at most

  std::atomic<uint64_t> told;
  std::atomic<uint64_t> reached[kRecords];  // at n modulo their number: n, once it is done
  std::atomic<int64_t> ns;                  // when the last that is done was

  uint64_t Tell() {
    const uint64_t record = ++told;
    PSRING_CHECK(record <= kRecords || Has(record - kRecords));
    return record;
  }
  void Reach(uint64_t record) {
    ns = MonotonicNanos();
    reached[record % kRecords] = record;
  }
  bool Has(uint64_t record) const { return reached[record % kRecords] >= record; }
  void Await(uint64_t record) const {
    for (int looks = 0; !Has(record); ++looks) {
      if (looks < 50) {
        sched_yield();
      } else {
        std::this_thread::sleep_for(std::chrono::microseconds(20));
      }
    }
  }
};

// Never reused: there are more than the tests need.
Marks* NewMarks() {
  constexpr size_t kMost = 1 << 20;
  static auto* const all =
      static_cast<Marks*>(mmap(nullptr, (kMost + 1) * sizeof(Marks), PROT_READ | PROT_WRITE,
                               MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  PSRING_CHECK(all != MAP_FAILED);
  const uint64_t number = 1 + all[0].told++;
  PSRING_CHECK(number <= kMost);
  return &all[number];
}

// A node of a graph: work, after other work.
struct Node {
  int branch;  // of the capture's streams
  std::set<size_t> behind;
  std::function<void()> work;
};
using Nodes = std::vector<Node>;
struct FakeGraph {
  Nodes nodes;
};
struct FakeStream;
struct Capture {
  Nodes nodes;
  std::vector<FakeStream*> streams;  // the first is where it began
  bool broken = false;
};
struct EventHandle {
  unsigned flags = 0;
  int device = 0;
  bool opened = false;
  Marks* marks = nullptr;
};
struct FakeEvent : EventHandle {
  std::weak_ptr<Capture> capture = {};  // of what was captured when it was last recorded
  std::set<size_t> behind = {};
};
struct FakeStream {
  int device = 0;
  WorkQueue queue{"fake gpu"};
  std::shared_ptr<Capture> capture = nullptr;  // under way; of the thread that works for the stream
  int branch = 0;
  std::set<size_t> behind = {};  // what the next node stands behind
};

FakeCuda::Pace& PaceOf(int device) { return TheFakeCuda().pace[static_cast<size_t>(device) % 8]; }

void Push(FakeStream& stream, std::function<void()> work) {
  FakeCuda::Pace& pace = PaceOf(stream.device);
  ++pace.enqueued;
  stream.queue.Push([&pace, work = std::move(work)] {
    while (pace.stands_still) std::this_thread::sleep_for(std::chrono::microseconds(20));
    work();
  });
}

void HostWaits(int device) {
  FakeCuda::Pace& pace = PaceOf(device);
  if (!pace.stands_still) return;
  pace.enqueued_at_wait = pace.enqueued.load();
  pace.stands_still = false;
}

// A poll of an event that has not happened. A few polls are not a wait.
void HostLooks(int device, const Marks* at) {
  constexpr int kWaits = 100;
  thread_local std::map<const Marks*, int> looks;
  if (!PaceOf(device).stands_still || ++looks[at] < kWaits) return;
  looks.clear();
  HostWaits(device);
}

void AddNode(FakeStream& stream, std::function<void()> work) {
  Nodes& nodes = stream.capture->nodes;
  nodes.push_back({stream.branch, stream.behind, std::move(work)});
  stream.behind = {nodes.size() - 1};
}

bool StandsBehind(const Nodes& nodes, const std::set<size_t>& from, size_t what) {
  return std::any_of(from.begin(), from.end(), [&](size_t node) {
    return node == what || StandsBehind(nodes, nodes[node].behind, what);
  });
}

// Whether the first stream waits for the ends of all others.
bool IsJoined(const Capture& capture) {
  for (const FakeStream* stream : capture.streams) {
    for (const size_t last : stream->behind) {
      if (!StandsBehind(capture.nodes, capture.streams[0]->behind, last)) return false;
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
      if (done[n] || !std::all_of(nodes[n].behind.begin(), nodes[n].behind.end(), is_done)) continue;
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

std::atomic<bool> failed = false;  // as a GPU after an illegal address: for good
thread_local cudaError_t last_error = cudaSuccess;

// This thread's capture, if any.
thread_local Capture* capturing = nullptr;

// For calls that are forbidden during a capture.
bool Forbidden() {
  if (capturing != nullptr) capturing->broken = true;
  return capturing != nullptr;
}

cudaError_t Return(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

FakeStream* Of(cudaStream_t stream) { return reinterpret_cast<FakeStream*>(stream); }
FakeEvent* Of(cudaEvent_t event) { return reinterpret_cast<FakeEvent*>(event); }

// GPU work: runs later, in order, with access to device memory.
void Do(cudaStream_t stream, std::function<void()> work) {
  if (Of(stream)->capture != nullptr) return AddNode(*Of(stream), std::move(work));
  Push(*Of(stream), [work = std::move(work)] {
    if (failed) return;
    TheArena().Open();
    work();
    TheArena().Close();
  });
}

bool IsSelected(cudaStream_t stream) { return Of(stream)->device == selected; }

void Drain(cudaStream_t stream) {
  std::promise<void> drained;
  HostWaits(Of(stream)->device);
  Of(stream)->queue.Push([&] { drained.set_value(); });
  drained.get_future().wait();
}

}  // namespace

namespace gpu {

cudaError_t Launch(size_t count, const Kernel& kernel, cudaStream_t stream) {
  if (TheFakeCuda().launches_fail) return cudaErrorInvalidConfiguration;
  if (!IsSelected(stream)) return cudaErrorInvalidResourceHandle;
  const bool fails = TheFakeCuda().kernels_fail;
  Do(stream, [=] {
    if (fails) failed = true;
    if (!failed) LaunchInLoop(count, kernel);
  });
  return cudaSuccess;
}

cudaError_t Launch(size_t count, const ReduceKernel& kernel, cudaStream_t stream) {
  if (TheFakeCuda().launches_fail) return cudaErrorInvalidConfiguration;
  if (!IsSelected(stream)) return cudaErrorInvalidResourceHandle;
  Do(stream, [=] { LaunchInLoop(count, kernel); });
  return cudaSuccess;
}

cudaError_t CheckImage() { return TheFakeCuda().kernels_fit ? cudaSuccess : cudaErrorNoKernelImageForDevice; }

}  // namespace gpu

void OnFakeGpu(cudaStream_t stream, std::function<void()> work) { Do(stream, std::move(work)); }

}  // namespace psring

using psring::TheFakeCuda;

extern "C" {

// GPU work for another fake: runs once, or whenever the graph is launched. `drop` is called at the end.
void psringFakeGpuDo(cudaStream_t stream, void (*work)(void*), void* argument, void (*drop)(void*)) {
  psring::Do(stream, [work, kept = std::shared_ptr<void>(argument, drop)] { work(kept.get()); });
}
bool psringFakeGpuCaptures(cudaStream_t stream) { return psring::Of(stream)->capture != nullptr; }

const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaErrorIllegalAddress:
      return "an illegal memory access was encountered";
    case cudaErrorNoKernelImageForDevice:
      return "no kernel image is available for execution on the device";
    case cudaErrorInvalidConfiguration:
      return "invalid configuration argument";
    default:
      return error == cudaSuccess ? "no error" : "an error of the fake";
  }
}
const char* cudaGetErrorName(cudaError_t) { return "cudaErrorOfTheFake"; }
cudaError_t cudaGetLastError() {
  const cudaError_t error = psring::last_error;
  psring::last_error = cudaSuccess;
  return error;
}

cudaError_t cudaGetDeviceCount(int* count) {
  *count = 0;
  if (TheFakeCuda().driver_version < 13000) return psring::Return(cudaErrorInsufficientDriver);
  if (TheFakeCuda().devices == 0) return psring::Return(cudaErrorNoDevice);
  *count = TheFakeCuda().devices;
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) {
  *version = TheFakeCuda().driver_version;
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = 13000;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int index) {
  if (index >= TheFakeCuda().devices) return psring::Return(cudaErrorInvalidDevice);
  psring::selected = index;
  return cudaSuccess;
}
cudaError_t cudaDeviceCanAccessPeer(int* can, int, int) {
  *can = TheFakeCuda().peers_reach ? 1 : 0;
  return cudaSuccess;
}
cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned) {
  return peer != psring::selected ? cudaSuccess : psring::Return(cudaErrorInvalidDevice);
}
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* address) {
  *attributes = {};
  if (!psring::TheArena().Holds(address)) return cudaSuccess;  // cudaMemoryTypeUnregistered
  attributes->type = cudaMemoryTypeDevice;
  attributes->device = psring::TheArena().Holding(address).device;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  const int architecture = TheFakeCuda().architecture;
  *value = attribute == cudaDevAttrComputeCapabilityMajor ? architecture / 10 : architecture % 10;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int index) {
  *properties = {};
  properties->uuid.bytes[0] = static_cast<char>(index);
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** memory, size_t bytes) {
  if (psring::Forbidden()) return psring::Return(cudaErrorStreamCaptureUnsupported);
  ++TheFakeCuda().allocations;
  *memory = psring::TheArena().Allocate(bytes);
  return *memory != nullptr ? cudaSuccess : psring::Return(cudaErrorMemoryAllocation);
}
cudaError_t cudaFree(void* memory) {
  if (psring::Forbidden()) return psring::Return(cudaErrorStreamCaptureUnsupported);
  if (memory != nullptr) psring::TheArena().Free(memory);
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  *total = TheFakeCuda().memory;
  *free = *total - TheFakeCuda().used;
  return cudaSuccess;
}
cudaError_t cudaHostRegister(void* memory, size_t bytes, unsigned) {
  if (psring::Forbidden()) return psring::Return(cudaErrorStreamCaptureUnsupported);
  ++TheFakeCuda().allocations;
  std::lock_guard lock(psring::pinned_mutex);
  psring::Pinned()[static_cast<const char*>(memory)] = bytes;
  return cudaSuccess;
}
cudaError_t cudaHostUnregister(void* memory) {
  std::lock_guard lock(psring::pinned_mutex);
  psring::Pinned().erase(static_cast<const char*>(memory));
  return cudaSuccess;
}

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t* handle, void* memory) {
  if (!psring::TheArena().Owns(memory)) return psring::Return(cudaErrorInvalidValue);
  std::memset(handle->reserved, 0, sizeof(handle->reserved));
  const psring::MemoryHandle described = {static_cast<char*>(memory),
                                          psring::TheArena().Holding(memory).bytes};
  std::memcpy(handle->reserved, &described, sizeof(described));
  return cudaSuccess;
}
cudaError_t cudaIpcOpenMemHandle(void** memory, cudaIpcMemHandle_t handle, unsigned) {
  psring::MemoryHandle owners = {};
  std::memcpy(&owners, handle.reserved, sizeof(owners));
  if (!TheFakeCuda().handles_open || !psring::TheArena().Owns(owners.memory)) {
    return psring::Return(cudaErrorInvalidResourceHandle);
  }
  psring::TheArena().ReachTo(owners.memory + owners.bytes);
  *memory = psring::TheArena().Opened(owners.memory);
  ++TheFakeCuda().opened;
  return cudaSuccess;
}
cudaError_t cudaIpcCloseMemHandle(void*) {
  --TheFakeCuda().opened;
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  *stream = reinterpret_cast<cudaStream_t>(new psring::FakeStream{psring::selected});
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  delete psring::Of(stream);
  return cudaSuccess;
}
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* argument) {
  if (psring::Forbidden()) return psring::Return(cudaErrorStreamCaptureUnsupported);
  psring::Push(*psring::Of(stream), [=] { function(argument); });
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream) {
  psring::Do(stream, [=] { std::memset(to, value, bytes); });
  return cudaSuccess;
}
// Host memory that is not pinned is read at once, and written before the call returns.
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind, cudaStream_t stream) {
  const auto is_plain = [](const void* address) {
    return !psring::TheArena().Holds(address) && !psring::IsPinned(address);
  };
  if ((is_plain(from) || is_plain(to)) && psring::Forbidden()) {
    return psring::Return(cudaErrorStreamCaptureUnsupported);
  }
  if (is_plain(from)) {
    const auto* const first = static_cast<const char*>(from);
    psring::Do(stream,
               [=, copy = std::vector<char>(first, first + bytes)] { std::memcpy(to, copy.data(), bytes); });
  } else {
    psring::Do(stream, [=] { std::memcpy(to, from, bytes); });
  }
  if (is_plain(to)) psring::Drain(stream);
  return cudaSuccess;
}
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind) {
  if (psring::Forbidden()) return psring::Return(cudaErrorStreamCaptureUnsupported);
  psring::TheArena().Open();
  std::memcpy(to, from, bytes);
  psring::TheArena().Close();
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  *event = reinterpret_cast<cudaEvent_t>(
      new psring::FakeEvent{{flags, psring::selected, false, psring::NewMarks()}});
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  if (psring::Of(event)->opened) --TheFakeCuda().opened;
  delete psring::Of(event);
  return cudaSuccess;
}
cudaError_t cudaIpcGetEventHandle(cudaIpcEventHandle_t* handle, cudaEvent_t event) {
  const unsigned needed = cudaEventInterprocess | cudaEventDisableTiming;
  if ((psring::Of(event)->flags & needed) != needed) return psring::Return(cudaErrorInvalidResourceHandle);
  std::memset(handle->reserved, 0, sizeof(handle->reserved));
  const psring::EventHandle& described = *psring::Of(event);
  std::memcpy(handle->reserved, &described, sizeof(described));
  return cudaSuccess;
}
cudaError_t cudaIpcOpenEventHandle(cudaEvent_t* event, cudaIpcEventHandle_t handle) {
  if (!TheFakeCuda().handles_open) return psring::Return(cudaErrorInvalidResourceHandle);
  psring::EventHandle described;
  std::memcpy(&described, handle.reserved, sizeof(described));
  auto* const made = new psring::FakeEvent{described};
  made->device = psring::selected;
  made->opened = true;
  *event = reinterpret_cast<cudaEvent_t>(made);
  ++TheFakeCuda().opened;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  if (psring::Of(event)->device != psring::Of(stream)->device) {
    return psring::Return(cudaErrorInvalidResourceHandle);
  }
  psring::Of(event)->capture = psring::Of(stream)->capture;
  if (psring::Of(stream)->capture != nullptr) {
    psring::Of(event)->behind = psring::Of(stream)->behind;
    return cudaSuccess;
  }
  if (psring::Forbidden()) return psring::Return(cudaErrorStreamCaptureUnsupported);
  psring::Marks* const marks = psring::Of(event)->marks;
  const uint64_t record = marks->Tell();
  psring::Push(*psring::Of(stream), [=] { marks->Reach(record); });
  return cudaSuccess;
}
// At each launch of the captured graph.
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags) {
  if (flags != cudaEventRecordExternal || psring::Of(stream)->capture == nullptr) {
    return psring::Return(cudaErrorInvalidValue);
  }
  psring::AddNode(*psring::Of(stream), [marks = psring::Of(event)->marks] { marks->Reach(marks->Tell()); });
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  if (psring::Forbidden()) return psring::Return(cudaErrorStreamCaptureUnsupported);
  if (!psring::Of(event)->capture.expired()) return psring::Return(cudaErrorCapturedEvent);
  const psring::Marks& marks = *psring::Of(event)->marks;
  if (!marks.Has(marks.told)) {
    psring::HostLooks(psring::Of(event)->device, &marks);
    return cudaErrorNotReady;
  }
  return psring::failed ? cudaErrorIllegalAddress : cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t from, cudaEvent_t to) {
  const auto ns = [](cudaEvent_t event) { return psring::Of(event)->marks->ns.load(); };
  *ms = 1e-6f * static_cast<float>(ns(to) - ns(from));
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  psring::FakeStream& waiting = *psring::Of(stream);
  if (const auto capture = psring::Of(event)->capture.lock()) {
    if (waiting.capture == nullptr) {  // it takes part from here on
      waiting.capture = capture;
      waiting.branch = static_cast<int>(capture->streams.size());
      waiting.behind.clear();
      capture->streams.push_back(&waiting);
    }
    if (waiting.capture != capture) return psring::Return(cudaErrorStreamCaptureMerge);
    waiting.behind.insert(psring::Of(event)->behind.begin(), psring::Of(event)->behind.end());
    return cudaSuccess;
  }
  if (waiting.capture != nullptr) {
    waiting.capture->broken = true;
    return psring::Return(cudaErrorStreamCaptureIsolation);
  }
  if (psring::Forbidden()) return psring::Return(cudaErrorStreamCaptureUnsupported);
  const psring::Marks* const marks = psring::Of(event)->marks;
  psring::Push(waiting, [marks, record = marks->told.load()] { marks->Await(record); });
  return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  // Any other mode would affect other threads.
  if (psring::Forbidden() || mode != cudaStreamCaptureModeThreadLocal) {
    return psring::Return(cudaErrorStreamCaptureUnsupported);
  }
  psring::FakeStream& first = *psring::Of(stream);
  first.capture = std::make_shared<psring::Capture>();
  first.capture->streams.push_back(&first);
  first.branch = 0;
  first.behind.clear();
  psring::capturing = first.capture.get();
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  *graph = nullptr;
  const std::shared_ptr<psring::Capture> capture = psring::Of(stream)->capture;
  if (capture == nullptr || capture.get() != psring::capturing) return psring::Return(cudaErrorIllegalState);
  if (capture->streams[0] != psring::Of(stream)) return psring::Return(cudaErrorStreamCaptureUnmatched);
  psring::capturing = nullptr;
  for (psring::FakeStream* taking_part : capture->streams) taking_part->capture = nullptr;
  if (capture->broken) return psring::Return(cudaErrorStreamCaptureInvalidated);
  if (!psring::IsJoined(*capture)) return psring::Return(cudaErrorStreamCaptureUnjoined);
  *graph = reinterpret_cast<cudaGraph_t>(new psring::FakeGraph{std::move(capture->nodes)});
  return cudaSuccess;
}
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, size_t* count) {
  if (nodes != nullptr) return psring::Return(cudaErrorNotSupported);
  *count = reinterpret_cast<psring::FakeGraph*>(graph)->nodes.size();
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete reinterpret_cast<psring::FakeGraph*>(graph);
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* made, cudaGraph_t graph, unsigned long long) {
  *made = reinterpret_cast<cudaGraphExec_t>(
      new psring::FakeGraph(*reinterpret_cast<const psring::FakeGraph*>(graph)));
  ++TheFakeCuda().graphs;
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) {
  delete reinterpret_cast<psring::FakeGraph*>(graph);
  --TheFakeCuda().graphs;
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream) {
  if (psring::Forbidden()) return psring::Return(cudaErrorStreamCaptureUnsupported);
  const bool late_first = TheFakeCuda().graph_launches++ % 2 == 0;
  psring::Do(stream, [nodes = reinterpret_cast<const psring::FakeGraph*>(graph)->nodes, late_first] {
    psring::RunGraph(nodes, late_first);
  });
  return cudaSuccess;
}

}  // extern "C"
