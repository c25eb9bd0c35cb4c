// The parameters of one server, on its device: adds gradients, applies the optimizer and returns weights.
// Payload that arrives or is sent is in the host's memory; shard_device.h copies it.
//
// *Weights that are sent.* With kSum and kSumInOrder they are not copied: a bucket's weights change only
// after every worker has pushed the next step, and a worker pushes it after it has received these weights.
// Otherwise (kEachAlone, backup workers) an update may happen while they are sent, so they are sent from a
// copy. Weights on a GPU are sent from pinned memory: as large as all weights, or (copies) as the window.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/device/device.h"
#include "common/ops/ops.h"
#include "common/ops/optimizer.h"
#include "ps_server/protocol/pieces.h"
#include "ps_server/protocol/server_job.h"
#include "ps_server/shard/shard_device.h"
#include "ps_server/shard/staging_pool.h"

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

// Weights that are readable while `keep` is held (how long they stay the same: above).
struct Snapshot {
  ConstSpan weights;
  std::shared_ptr<const void> keep;
};

// A gradient, in the host's memory or (`on_gpu`) in memory that the shard's GPU can access, aligned as floats
// are. It does not change until the Apply that uses it has returned; with `keep`, until the exchange is
// answered, readable while `keep` is held.
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

class ParameterShard {
 public:
  // `job` is valid. ResourceExhausted if the device has too little memory; states how much is needed.
  static absl::StatusOr<std::unique_ptr<ParameterShard>> Create(const ServerJob& job, Device& device,
                                                                const ShardOptions& options = {});

  size_t bucket_bytes(int bucket) const { return buckets_[bucket].place.count * sizeof(float); }

  size_t gradient_bytes(int bucket) const {
    return buckets_[bucket].place.count * SizeOf(wire_);
  }  // on the wire

  // Sets a part of the bucket's weights (`slot` 0) or of a slot of the optimizer (from 1). Before the first
  // push; one thread at a time.
  absl::Status SetValues(int slot, int bucket, size_t offset, Pieces payload);
  int slots() const { return static_cast<int>(optimizer_.slots().size()); }

  // One push of a worker: BeginPush, then AddChunk for each chunk (or AddWhole), then Apply, for this push or
  // for several. A push reserves all staging memory that it and its answer will need (no deadlock:
  // payload.md). One thread at a time for one worker; different workers concurrently, also for the same
  // bucket. False: the window has no memory now, and `worker` is in the queue for it; nothing has begun.
  // kEachAlone: not while another push of the worker is partly staged. `whole`: AddWhole follows with it;
  // null: AddChunk.
  absl::StatusOr<bool> BeginPush(int worker, int bucket, int64_t step, const WholeGradient* whole = nullptr);
  // The same for a push whose answer is to be sent again.
  bool BeginRepeat(int worker, int bucket, bool in_place = false);

  struct Added {
    bool added = true;  // false: the bucket has been reset since, and nothing was added
    // reject_nonfinite: the first element that is NaN or infinite. Earlier ones may be in the sum.
    std::optional<size_t> not_finite = {};
  };
  // `payload`: in the job's wire format. `resets`: the bucket's resets that the worker knows of. Errors are
  // the device's.
  absl::StatusOr<Added> AddChunk(int worker, int bucket, size_t offset, Pieces payload, uint64_t resets = 0);
  absl::StatusOr<Added> AddWhole(int worker, int bucket, const WholeGradient& whole, Lane& lane,
                                 uint64_t resets = 0);

  // Whether parts of pushes are in one sum, so that only Reset removes them.
  bool adds_as_it_arrives() const { return accumulation_ == Accumulation::kSum; }
  // Empties the bucket's sum; chunks for the old one are not added. Returns resets().
  uint64_t Reset(int bucket);
  uint64_t resets(int bucket) const { return buckets_[bucket].resets; }
  // Discards the worker's partial push. kSum: see Reset.
  void DropPush(int worker, int bucket);
  // All pushes of the worker's step are whole or dropped.
  void EndStep(int worker) { step_shares_[worker] = {}; }
  // kEachAlone: whether a push of the bucket has begun and uses part of the window.
  bool is_staged(int worker, int bucket) const;
  StagingPool& staging() const { return *staging_; }

  // The sum of squares of the sum of the complete pushes of `workers`. Call before Apply with the same
  // workers; not with kEachAlone.
  absl::StatusOr<double> Reduce(int bucket, std::span<const int> workers, Lane& lane);

  // Factors of an update's gradient (clipping) and learning rate (staleness).
  struct Factors {
    double gradient = 1;
    double rate = 1;
  };
  // Updates the bucket with the complete pushes of `workers`, of `samples` samples in all. `version`: number
  // of the bucket's updates, including this one. One thread at a time for a bucket. kSum and kSumInOrder:
  // `workers` are all that have pushed, in order.
  absl::Status Apply(int bucket, std::span<const int> workers, int64_t samples, int64_t version,
                     const Factors& factors, Lane& lane, const Outlets& outlets = {});

  // Frees the rest of the memory of the push that was applied (or repeated) last.
  void EndAnswers(int bucket) { buckets_[bucket].spare = {}; }
  // The answers to a repeated push use its memory.
  void UseRepeat(int worker, int bucket);

  bool on_host() const { return on_host_; }  // whether Apply supports Outlets
  bool sends_copies() const { return sends_copies_; }
  // Not while Apply runs on the bucket. `on_gpu`: to memory that this shard's GPU can access.
  absl::Status CopyWeightsTo(int bucket, std::byte* to, bool on_gpu, Lane& lane) const;

  // The bucket's weights, for workers that have pushed, or whose push is dropped. Not while Apply runs on the
  // bucket. A copy uses the memory of the push that was applied last, or (a worker has left, or is dropped)
  // memory beyond the window.
  absl::StatusOr<Snapshot> Read(int bucket);
  // A copy of the weights (`slot` 0) or of a slot of the optimizer. Not while Apply runs on the bucket.
  absl::StatusOr<Snapshot> Copy(int bucket, int slot = 0) const;

  // For checkpoints: the weights, then each slot of the optimizer, value_count() floats in all; copies the
  // bucket's part. Not while Apply runs on the bucket.
  size_t value_count() const;
  absl::Status SaveBucket(int bucket, float* values) const;
  absl::Status LoadBucket(int bucket, const float* values);
  int64_t samples_applied(int bucket) const { return buckets_[bucket].samples_applied; }
  void set_samples_applied(int bucket, int64_t samples) { buckets_[bucket].samples_applied = samples; }

 private:
  struct Chunk {
    Mutex mutex;
    bool started ABSL_GUARDED_BY(mutex) = false;  // the sum contains a gradient
  };
  struct Staged {
    StagingPool::Share share;
    std::shared_ptr<Buffer> buffer;  // null: not needed
  };
  struct BucketState {
    Bucket place;
    int64_t samples_applied = 0;
    std::atomic<uint64_t> resets{0};
    std::unique_ptr<Chunk[]> chunks;  // kSum: one lock each, so that workers add concurrently
    std::vector<Staged> staged;       // by worker
    Staged spare;                     // kEachAlone: of the push that was applied last, for its answers
    // By worker: a gradient that is neither staged nor added, but read in place. kSum: guarded by the first
    // chunk's mutex.
    std::vector<WholeGradient> borrowed;
    bool reduced = false;     // Reduce has added the pushes up
    bool handed_out = false;  // host_weights_ contains these weights
  };
  // kEachAlone and serial: answers wait for the whole gradient of a step, so its memory is reserved at once.
  struct StepShare {
    int64_t step = -1;
    StagingPool::Share share;
  };

  ParameterShard(const ServerJob& job, Device& device, Optimizer optimizer, const ShardOptions& options);

  absl::Status Allocate();

  // The bucket's part of the weights, then of each slot of the optimizer.
  Span ValuesOf(const BucketState& bucket, int slot = 0) const;
  // kSum: the sum contains all gradients so far (`started`), or none; none is elsewhere.
  void MarkSum(int bucket, bool started);
  // kEachAlone: null if there is no memory now.
  StagingPool::Share Reserve(int worker, int bucket, int64_t step);
  // Whether a whole gradient is read in place.
  bool borrows(const WholeGradient& whole) const {
    return wire_ == DType::kFloat32 && whole.on_gpu == !on_host_ &&
           (accumulation_ == Accumulation::kEachAlone || (whole.keep != nullptr && on_host_));
  }
  // False: it has to be added, because the bucket was reset meanwhile or enough are read in place already.
  bool Borrow(int worker, int bucket, const WholeGradient& whole, uint64_t resets);
  absl::StatusOr<Added> AddOnGpu(int worker, int bucket, ConstSpan gradient, Lane& lane, uint64_t resets);
  // The pushes of `workers` in place: their sum, from left to right, is the gradient.
  std::vector<const float*> TermsOf(BucketState& bucket, std::span<const int> workers);
  // Adds them to one sum.
  absl::StatusOr<Span> AddUp(BucketState& bucket, std::span<const int> workers, Lane& lane);

  const Accumulation accumulation_;
  const DType wire_;
  const bool sends_copies_;
  const bool bounded_;  // an update may also answer workers other than the one that pushed
  const bool serial_;
  const Finite finite_;
  const LrSchedule schedule_;
  const int64_t parameters_;
  Device& device_;
  const bool on_host_;
  Optimizer optimizer_;
  std::shared_ptr<Buffer> weights_;
  std::shared_ptr<Buffer> host_weights_;  // weights_, or the pinned copy from which they are sent
  Buffer sum_;                            // kSum
  std::deque<BucketState> buckets_;       // addresses do not change
  std::vector<StepShare> step_shares_;    // by worker
  const std::shared_ptr<StagingPool> staging_;
  const std::shared_ptr<StagingPool> answers_;  // staging_, or pinned memory with the same shares
  std::unique_ptr<ShardDevice> on_device_;      // last: its work uses the members above
};

}  // namespace psring
