#include "ps_server/shard_device.h"

#include <cstring>

#include "common/gradient_norm.h"
#include "ps_server/gpu_shard_device.h"

namespace psring {
namespace {

class HostShardDevice : public ShardDevice {
 public:
  absl::StatusOr<std::optional<size_t>> TakeIn(Take how, DType type, Pieces payload, Span to,
                                               Finite finite) override {
    return how == Take::kSet ? SetPieces(type, payload, to.floats(), finite)
                             : AddPieces(type, payload, to.floats(), finite);
  }

  absl::Status Compute(Lane& lane, const std::function<void(Ops&, Stream&)>& work) override {
    work(*lane.ops, *lane.stream);
    return lane.stream->Synchronize();
  }

  absl::Status BringDown(ConstSpan from, void* to, bool) override {
    if (from.bytes() > 0) std::memcpy(to, from.data, from.bytes());
    return absl::OkStatus();
  }

  absl::StatusOr<std::optional<size_t>> FirstNotFinite(ConstSpan values, Lane&) override {
    const Bytes bytes(static_cast<const std::byte*>(values.data), values.bytes());
    return psring::FirstNotFinite(values.type, {&bytes, 1});
  }

  absl::StatusOr<double> SumOfSquares(ConstSpan values, Lane&) override {
    return psring::SumOfSquares(values.floats(), values.count);
  }
};

}  // namespace

absl::StatusOr<std::unique_ptr<ShardDevice>> MakeShardDevice(Device& device) {
  if (device.host_reads_memory()) return std::make_unique<HostShardDevice>();
  return MakeGpuShardDevice(device);
}

}  // namespace psring
