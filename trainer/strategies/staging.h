// The memory in which a process group reads and writes a rank's data: in place, or a copy on the host.
#pragma once

#include "absl/status/status.h"
#include "common/base/check.h"
#include "common/device/device.h"
#include "common/device/host_view.h"
#include "ring_worker/groups/process_group.h"

namespace psring {

class Staging {
 public:
  Staging(const Device& device, ProcessGroup& group)
      : group_(group), in_place_(group.info().on_gpu || device.host_reads_memory()) {}

  bool in_place() const { return in_place_; }
  // The side of `view` that the group works on.
  Span Seen(const HostView& view) const { return in_place_ ? view.device : view.host; }

  // Copies from the device to the memory that the group uses, and back, in stream order.
  void ToGroup(const HostView& view, Stream& stream) const {
    if (!in_place_) view.Download(stream);
  }
  void FromGroup(const HostView& view, Stream& stream) const {
    if (!in_place_) view.Upload(stream);
  }

  // Rank 0's values to every rank.
  absl::Status Broadcast(const HostView& view, Stream& stream) const {
    ToGroup(view, stream);
    PSRING_RETURN_IF_ERROR(group_.Broadcast(Seen(view), /*root=*/0, stream));
    FromGroup(view, stream);
    return absl::OkStatus();
  }
  // The same for values that the host has written, and reads when the stream has reached this point.
  absl::Status BroadcastFromHost(const HostView& view, Stream& stream) const {
    if (in_place_) view.Upload(stream);
    PSRING_RETURN_IF_ERROR(group_.Broadcast(Seen(view), /*root=*/0, stream));
    if (in_place_) view.Download(stream);
    return absl::OkStatus();
  }

  // Rank r's part number r of `all`, which consists of equal parts, to every rank.
  absl::Status AllGather(const HostView& all, Stream& stream) const {
    const HostView own = OwnPart(all);
    ToGroup(own, stream);
    PSRING_RETURN_IF_ERROR(group_.AllGather(Seen(own), Seen(all), stream));
    FromGroup(all, stream);
    return absl::OkStatus();
  }
  absl::Status AllGatherFromHost(const HostView& all, Stream& stream) const {
    const HostView own = OwnPart(all);
    if (in_place_) own.Upload(stream);
    PSRING_RETURN_IF_ERROR(group_.AllGather(Seen(own), Seen(all), stream));
    if (in_place_) all.Download(stream);
    return absl::OkStatus();
  }

 private:
  HostView OwnPart(const HostView& all) const {
    const size_t part = all.device.count / static_cast<size_t>(group_.size());
    return all.Slice(static_cast<size_t>(group_.rank()) * part, part);
  }

  ProcessGroup& group_;
  const bool in_place_;
};

}  // namespace psring
