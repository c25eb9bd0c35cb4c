// The local work of a collective, on the host or on a GPU: copies and scaling in the rank's own memory.
#pragma once

#include <cstddef>
#include <functional>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/device/device.h"
#include "common/kernels/copy.h"
#include "common/kernels/reduce.h"

namespace psring {

// A transport that works in a GPU's memory implements this interface as well; others work in host memory and
// are combined with HostWork. Called by the same thread as the transport.
class DeviceWork {
 public:
  virtual ~DeviceWork() = default;

  // Runs `call`, one collective call, in the order of `stream`.
  virtual void Enqueue(Stream& stream, std::function<absl::Status()> call) = 0;

  // Inside `call`, in the order of its transfers. An error is returned by a later Wait or by the stream.
  virtual void Copy(void* to, const void* from, size_t bytes) = 0;
  virtual void Scale(Span data, float factor) = 0;

  // Memory that peers can read, as working memory of the group.
  virtual absl::StatusOr<Buffer> Allocate(size_t bytes) = 0;
};

class HostWork final : public DeviceWork {
 public:
  void Enqueue(Stream& stream, std::function<absl::Status()> call) override { stream.Run(std::move(call)); }
  void Copy(void* to, const void* from, size_t bytes) override { cpu::Copy(to, from, bytes, passes_caches_); }
  void Scale(Span data, float factor) override { cpu::Scale(data.type, data.count, data.data, factor); }
  absl::StatusOr<Buffer> Allocate(size_t bytes) override { return MakeCpuDevice()->AllocateShared(bytes); }

  // Whether later copies are too large for the caches and not read again in the call. A hint.
  void PassCaches(bool passes) { passes_caches_ = passes; }

 private:
  bool passes_caches_ = false;
};

}  // namespace psring
