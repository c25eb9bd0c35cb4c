// What arrives for a job's buckets: worker 0's initial weights, and the pushes of all workers. Each push is
// applied exactly once, however often it is sent (protocol/protocol.md).
//
// Calls for one worker hold its WorkerStream::receive, those of HoldsMemory no lock; calls for different
// workers run concurrently.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ps_server/protocol/messages.h"
#include "ps_server/protocol/pieces.h"
#include "ps_server/server/bucket_rounds.h"
#include "ps_server/server/worker_stream.h"
#include "ps_server/shard/parameter_shard.h"

namespace psring {

class BucketReceiver {
 public:
  // The references outlive this.
  struct Parts {
    ServerJob job;
    bool each_alone = false;  // each push is an update
    uint64_t incarnation = 0;
    ParameterShard& shard;
    BucketRounds& rounds;
    WorkerStream* workers;                                     // one per worker of the job
    std::function<void(const absl::Status&)> on_device_error;  // the device has failed, not a worker
  };
  explicit BucketReceiver(Parts parts)
      : parts_(std::move(parts)), weights_(parts_.job.buckets.size()), weights_left_(weights_.size()) {}

  // From worker 0, while weights are missing.
  bool lacks_weights() const { return weights_left_ > 0; }
  absl::Status OnWeights(const message::InitialWeights& chunk, Pieces payload);

  struct Received {
    Receipt receipt = Receipt::kTaken;
    bool complete = false;  // with this chunk, a push that was not complete before
  };
  absl::StatusOr<Received> OnGradient(int worker, const message::Gradient& chunk,
                                      const ReceivedPayload& payload, Lane& lane, Replies& replies);

  // Discards what the worker has staged in part, and its place in the queue for memory.
  void DropStaged(int worker);
  // The workers that use the memory for which others wait.
  BucketRounds::Missing HoldsMemory();
  int64_t answered_again() const { return answered_again_; }  // repeated pushes

 private:
  enum class Added { kNotYet, kPart, kComplete, kRepeat };  // kPart: or it is ignored

  absl::Status CheckBucket(int worker, int bucket) const;
  absl::StatusOr<Added> Add(int worker, const message::Gradient& chunk, const ReceivedPayload& payload,
                            Lane& lane);
  absl::StatusOr<Receipt> BeginPush(int worker, const message::Gradient& chunk, const WholeGradient* whole);
  absl::StatusOr<Received> OnComplete(int worker, int bucket, Lane& lane, Replies& replies);
  absl::StatusOr<Received> OnRepeat(int worker, int bucket, bool in_place, Lane& lane, Replies& replies);
  // The buckets of the worker's pushes that are staged in part.
  std::vector<int> PartlyStaged(int worker) const;
  int bucket_count() const { return static_cast<int>(parts_.job.buckets.size()); }

  struct Weights {  // initial ones of a bucket
    uint64_t bytes = 0;
    bool whole = false;
  };
  const Parts parts_;
  std::vector<Weights> weights_;  // by bucket
  size_t weights_left_;           // buckets
  std::atomic<int64_t> answered_again_{0};
};

}  // namespace psring
