// The memory of a worker in which a server of the same host works: the worker's own, or a mirror of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/shared_memory.h"
#include "ps_server/client/ps_client.h"
#include "ps_server/wire/shared_payload.h"

namespace psring {

struct ClientMemory {
  struct Area {
    SharedMemory mirror;        // where the caller's is private
    std::byte* data = nullptr;  // of either
    size_t bytes = 0;
    int fd = -1;
    // Where `span` lies in the caller's shared memory; in a mirror, at `mirrored`.
    std::optional<uint64_t> PlaceOf(ConstSpan span, size_t mirrored) const;
  };
  Area gradients, weights;
  std::string gradients_on_gpu, weights_on_gpu;  // handles of the caller's; empty: not to be had

  // `callers`, or mirrors of `bytes` where they are private.
  static absl::StatusOr<ClientMemory> Create(const SharedSpan& gradients, const SharedSpan& weights,
                                             size_t bytes);
  // To the server that made the offer (shared_payload.h).
  absl::StatusOr<HandedOver> HandOver(const std::string& offer, absl::Time deadline) const;
};

}  // namespace psring
