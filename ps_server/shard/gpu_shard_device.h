// The shard's way to a GPU: see shard_device.h. It speaks to the device's door alone, and not to CUDA.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "common/device/device.h"
#include "ps_server/shard/shard_device.h"

namespace psring {

absl::StatusOr<std::unique_ptr<ShardDevice>> MakeGpuShardDevice(Device& device);

}  // namespace psring
