// One direction between two ranks, by which a pipeline's stages exchange activations or gradients.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "common/device/device.h"
#include "common/measure/trace.h"
#include "ring_worker/groups/process_group.h"

namespace psring {

// First in, first out, without buffering, on a stream of its own: a transfer begins when both ends have
// reached it (MPI and NCCL may send short ones ahead), and does not wait for other work of the rank. Channels
// that share a stream also wait for each other's transfers. Used by one thread, except Abort and traffic. The
// destructor runs what is queued; after an error, call Abort first (of all channels on the stream), or it
// waits for the peer.
class Channel {
 public:
  // `pair`: two ranks, of which rank 0 sends. `device`: of the data; outlives the channel. `name` labels the
  // stream. `lane`: shared with other channels; null: one of its own. InvalidArgument: not two ranks, or the
  // group cannot reach the device's memory.
  static absl::StatusOr<std::unique_ptr<Channel>> Create(std::unique_ptr<ProcessGroup> pair, Device& device,
                                                         const std::string& name,
                                                         std::shared_ptr<Stream> lane = nullptr);
  ~Channel() { (void)lane_->Synchronize(); }
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  bool sends() const { return pair_->rank() == 0; }
  // Where transfers are enqueued. Its events and Synchronize return their errors, which name the peer.
  Stream& lane() { return *lane_; }

  // Enqueues a transfer on the lane; both ends call it with the same count and type. When the lane has
  // reached the end of it, the receiver's `data` has the values of the sender's.
  absl::Status Transfer(Span data);

  // Every pending and later transfer fails with `why`.
  void Abort(absl::Status why) { pair_->Abort(std::move(why)); }
  // Payload bytes so far.
  Traffic traffic() const { return pair_->traffic(); }

 private:
  Channel(std::unique_ptr<ProcessGroup> pair, std::shared_ptr<Stream> lane)
      : pair_(std::move(pair)), lane_(std::move(lane)) {}

  std::unique_ptr<ProcessGroup> pair_;
  std::shared_ptr<Stream> lane_;  // its work uses the group
};

}  // namespace psring
