// The parameters a server holds, on its device: adds up gradients, applies the optimizer, hands out weights.
// What arrives and what is handed out stands in the host's memory (shard_device.h has the way between).
//
// How a bucket's gradients become one update:
//   kSum           synchronous. Chunks are added to one sum as they arrive, in any order of workers. The
//                  first to arrive of a chunk is copied, so nothing is ever cleared.
//   kSumInOrder    synchronous and deterministic. Each push is staged whole; Apply adds them in worker order:
//                  ((g0 + g1) + g2) + ..., the bits that one process gets that adds N micro-batches in order.
// In both, gradients that stand whole in memory shared with their workers stay there until the update, which
// reads them all in the same pass as it writes the weights: of kSum so many as one pass reads well.
//   kEachAlone     asynchronous, bounded staleness. Each push is staged whole and applied by itself; then
//                  the weights for the answer are copied to where the gradient was. A push that stands whole
//                  in memory shared with its worker is applied from there.
//
// Staged pushes and their answers share a window of memory (staging_pool.h) of a fixed size. A push gets all
// that it will need when it begins, or does not begin yet. So whoever holds a share of the window waits for
// nobody else who does: a push that has begun waits for its own worker alone, which sends it to its end
// before it begins another; an answer waits for its readers, who read whatever they may be sending. Sooner or
// later each lets go, and those in line get theirs in turn.
//
// Weights that are handed out are not copied where every worker makes every step: nothing writes a bucket's
// weights until every worker has pushed the next step, and a worker pushes that only after it has received
// these. Everywhere else (kEachAlone, spare workers) updates may come while they are still being sent, so
// they are sent from a copy, in a buffer that is used again. In every mode the memory lives for as long as
// somebody holds the Snapshot. Of weights that live on a GPU what is handed out stands in pinned memory: in
// one place as large as the weights in the first case, in as much again as the window in the second.
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
#include "common/base/mutex.h"
#include "common/device/device.h"
#include "common/ops/ops.h"
#include "common/ops/optimizer.h"
#include "ps_server/protocol/messages.h"
#include "ps_server/protocol/pieces.h"
#include "ps_server/protocol/server_job.h"
#include "ps_server/shard/shard_device.h"
#include "ps_server/shard/staging_pool.h"

namespace psring {

struct ShardOptions {
  // The window. At least what one push needs, and unlimited where answers are kept by whoever asks for more.
  size_t staging_bytes = SIZE_MAX;
  bool reject_nonfinite = true;
};

enum class Accumulation { kSum, kSumInOrder, kEachAlone };
Accumulation AccumulationOf(const ServerJob& job);

// Weights that are safe to read for as long as `keep` is held (see above for how long they stay the same).
struct Snapshot {
  ConstSpan weights;
  std::shared_ptr<const void> keep;
};

// How a push will come: by AddChunk, or `whole` by AddWhole.
struct PushManner {
  bool whole = false;
  bool on_gpu = false;  // from memory that this shard's GPU reaches
  bool stays = false;   // whole, and there until the exchange is answered
};

class ParameterShard {
 public:
  // `job` is valid. ResourceExhausted where the device cannot hold it, with how much is needed.
  static absl::StatusOr<std::unique_ptr<ParameterShard>> Create(const ServerJob& job, Device& device,
                                                                const ShardOptions& options = {});

  size_t bucket_bytes(int bucket) const { return buckets_[bucket].place.count * sizeof(float); }

  // Of a gradient of the bucket, as it arrives.
  size_t gradient_bytes(int bucket) const { return buckets_[bucket].place.count * SizeOf(wire_); }

  // Bytes of the bucket's initial weights, or of a slot of the optimizer. Before anything is pushed; one
  // thread at a time.
  absl::Status SetWeights(int bucket, size_t offset, Pieces payload);
  absl::Status SetSlot(int slot, int bucket, size_t offset, Pieces payload);
  int slots() const { return static_cast<int>(optimizer_.slots().size()); }

  // One push of a worker: BeginPush, then AddChunk for chunk after chunk, then Apply, alone or together with
  // others. One thread at a time for one worker; different workers at once, into the same bucket too.
  // `manner.whole`: AddWhole will follow instead of chunks. False: the window has no room for it now, and
  // `worker` stands in line; nothing has begun. kEachAlone: not while another push of the worker is staged in
  // part.
  absl::StatusOr<bool> BeginPush(int worker, int bucket, int64_t step, const PushManner& manner = {});
  // The same for a push of which only the answer is wanted once more.
  bool BeginRepeat(int worker, int bucket, bool in_place = false);

  struct Added {
    bool added = true;  // false: the bucket has been reset once more, and nothing was added
    // reject_nonfinite: the first element that is NaN or infinite. Part of what is before it may stand in the
    // sum.
    std::optional<size_t> not_finite = {};
  };
  // `payload`: in the job's wire format. `resets`: how often the bucket has been reset, for all that the
  // worker knows. Errors are the device's.
  absl::StatusOr<Added> AddChunk(int worker, int bucket, size_t offset, Pieces payload, uint64_t resets = 0);
  // The whole gradient, in the host's memory or on the GPU as BeginPush was told, aligned as floats are,
  // which stays as it is until the Apply that takes it has returned: where each push is applied alone, came
  // in float32 and can be read from there, it is not copied.
  // `keep` as well (where BeginPush was told that it stays): the gradient is as it is until the exchange is
  // answered, and readable while `keep` is held; then synchronous modes leave it there too until Apply.
  struct Whole {
    Bytes gradient;
    bool on_gpu = false;
    std::shared_ptr<const void> keep = {};
  };
  absl::StatusOr<Added> AddWhole(int worker, int bucket, const Whole& whole, Lane& lane, uint64_t resets = 0);

  // Whether the bytes of a push that is not whole stand in a sum together with others', so that only a Reset
  // gets rid of them.
  bool adds_as_it_arrives() const { return accumulation_ == Accumulation::kSum; }
  // Empties the bucket's sum; what still arrives for the old one is not added. Returns resets().
  uint64_t Reset(int bucket);
  uint64_t resets(int bucket) const { return buckets_[bucket].resets; }
  // Lets go of the worker's push that is not whole. kSum: see Reset.
  void DropPush(int worker, int bucket);
  // All pushes of the worker's step are whole, or given up.
  void EndStep(int worker) { step_shares_[worker] = {}; }
  // kEachAlone: whether a push of the bucket that has begun is staged, and so takes up part of the window.
  bool is_staged(int worker, int bucket) const;
  // Where pushes wait for room, and whose answers take it up.
  StagingPool& staging() const { return *staging_; }

  // The sum of squares of the complete pushes of `workers`, added up. Before Apply of the same; not
  // kEachAlone.
  absl::StatusOr<double> Reduce(int bucket, std::span<const int> workers, Lane& lane);

  // By what an update's gradient (clipping) and rate (staleness) are multiplied.
  struct Factors {
    double gradient = 1;
    double rate = 1;
  };
  // Makes one update of the bucket from the complete pushes of `workers`, `samples` samples in all. `version`
  // counts the bucket's updates, this one included. One thread at a time for a bucket. kSum and kSumInOrder:
  // `workers` are all that have pushed, in order.
  // In the host's memory the new weights are written to `places` too, each as large as the bucket; and
  // `made` hears how many bytes of the bucket's weights are final, while the rest is still being computed
  // (shard_device.h has its threads).
  struct Outlets {
    std::vector<std::byte*> places;
    std::function<void(size_t bytes)> made = [](size_t) {};
  };
  absl::Status Apply(int bucket, std::span<const int> workers, int64_t samples, int64_t version,
                     const Factors& factors, Lane& lane, const Outlets& outlets);
  absl::Status Apply(int bucket, std::span<const int> workers, int64_t samples, int64_t version,
                     const Factors& factors, Lane& lane) {
    return Apply(bucket, workers, samples, version, factors, lane, Outlets{});
  }

  // What the answers to the push that was just applied (or repeated) did not need of its share.
  void EndAnswers(int bucket) { buckets_[bucket].spare = {}; }
  // For the answers to a push that is not applied once more: its share.
  void UseRepeat(int worker, int bucket);

  // Whether Apply serves `places`, and tells what is made before all is.
  bool on_host() const { return on_host_; }
  // Whether Read copies, because updates may come while the weights are being sent.
  bool sends_copies() const { return sends_copies_; }
  // Not while Apply runs on the bucket.
  absl::Status CopyWeightsTo(int bucket, std::byte* to) const;
  absl::Status CopyWeightsToGpu(int bucket, std::byte* to, Lane& lane) const;  // memory that this GPU reaches

  // The bucket's weights, for workers that have pushed, or whose push is dropped. Not while Apply runs on the
  // bucket. A copy stands where the push did that was just applied; where there was none (a worker has left,
  // or is dropped), in memory beyond the window.
  absl::StatusOr<Snapshot> Read(int bucket, Lane& lane);

  // For checkpoints: as many floats as weights and optimizer state have, and the bucket's part of them, out
  // or in. Not while Apply runs on the bucket.
  size_t value_count() const;
  absl::Status SaveBucket(int bucket, float* values) const;
  absl::Status LoadBucket(int bucket, const float* values);
  int64_t samples_applied(int bucket) const { return buckets_[bucket].samples_applied; }
  void set_samples_applied(int bucket, int64_t samples) { buckets_[bucket].samples_applied = samples; }

  // A copy of the bucket's weights, for whoever asks at any time. Not while Apply runs on the bucket.
  absl::StatusOr<Snapshot> CopyWeights(int bucket) const;
  absl::StatusOr<Snapshot> CopySlot(int slot, int bucket) const;

 private:
  struct Chunk {
    Mutex mutex;
    bool started ABSL_GUARDED_BY(mutex) = false;  // somebody's gradient stands in the sum
  };
  struct Staged {
    StagingPool::Share share;
    std::shared_ptr<Buffer> buffer;  // where there is need for one
  };
  struct BucketState {
    Bucket place;
    int64_t samples_applied = 0;
    std::atomic<uint64_t> resets{0};
    std::unique_ptr<Chunk[]> chunks;  // kSum: one lock each, so that workers add side by side
    std::vector<Staged> staged;       // by worker
    Staged spare;                     // kEachAlone: of the push that was just applied, for its answers
    // By worker: where its gradient stands, instead of staged or added up. kSum: changed under the first
    // chunk's lock.
    std::vector<ParameterShard::Whole> borrowed;
    bool reduced = false;     // by Reduce: the pushes are one
    bool handed_out = false;  // these weights stand in host_weights_ already
  };
  // kEachAlone and serial: answers wait for the whole gradient of a step, so room for all of them is had at
  // once.
  struct StepShare {
    int64_t step = -1;
    StagingPool::Share share;
  };

  ParameterShard(const ServerJob& job, Device& device, Optimizer optimizer, const ShardOptions& options);

  absl::Status Allocate();

  Span WeightsOf(const BucketState& bucket) const;
  absl::StatusOr<Snapshot> CopyOf(ConstSpan values) const;
  // kSum: whether all gradients so far stand in the sum, or none does. None stands elsewhere any more.
  void MarkSum(int bucket, bool started);
  // kEachAlone: null where there is no room now.
  StagingPool::Share Reserve(int worker, int bucket, int64_t step);
  // Whether a whole gradient is applied from where it stands.
  bool borrows(const PushManner& manner) const {
    return manner.whole && wire_ == DType::kFloat32 && manner.on_gpu == !on_host_ &&
           (accumulation_ == Accumulation::kEachAlone || (manner.stays && on_host_));
  }
  // False: it has to be added, because the bucket was reset meanwhile or enough stand elsewhere already.
  bool Borrow(int worker, int bucket, const Whole& whole, uint64_t resets);
  absl::StatusOr<Added> AddOnGpu(int worker, int bucket, ConstSpan gradient, Lane& lane, uint64_t resets);
  // The pushes of `workers`, where they stand: their sum, from left to right, is the gradient.
  std::vector<const float*> TermsOf(BucketState& bucket, std::span<const int> workers);
  // Has them in one place.
  absl::StatusOr<Span> AddUp(BucketState& bucket, std::span<const int> workers, Lane& lane);
  // `values` of a range on the device, from the host, in chunks.
  absl::Status SetFloats(Span to, const float* values);

  const Accumulation accumulation_;
  const DType wire_;
  const bool sends_copies_;
  const bool bounded_;  // an update may be answered to others than whose push it was made of
  const bool serial_;
  const Finite finite_;
  const LrSchedule schedule_;
  const int64_t parameters_;
  Device& device_;
  const bool on_host_;  // the device's memory is the host's
  Optimizer optimizer_;
  std::shared_ptr<Buffer> weights_;
  std::shared_ptr<Buffer> host_weights_;  // weights_, or what of them is handed out without a copy
  Buffer sum_;                            // kSum
  std::deque<BucketState> buckets_;       // stay where they are
  std::vector<StepShare> step_shares_;    // by worker
  const std::shared_ptr<StagingPool> staging_;
  const std::shared_ptr<StagingPool> answers_;  // staging_, or pinned memory for what has a share of it
  std::unique_ptr<ShardDevice> on_device_;      // last: its work uses the above
};

}  // namespace psring
