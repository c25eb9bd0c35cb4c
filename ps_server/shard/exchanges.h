// What a ParameterShard takes and returns.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "common/device/device.h"
#include "ps_server/protocol/pieces.h"
#include "ps_server/protocol/server_job.h"

namespace psring {

struct ShardOptions {
  size_t staging_bytes = SIZE_MAX;  // the window; at least what one push needs
  bool reject_nonfinite = true;
};

// How gradients become an update:
//   kSum         synchronous. Chunks are added to one sum as they arrive, in any order of workers. The first
//                is copied, so the sum is never cleared.
//   kSumInOrder  synchronous and deterministic. Each push is staged; Apply adds them in worker order,
//                ((g0 + g1) + g2) + ..., like one process that accumulates micro-batches.
//   kEachAlone   asynchronous, bounded staleness. Each push is staged and applied by itself; its memory then
//                holds the weights of the answer.
// A whole gradient in memory shared with its worker stays there; the pass that writes the weights reads it
// (kSum: at most four of them; more are added as they arrive).
enum class Accumulation { kSum, kSumInOrder, kEachAlone };
Accumulation AccumulationOf(const ServerJob& job);

// Weights that are readable while `keep` is held (parameter_shard.h states how long they stay the same).
struct Snapshot {
  ConstSpan weights;
  std::shared_ptr<const void> keep;
};

// How a push arrives: by AddChunk, or `whole` by AddWhole.
struct PushManner {
  bool whole = false;
  bool on_gpu = false;  // in memory that this shard's GPU can access
  bool stays = false;   // whole, and unchanged until the exchange is answered
};

// A gradient, in the host's memory or (`on_gpu`) on the GPU, aligned as floats are. It does not change until
// the Apply that uses it has returned; with `keep`, until the exchange is answered, readable while `keep` is
// held.
struct WholeGradient {
  Bytes gradient;
  bool on_gpu = false;
  std::shared_ptr<const void> keep = {};
};

// Where an update's weights go besides the shard, if it is in the host's memory: to `places`, each as large
// as the bucket. `made` gets the number of bytes of the bucket's weights that are final, while the rest is
// still being computed (ShardDevice::Made states its threads).
struct Outlets {
  std::vector<std::byte*> places;
  std::function<void(size_t bytes)> made = [](size_t) {};
};

}  // namespace psring
