#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <optional>
#include <string>
#include <utility>

#include "common/base/deadline.h"
#include "common/base/errors.h"
#include "common/base/mutex.h"
#include "common/base/shared_memory.h"
#include "common/base/work_queue.h"
#include "common/device/device.h"
#include "common/device/memory_limit.h"
#include "common/measure/trace.h"

namespace psring {
namespace {

class CpuEvent : public Event::State {
 public:
  CpuEvent() = default;
  explicit CpuEvent(absl::Status already_happened_with)
      : happened_(true), status_(std::move(already_happened_with)) {}

  void Happen(const absl::Status& status) {
    MutexLock lock(mutex_);
    status_ = status;
    happened_ = true;
    condition_.NotifyAll();
  }

  bool Happened() const override {
    MutexLock lock(mutex_);
    return happened_;
  }

  absl::Status Wait(MonotonicTime deadline) override {
    MutexLock lock(mutex_);
    while (!happened_) {
      if (!condition_.WaitUntil(mutex_, deadline) && !happened_) {
        return DeadlineExceeded("an event of the CPU has not happened by the deadline");
      }
    }
    return status_;
  }

 private:
  mutable Mutex mutex_;
  CondVar condition_;
  bool happened_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
};

// kCompute: all work is done when the call that enqueues it returns. kBackground: on a thread.
class CpuStream : public Stream {
 public:
  CpuStream(StreamKind kind, const std::string& name) {
    if (kind == StreamKind::kBackground) queue_.emplace(name);
  }

  void Copy(void* to, const void* from, size_t bytes) override {
    Do([=, this] {
      if (error_.ok() && bytes > 0) std::memcpy(to, from, bytes);
    });
  }
  void Zero(void* to, size_t bytes) override {
    Do([=, this] {
      if (error_.ok() && bytes > 0) std::memset(to, 0, bytes);
    });
  }
  void Run(std::function<absl::Status()> work) override {
    Do([this, work = std::move(work)] {
      if (error_.ok()) error_ = work();
    });
  }
  void Stamp(int64_t& ns) override {
    Do([&ns] { ns = MonotonicNanos(); });
  }
  // Without a deadline, as on a GPU: the code that records an event must ensure that its work ends.
  void WaitFor(const Event& event) override {
    Do([this, event] {
      if (error_.ok()) error_ = event.Wait(MonotonicTime::InfiniteFuture());
    });
  }

  Event Record() override {
    if (!queue_.has_value()) return error_.ok() ? Event() : Event(std::make_shared<CpuEvent>(error_));
    auto state = std::make_shared<CpuEvent>();
    queue_->Push([this, state] { state->Happen(error_); });
    return Event(std::move(state));
  }
  absl::Status Synchronize() override {
    return queue_.has_value() ? Record().Wait(MonotonicTime::InfiniteFuture()) : error_;
  }

 private:
  template <typename Work>
  void Do(Work work) {
    if (queue_.has_value()) {
      queue_->Push(std::move(work));
    } else {
      work();
    }
  }

  absl::Status error_;              // with a queue, used by its thread only; others get it from events
  std::optional<WorkQueue> queue_;  // last: its work uses the member above
};

constexpr size_t kAlignment = 64;
constexpr size_t kHugePage = size_t{2} << 20;

absl::Status OutOfMemory(size_t bytes) {
  return ResourceExhausted("cpu: no memory for a buffer of ", bytes, " bytes");
}

class CpuDevice : public Device {
 public:
  std::string name() const override { return "cpu"; }
  bool host_reads_memory() const override { return true; }

  // Memory that is available without swapping, within the limits of this process and its control groups.
  std::optional<Memory> memory() const override {
    std::ifstream info("/proc/meminfo");
    Memory memory = {};
    for (std::string line; std::getline(info, line);) {
      const auto value = [&line](size_t from) {
        return size_t{std::strtoull(line.c_str() + from, nullptr, 10)} << 10;
      };
      if (line.rfind("MemTotal:", 0) == 0) memory.total = value(9);
      if (line.rfind("MemAvailable:", 0) == 0) memory.free = value(13);
    }
    if (memory.free == 0) return std::nullopt;
    for (const std::optional<Memory>& limit : {ControlGroupMemory(), AddressSpace()}) {
      if (!limit.has_value()) continue;
      memory = {.free = std::min(memory.free, limit->free), .total = std::min(memory.total, limit->total)};
    }
    return memory;
  }

  absl::StatusOr<Buffer> Allocate(size_t bytes) override {
    if (bytes > (size_t{1} << 62)) return OutOfMemory(bytes);
    return bytes < kHugePage ? AllocateSmall(bytes) : AllocateHuge(bytes);
  }

  absl::StatusOr<Buffer> AllocateShared(size_t bytes) override {
    if (bytes > (size_t{1} << 62)) return OutOfMemory(bytes);
    absl::StatusOr<SharedMemory> made = SharedMemory::Create((bytes / kHugePage + 1) * kHugePage);
    if (!made.ok()) return made.status();
    auto memory = std::make_shared<SharedMemory>(*std::move(made));
    // Only a hint, as below; for less than one huge page it would waste the rest.
    if (bytes >= kHugePage) madvise(memory->data(), memory->bytes(), MADV_HUGEPAGE);
    return Buffer(
        memory->data(), bytes, [memory](void*) {}, memory->fd());
  }

  absl::StatusOr<Buffer> AllocateOnHost(size_t bytes) override { return AllocateShared(bytes); }

  std::unique_ptr<Stream> NewStream(StreamKind kind, const std::string& name) override {
    return std::make_unique<CpuStream>(kind, name);
  }

 private:
  static absl::StatusOr<Buffer> AllocateSmall(size_t bytes) {
    const size_t rounded = (bytes / kAlignment + 1) * kAlignment;
    void* data = std::aligned_alloc(kAlignment, rounded);
    if (data == nullptr) return OutOfMemory(bytes);
    std::memset(data, 0, rounded);
    return Buffer(data, bytes, [](void* p) { std::free(p); });
  }

  // On huge pages if the kernel has them: weights and activations are read from end to end many times per
  // second, and page faults and TLB misses of 4 KiB pages are measurable.
  static absl::StatusOr<Buffer> AllocateHuge(size_t bytes) {
    const size_t length = (bytes + kHugePage - 1) / kHugePage * kHugePage;
    const size_t mapped = length + kHugePage;  // so that an aligned range lies inside
    void* memory = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return OutOfMemory(bytes);
    char* const start = static_cast<char*>(memory);
    char* const aligned =
        reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(start) + kHugePage - 1) / kHugePage * kHugePage);
    if (aligned > start) munmap(start, aligned - start);
    const size_t behind = start + mapped - (aligned + length);
    if (behind > 0) munmap(aligned + length, behind);
    madvise(aligned, length, MADV_HUGEPAGE);  // a hint: without it the pages are small
    return Buffer(aligned, bytes, [length](void* p) { munmap(p, length); });
  }
};

}  // namespace

std::unique_ptr<Device> MakeCpuDevice() { return std::make_unique<CpuDevice>(); }

}  // namespace psring
