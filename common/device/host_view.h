// Device memory as the host sees it: the memory itself if the host can access it (a CPU), otherwise pinned
// memory of the same size, to and from which streams copy.
#pragma once

#include <cstddef>

#include "absl/status/statusor.h"
#include "common/device/device.h"

namespace psring {

// The host's copy of `memory`; empty if the host accesses `memory` itself.
inline absl::StatusOr<Buffer> AllocateHostSide(Device& device, const Buffer& memory) {
  if (device.host_reads_memory()) return Buffer();
  return device.AllocateOnHost(memory.bytes());
}

// Does not own either memory.
struct HostView {
  Span device;
  Span host;

  // Memory that the host reads in place.
  static HostView Of(Span memory) { return {memory, memory}; }
  // `host_side` is what AllocateHostSide returned for `memory`.
  static HostView Of(const Buffer& memory, const Buffer& host_side) {
    return {memory.span(), host_side.data() != nullptr ? host_side.span() : memory.span()};
  }

  bool is_one() const { return device.data == host.data; }
  HostView Slice(size_t first, size_t count) const {
    return {device.Slice(first, count), host.Slice(first, count)};
  }

  // In stream order; the host may access its copy again when the stream has reached this point.
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
  // The value of the last Download, once the stream has reached it.
  const T& on_host() const {
    return *static_cast<const T*>(host_side_.data() != nullptr ? host_side_.data() : memory_.data());
  }

 private:
  Buffer memory_, host_side_;
};

}  // namespace psring
