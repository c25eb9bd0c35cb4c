// A device that allocates no memory and counts the requested bytes: it finds out how much memory an object
// would need by constructing it.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/device/device.h"

namespace psring {

// Imitates `real`, which must outlive it. Its buffers have a size and no memory, so they must not be
// accessed.
class CountingDevice : public Device {
 public:
  explicit CountingDevice(Device& real) : real_(real) {}

  size_t bytes() const { return bytes_; }  // requested so far, of the device's own memory

  std::string name() const override { return real_.name(); }
  int gpu() const override { return real_.gpu(); }
  std::string unit() const override { return real_.unit(); }
  std::optional<Memory> memory() const override { return real_.memory(); }
  bool host_reads_memory() const override { return real_.host_reads_memory(); }
  absl::StatusOr<Buffer> Allocate(size_t bytes) override {
    bytes_ += bytes;
    return Nothing(bytes);
  }
  absl::StatusOr<Buffer> AllocateShared(size_t bytes) override { return Allocate(bytes); }
  absl::StatusOr<Buffer> AllocateOnHost(size_t bytes) override { return Nothing(bytes); }
  std::unique_ptr<Stream> NewStream(StreamKind kind, const std::string& name) override {
    return real_.NewStream(kind, name);
  }

 private:
  static Buffer Nothing(size_t bytes) {
    return Buffer(nullptr, bytes, [](void*) {});
  }

  Device& real_;
  size_t bytes_ = 0;
};

}  // namespace psring
