// What the ranks of a replica exchange beside activations and gradients: numbers, and their parts of flat
// buffers, through host memory.
#pragma once

#include <cstddef>
#include <memory>
#include <type_traits>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/device/device.h"
#include "common/device/host_view.h"
#include "ring_worker/groups/process_group.h"
#include "trainer/pipeline/model_part.h"

namespace psring {

// All calls are collective over the group, whose ranks are those of ModelPart::parts, and wait for the
// result. Between them the group may have other users. One thread.
class ReplicaExchange {
 public:
  // `group` outlives it. `device`: of the group's memory, if it works on a GPU.
  static absl::StatusOr<std::unique_ptr<ReplicaExchange>> Create(ProcessGroup& group, Device& device);

  // The `count` values of rank `root`, on every rank. A multiple of 4 bytes, whose bits do not change.
  template <typename T>
  absl::Status Broadcast(int root, T* values, size_t count) {
    static_assert(std::is_trivially_copyable_v<T> && sizeof(T) % sizeof(float) == 0);
    return BroadcastBytes(root, values, count * sizeof(T));
  }
  // The values of all ranks, in order.
  template <typename T>
  absl::StatusOr<std::vector<T>> Gather(const T& own) {
    std::vector<T> all(static_cast<size_t>(group_.size()), own);
    for (int rank = 0; rank < group_.size(); ++rank) {
      PSRING_RETURN_IF_ERROR(Broadcast(rank, &all[static_cast<size_t>(rank)], 1));
    }
    return all;
  }

  // The whole flat buffer, of the parts that the ranks have in `own`. `member`: of PositionPart.
  absl::StatusOr<std::vector<float>> Whole(const ModelPart& part, LayoutPart PositionPart::*member,
                                           const float* own);

 private:
  ReplicaExchange(ProcessGroup& group, Device& device, Buffer memory, Buffer host);

  absl::Status BroadcastBytes(int root, void* data, size_t bytes);

  ProcessGroup& group_;
  const bool in_place_;
  const Buffer memory_, host_;
  const std::unique_ptr<Stream> lane_;  // last: its work uses the above
};

}  // namespace psring
