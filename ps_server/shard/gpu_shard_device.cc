// A shard on a GPU.

#include <algorithm>
#include <cstring>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "common/base/deadline.h"
#include "common/base/mutex.h"
#include "common/device/host_view.h"
#include "common/device_factory/make_ops.h"
#include "ps_server/shard/shard_device.h"

namespace psring {
namespace {

// Chunks in transit to and from the GPU: enough for several threads that gather one while another is copied
// and a third is added.
constexpr size_t kSlots = 16;
// Longer than any operation here takes.
constexpr absl::Duration kStuck = absl::Minutes(1);

// Memory of one chunk in transit.
struct Slot {
  std::byte* host;    // kChunkBytes, pinned
  std::byte* device;  // as many
  Event done;         // when it completes, the GPU no longer uses the slot
};

class GpuShardDevice : public ShardDevice {
 public:
  static absl::StatusOr<std::unique_ptr<ShardDevice>> Create(Device& device) {
    auto gpu = std::unique_ptr<GpuShardDevice>(new GpuShardDevice(device));
    PSRING_ASSIGN_OR_RETURN(gpu->ops_, MakeUpdateOps(device));
    PSRING_ASSIGN_OR_RETURN(gpu->sum_, DeviceValue<double>::Create(device));
    PSRING_ASSIGN_OR_RETURN(gpu->found_, DeviceValue<uint32_t>::Create(device));
    PSRING_ASSIGN_OR_RETURN(gpu->pinned_, device.AllocateOnHost(kSlots * kChunkBytes));
    PSRING_ASSIGN_OR_RETURN(gpu->arrived_, device.Allocate(kSlots * kChunkBytes));
    MutexLock lock(gpu->slots_mutex_);
    for (size_t i = 0; i < kSlots; ++i) {
      gpu->slots_.push_back({static_cast<std::byte*>(gpu->pinned_.data()) + i * kChunkBytes,
                             static_cast<std::byte*>(gpu->arrived_.data()) + i * kChunkBytes});
    }
    return gpu;
  }

  absl::StatusOr<std::optional<size_t>> TakeIn(Take how, DType type, Pieces payload, Span to,
                                               Finite finite) override {
    PSRING_CHECK(TotalBytes(payload) == to.count * SizeOf(type) && TotalBytes(payload) <= kChunkBytes);
    if (to.count == 0) return std::nullopt;
    SlotLease slot(*this);
    PSRING_RETURN_IF_ERROR(slot->done.Wait(MonotonicNow() + kStuck));
    if (const std::optional<size_t> found = Gather(type, payload, slot->host, finite)) return found;
    const ConstSpan arrived(slot->device, to.count, type);
    MutexLock lock(streams_mutex_);
    up_->Copy(slot->device, slot->host, arrived.bytes());
    kernels_->WaitFor(up_->Record());
    if (how == Take::kAdd) {
      ops_->Add(to, arrived, *kernels_);
    } else {
      ops_->Convert(arrived, to, *kernels_);
    }
    slot->done = kernels_->Record();
    return std::nullopt;
  }

  absl::Status Compute(Lane&, const std::function<void(Ops&, Stream&)>& work) override {
    Event done;
    {
      MutexLock lock(streams_mutex_);
      work(*ops_, *kernels_);
      done = kernels_->Record();
    }
    return done.Wait(MonotonicNow() + kStuck);
  }

  absl::Status ComputeInParts(Lane& lane, size_t count, const Part& work, const Made& made) override {
    PSRING_RETURN_IF_ERROR(Compute(lane, [&](Ops& ops, Stream& stream) { work(0, count, ops, stream); }));
    made(count);
    return absl::OkStatus();
  }

  absl::Status CopyToHost(ConstSpan from, void* to, bool pinned) override {
    if (pinned) return CopyDown(from.data, to, from.bytes()).Wait(MonotonicNow() + kStuck);
    // A copy to memory that is not pinned would block the thread that enqueues it.
    const auto* const begin = static_cast<const std::byte*>(from.data);
    for (size_t at = 0; at < from.bytes(); at += kChunkBytes) {
      const size_t bytes = std::min(kChunkBytes, from.bytes() - at);
      SlotLease slot(*this);
      PSRING_RETURN_IF_ERROR(slot->done.Wait(MonotonicNow() + kStuck));
      slot->done = CopyDown(begin + at, slot->host, bytes);
      PSRING_RETURN_IF_ERROR(slot->done.Wait(MonotonicNow() + kStuck));
      std::memcpy(static_cast<std::byte*>(to) + at, slot->host, bytes);
    }
    return absl::OkStatus();
  }

  // The GPU determines whether there is one; if so, the host looks for the first.
  absl::StatusOr<std::optional<size_t>> FirstNotFinite(ConstSpan values, Lane&) override {
    PSRING_ASSIGN_OR_RETURN(const uint32_t found, ResultOf(*found_, [&](uint32_t* result) {
                              ops_->FindNotFinite(values, result, *kernels_);
                            }));
    if (found == 0) return std::nullopt;
    std::vector<std::byte> here(values.bytes());
    PSRING_RETURN_IF_ERROR(CopyToHost(values, here.data(), /*pinned=*/false));
    const Bytes all(here);
    return psring::FirstNotFinite(values.type, {&all, 1});
  }

  absl::StatusOr<double> SumOfSquares(ConstSpan values, Lane&) override {
    return ResultOf(*sum_, [&](double* result) { ops_->AddSquares(values, result, *kernels_); });
  }

 private:
  explicit GpuShardDevice(Device& device)
      : kernels_(device.NewStream(StreamKind::kCompute, "shard")),
        up_(device.NewStream(StreamKind::kCompute, "shard up")),
        down_(device.NewStream(StreamKind::kCompute, "shard down")) {}

  // Takes the least recently used slot, waiting for one if necessary, and returns it when destroyed.
  class SlotLease {
   public:
    explicit SlotLease(GpuShardDevice& gpu) : gpu_(gpu) {
      MutexLock lock(gpu_.slots_mutex_);
      while (gpu_.slots_.empty()) gpu_.slot_back_.Wait(gpu_.slots_mutex_);
      slot_ = std::move(gpu_.slots_.front());
      gpu_.slots_.pop_front();
    }
    ~SlotLease() {
      MutexLock lock(gpu_.slots_mutex_);
      gpu_.slots_.push_back(std::move(slot_));
      gpu_.slot_back_.NotifyOne();
    }
    SlotLease(const SlotLease&) = delete;
    SlotLease& operator=(const SlotLease&) = delete;
    Slot* operator->() { return &slot_; }

   private:
    GpuShardDevice& gpu_;
    Slot slot_;
  };

  // What `enqueue(result)` adds to a value on the GPU that is 0 before.
  template <typename T, typename Enqueue>
  absl::StatusOr<T> ResultOf(DeviceValue<T>& value, const Enqueue& enqueue) {
    MutexLock one_at_a_time(results_mutex_);
    Event done;
    {
      MutexLock lock(streams_mutex_);
      value.Zero(*kernels_);
      enqueue(value.on_device());
      value.Download(*kernels_);
      done = kernels_->Record();
    }
    PSRING_RETURN_IF_ERROR(done.Wait(MonotonicNow() + kStuck));
    return value.on_host();
  }

  // Checks the values while they are in the cache.
  static std::optional<size_t> Gather(DType type, Pieces payload, std::byte* to, Finite finite) {
    if (type == DType::kFloat32) return SetPieces(type, payload, reinterpret_cast<float*>(to), finite);
    CopyPieces(payload, to);
    if (finite == Finite::kAny) return std::nullopt;
    const Bytes gathered(to, TotalBytes(payload));
    return psring::FirstNotFinite(type, {&gathered, 1});
  }

  // After all kernels that have been enqueued.
  Event CopyDown(const void* from, void* to, size_t bytes) {
    MutexLock lock(streams_mutex_);
    down_->WaitFor(kernels_->Record());
    down_->Copy(to, from, bytes);
    return down_->Record();
  }

  Buffer pinned_, arrived_;  // of the slots
  Mutex slots_mutex_;
  CondVar slot_back_;
  std::deque<Slot> slots_ ABSL_GUARDED_BY(slots_mutex_);

  Mutex results_mutex_;  // before streams_mutex_
  std::optional<DeviceValue<double>> sum_;
  std::optional<DeviceValue<uint32_t>> found_;

  Mutex streams_mutex_;
  std::unique_ptr<Ops> ops_;  // on kernels_
  // Last: destroyed first, when they wait for work that uses the members above.
  const std::unique_ptr<Stream> kernels_ ABSL_PT_GUARDED_BY(streams_mutex_);
  const std::unique_ptr<Stream> up_ ABSL_PT_GUARDED_BY(streams_mutex_);
  const std::unique_ptr<Stream> down_ ABSL_PT_GUARDED_BY(streams_mutex_);
};

}  // namespace

absl::StatusOr<std::unique_ptr<ShardDevice>> MakeGpuShardDevice(Device& device) {
  return GpuShardDevice::Create(device);
}

}  // namespace psring
