#include "ps_server/shard/shard_device.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "common/base/mutex.h"
#include "common/device/control_groups.h"
#include "common/device_factory/make_ops.h"
#include "common/ops/gradient_norm.h"
#include "ps_server/shard/helpers.h"

namespace psring {
namespace {

constexpr size_t kPart = kChunkBytes / sizeof(float);

// A few cores can use all of the memory bandwidth; one cannot.
int HelpersWanted() { return std::clamp(UsableCores(), 1, 4) - 1; }

class HostShardDevice : public ShardDevice {
 public:
  static absl::StatusOr<std::unique_ptr<ShardDevice>> Create(Device& device) {
    std::vector<Lane> lanes(static_cast<size_t>(HelpersWanted()));
    for (Lane& lane : lanes) {
      PSRING_ASSIGN_OR_RETURN(lane.ops, MakeUpdateOps(device));
      lane.stream = device.NewStream(StreamKind::kCompute, "server's helper");
    }
    return std::unique_ptr<ShardDevice>(new HostShardDevice(std::move(lanes)));
  }

  absl::StatusOr<std::optional<size_t>> TakeIn(Take how, DType type, Pieces payload, Span to,
                                               Finite finite) override {
    return how == Take::kSet ? SetPieces(type, payload, to.floats(), finite)
                             : AddPieces(type, payload, to.floats(), finite);
  }

  absl::Status Compute(Lane& lane, const std::function<void(Ops&, Stream&)>& work) override {
    work(*lane.ops, *lane.stream);
    return lane.stream->Synchronize();
  }

  absl::Status ComputeInParts(Lane& lane, size_t count, const Part& work, const Made& made) override {
    Progress progress(count, made);
    helpers_.ForEach(PartsOf(count), [&](int item, int thread) {
      Lane& own = thread == 0 ? lane : lanes_[static_cast<size_t>(thread) - 1];
      const size_t first = static_cast<size_t>(item) * kPart;
      work(first, std::min(kPart, count - first), *own.ops, *own.stream);
      progress.OnDone(item, own.stream->Synchronize());
    });
    return progress.failure();
  }

  absl::Status CopyToHost(ConstSpan from, void* to, bool) override {
    if (from.bytes() > 0) std::memcpy(to, from.data, from.bytes());
    return absl::OkStatus();
  }

  absl::StatusOr<std::optional<size_t>> FirstNotFinite(ConstSpan values, Lane&) override {
    std::vector<std::optional<size_t>> found(static_cast<size_t>(PartsOf(values.count)));
    helpers_.ForEach(PartsOf(values.count), [&](int item, int) {
      const size_t first = static_cast<size_t>(item) * kPart;
      const ConstSpan part = values.Slice(first, std::min(kPart, values.count - first));
      const Bytes bytes(static_cast<const std::byte*>(part.data), part.bytes());
      found[static_cast<size_t>(item)] = psring::FirstNotFinite(part.type, {&bytes, 1});
    });
    for (size_t item = 0; item < found.size(); ++item) {
      if (found[item].has_value()) return *found[item] + item * kPart;
    }
    return std::nullopt;
  }

  absl::StatusOr<double> SumOfSquares(ConstSpan values, Lane&) override {
    return psring::SumOfSquares(values.floats(), values.count);
  }

 private:
  explicit HostShardDevice(std::vector<Lane> lanes)
      : lanes_(std::move(lanes)), helpers_(static_cast<int>(lanes_.size())) {}

  static int PartsOf(size_t count) { return static_cast<int>((count + kPart - 1) / kPart); }

  // Parts complete in any order, and are reported in ascending order.
  class Progress {
   public:
    Progress(size_t count, const Made& made)
        : count_(count), made_(made), done_(static_cast<size_t>(PartsOf(count))) {}

    void OnDone(int item, const absl::Status& status) {
      MutexLock lock(mutex_);
      failure_.Update(status);
      done_[static_cast<size_t>(item)] = status.ok();
      const size_t before = next_;
      while (next_ < done_.size() && done_[next_]) ++next_;
      if (next_ > before) made_(std::min(count_, next_ * kPart));
    }
    absl::Status failure() {
      MutexLock lock(mutex_);
      return failure_;
    }

   private:
    const size_t count_;
    const Made& made_;
    Mutex mutex_;
    std::vector<bool> done_ ABSL_GUARDED_BY(mutex_);
    size_t next_ ABSL_GUARDED_BY(mutex_) = 0;
    absl::Status failure_ ABSL_GUARDED_BY(mutex_);
  };

  std::vector<Lane> lanes_;  // of the helpers
  Helpers helpers_;          // last: they use the lanes
};

}  // namespace

absl::StatusOr<std::unique_ptr<ShardDevice>> MakeShardDevice(Device& device) {
  if (device.host_reads_memory()) return HostShardDevice::Create(device);
  return MakeGpuShardDevice(device);
}

}  // namespace psring
