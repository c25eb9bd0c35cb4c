// What stands on a device, as the host sees it: one and the same memory where the host reads the device's in
// place (a CPU), else pinned memory of the same size, to and from which streams copy.
#pragma once

#include <cstddef>

#include "absl/status/statusor.h"
#include "common/device/device.h"

namespace psring {

// The host's side of `memory`; empty where that is `memory` itself.
inline absl::StatusOr<Buffer> AllocateHostSide(Device& device, const Buffer& memory) {
  if (device.host_reads_memory()) return Buffer();
  return device.AllocateOnHost(memory.bytes());
}

// Borrows both sides.
struct HostView {
  Span device;
  Span host;

  // Memory that the host reads in place.
  static HostView Of(Span memory) { return {memory, memory}; }
  // `host_side` as AllocateHostSide made it for `memory`.
  static HostView Of(const Buffer& memory, const Buffer& host_side) {
    return {memory.span(), host_side.data() != nullptr ? host_side.span() : memory.span()};
  }

  bool is_one() const { return device.data == host.data; }
  HostView Slice(size_t first, size_t count) const {
    return {device.Slice(first, count), host.Slice(first, count)};
  }

  // In stream order; the host may touch its side again when the stream has got here.
  void Upload(Stream& stream) const {
    if (!is_one()) stream.Copy(device.data, host.data, host.bytes());
  }
  void Download(Stream& stream) const {
    if (!is_one()) stream.Copy(host.data, device.data, host.bytes());
  }
};

// A value that ops add to, such as a loss.
template <typename T>
class DeviceValue {
 public:
  static absl::StatusOr<DeviceValue> Create(Device& device) {
    DeviceValue value;
    PSRING_ASSIGN_OR_RETURN(value.memory_, device.Allocate(sizeof(T)));
    PSRING_ASSIGN_OR_RETURN(value.host_side_, AllocateHostSide(device, value.memory_));
    return value;
  }

  T* on_device() const { return static_cast<T*>(memory_.data()); }
  void Zero(Stream& stream) const { stream.Zero(memory_.data(), sizeof(T)); }
  void Download(Stream& stream) const {
    if (host_side_.data() != nullptr) stream.Copy(host_side_.data(), memory_.data(), sizeof(T));
  }
  // Of the last Download, once the stream has got there.
  const T& on_host() const {
    return *static_cast<const T*>(host_side_.data() != nullptr ? host_side_.data() : memory_.data());
  }

 private:
  Buffer memory_, host_side_;
};

}  // namespace psring
