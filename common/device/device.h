// Devices, streams, events and buffers: how psring owns memory and orders work, on CPUs and GPUs.
//
// A *stream* is a queue of work on one device that runs in order. An *event* marks a point in a stream; other
// streams and host threads wait for it. Every access to device memory is enqueued on a stream.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "common/base/check.h"
#include "common/base/deadline.h"
#include "common/kernels/dtype.h"

namespace psring {

// A view of `count` elements of device memory, which the host cannot index in general. Does not own them.
struct Span {
  void* data = nullptr;
  size_t count = 0;
  DType type = DType::kFloat32;

  size_t bytes() const { return count * SizeOf(type); }
  // Elements [first, first + length), which must lie inside the span.
  Span Slice(size_t first, size_t length) const {
    PSRING_CHECK(first <= count && length <= count - first);
    return {static_cast<std::byte*>(data) + first * SizeOf(type), length, type};
  }
  // The elements as floats; for code that runs on the device that owns the memory.
  float* floats() const {
    PSRING_CHECK(type == DType::kFloat32);
    return static_cast<float*>(data);
  }
};

struct ConstSpan {
  const void* data = nullptr;
  size_t count = 0;
  DType type = DType::kFloat32;

  ConstSpan() = default;
  ConstSpan(const void* d, size_t n, DType t = DType::kFloat32) : data(d), count(n), type(t) {}
  ConstSpan(const Span& span)  // NOLINT: a view of a view
      : data(span.data), count(span.count), type(span.type) {}

  size_t bytes() const { return count * SizeOf(type); }
  ConstSpan Slice(size_t first, size_t length) const {
    PSRING_CHECK(first <= count && length <= count - first);
    return {static_cast<const std::byte*>(data) + first * SizeOf(type), length, type};
  }
  const float* floats() const {
    PSRING_CHECK(type == DType::kFloat32);
    return static_cast<const float*>(data);
  }
};

// A point in a stream. Copies refer to the same point. A default-constructed event has happened. Thread-safe.
class Event {
 public:
  class State {
   public:
    virtual ~State() = default;
    virtual bool Happened() const = 0;
    virtual absl::Status Wait(MonotonicTime deadline) = 0;
  };

  Event() = default;
  explicit Event(std::shared_ptr<State> state) : state_(std::move(state)) {}

  bool Happened() const { return state_ == nullptr || state_->Happened(); }

  // Blocks the calling thread. Returns the first error of the work before the event, or DeadlineExceeded.
  absl::Status Wait(MonotonicTime deadline) const {
    return state_ == nullptr ? absl::OkStatus() : state_->Wait(deadline);
  }

  State* state() const { return state_.get(); }

 private:
  std::shared_ptr<State> state_;
};

// A queue of work on one device, run in order. Methods may be called from any thread, one at a time. After
// the first failure the rest of the queued work is skipped; events recorded later still happen and contain
// the error.
class Stream {
 public:
  // Runs what is queued, then returns.
  virtual ~Stream() = default;

  // Between any two places in device memory and on the host. With host memory other than AllocateOnHost's the
  // copy is slow and the call may block.
  virtual void Copy(void* to, const void* from, size_t bytes) = 0;

  virtual void Zero(void* to, size_t bytes) = 0;

  // Host work in stream order. On the CPU every op runs this way. `work` must not wait for later work of the
  // stream. On a GPU's compute stream the call waits for the queued work and then runs `work` itself.
  virtual void Run(std::function<absl::Status()> work) = 0;

  // Stores the time at which the stream reaches this point (MonotonicNanos) in `ns`, at the latest when
  // Synchronize returns. After an error the value is meaningless.
  virtual void Stamp(int64_t& ns) = 0;

  virtual Event Record() = 0;

  // Work enqueued later starts after `event`. An error in the event becomes this stream's error.
  virtual void WaitFor(const Event& event) = 0;

  // Blocks until all enqueued work is done. Returns the first error of any earlier work, with the call that
  // caused it.
  virtual absl::Status Synchronize() = 0;
};

// Device memory, freed with its owner. 64-byte aligned, zero-filled. Move-only.
class Buffer {
 public:
  using Free = std::function<void(void*)>;

  Buffer() = default;
  Buffer(void* data, size_t bytes, Free free, int shared_fd = -1)
      : data_(data, std::move(free)), bytes_(bytes), shared_fd_(shared_fd) {}

  void* data() const { return data_.get(); }
  size_t bytes() const { return bytes_; }
  // The file of memory that other processes may map; the buffer begins at its first byte and owns it. -1: the
  // memory is private.
  int shared_fd() const { return shared_fd_; }
  Span span(DType type = DType::kFloat32) const { return {data_.get(), bytes_ / SizeOf(type), type}; }

 private:
  std::unique_ptr<void, Free> data_{nullptr, [](void*) {}};
  size_t bytes_ = 0;
  int shared_fd_ = -1;
};

enum class StreamKind {
  kCompute,     // on the CPU, work runs inside the call that enqueues it
  kBackground,  // has its own thread, which on a GPU enqueues
};

// One CPU (all its cores) or one GPU. Thread-safe.
class Device {
 public:
  virtual ~Device() = default;

  virtual std::string name() const = 0;  // "cpu", "cuda:0"
  // The index of a GPU on this host and a name that identifies it worldwide; for a CPU, -1 and "".
  virtual int gpu() const { return -1; }
  virtual std::string unit() const { return ""; }
  // In bytes; for a CPU, the host memory that this process may use. nullopt if unknown.
  struct Memory {
    size_t free, total;
  };
  virtual std::optional<Memory> memory() const { return std::nullopt; }
  virtual absl::StatusOr<Buffer> Allocate(size_t bytes) = 0;  // ResourceExhausted contains the requested size
  // Memory that other processes of this host may map, so that a peer can read it in place. On a GPU it is
  // ordinary device memory without a file.
  virtual absl::StatusOr<Buffer> AllocateShared(size_t bytes) = 0;
  // Whether host code may read and write this device's memory in place.
  virtual bool host_reads_memory() const = 0;
  // Host memory that this device's streams copy from and to at full speed and that other processes of this
  // host may map.
  virtual absl::StatusOr<Buffer> AllocateOnHost(size_t bytes) = 0;
  // `name` labels the thread or queue in debuggers and traces.
  virtual std::unique_ptr<Stream> NewStream(StreamKind kind, const std::string& name) = 0;
};

std::unique_ptr<Device> MakeCpuDevice();

}  // namespace psring
