// What the server sends to a worker, and the worker's stream that sends it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "ps_server/protocol/messages.h"
#include "ps_server/protocol/pieces.h"
#include "ps_server/shard/parameter_shard.h"

namespace psring {

class ReplySink;

// A message and its entire payload; the transport cuts it into chunks. `weights` stay readable while the
// reply exists.
struct Reply {
  message::ToWorker message;
  Snapshot weights = {};
  bool in_place = false;  // the weights are at the sink's PlaceOf already, and not in `weights`
  bool counted = false;   // in the server's statistics, which count each push once
  // A part of it, in bytes of the weights: from the beginning of a chunk to that of another, or to the end.
  // Parts come in ascending order, and only to sinks with TakesParts.
  size_t from = 0, upto = SIZE_MAX;
  // Used by the server: the sink that got what is before `from`, or in whose memory the weights are.
  std::shared_ptr<ReplySink> begun_on = {};
};

// By worker. The caller delivers them when it holds no lock.
using Replies = std::vector<std::pair<int, Reply>>;

// One worker's stream. Called from any thread, concurrently; must not block or call the server.
class ReplySink {
 public:
  virtual ~ReplySink() = default;
  virtual void Deliver(Reply reply) = 0;
  // Repeat the message for which Receive returns kNotYet. May be called before Receive returns.
  virtual void Proceed() = 0;
  // Whether a reply may come in parts, the first of them while the others are still being computed.
  virtual bool TakesParts() const { return false; }
  // Keeps the memory of gradients with ReceivedPayload::stays readable until their exchange is answered.
  // Null: read them before the call returns.
  virtual std::shared_ptr<const void> Memory() const { return nullptr; }
  // Where the weights (`bytes`) that answer the exchange of `bucket` may be written directly; null: nowhere.
  // Called before Deliver.
  struct Place {
    std::byte* data = nullptr;
    bool on_gpu = false;  // memory of a GPU, accessible to the server's GPU
  };
  virtual Place PlaceOf(int bucket, size_t bytes) {
    (void)bucket, (void)bytes;
    return {};
  }
  // The worker is no longer in the job, or the job has failed. Called at most once; nothing is delivered
  // afterwards.
  virtual void Abort(const absl::Status& why) = 0;
};

// A message's payload. `stays`: it is in aligned memory of the worker, which does not change until the
// exchange is answered; then it may be an entire bucket at once, and must be if it is `on_gpu`.
struct ReceivedPayload {
  Pieces pieces = {};
  bool stays = false;
  bool on_gpu = false;
};

// Whether a message was taken. kNotYet: there is no memory for it now, and nothing of it was taken.
enum class Receipt { kTaken, kNotYet };

}  // namespace psring
