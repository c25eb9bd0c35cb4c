// The messages between a worker and a server, independent of the transport. The order of messages, and the
// rules for repeating them: protocol.md.
//
// Bucket data are sent as *chunks* of kChunkBytes (pieces.h), in order; the last one may be shorter, and a
// bucket without elements is one empty chunk.
//
// *incarnation*: identifies one run of a server, from its start or restart to its end; never 0. *epoch*:
// counts how often several servers have begun at a common step (consistency/common_step.h).
#pragma once

#include <cstdint>
#include <optional>
#include <variant>

namespace psring {
namespace message {

// Worker to server.

// The first message of a stream; its payload is a Joining (server_job.h).
struct Join {};

// From worker 0 after its Join, a chunk each: the optimizer's slots (from 1), then the weights (slot 0).
struct InitialWeights {
  int bucket = 0;
  uint64_t offset = 0;  // of the payload in the bucket, in bytes
  int64_t slot = 0;
};

// Payload in memory that worker and server share (wire/shared_payload.h): the message has none.
struct SharedPlaces {
  uint64_t bytes = 0;        // of the gradient; in an Answer, of the weights
  uint64_t gradient_at = 0;  // offset in the worker's shared gradients; 0 in an Answer
  uint64_t weights_at = 0;   // where the bucket's weights are to be written, or are already
};

// A chunk of a push; with `shared`, a chunk or the entire push. Ignored if it is for another incarnation.
struct Gradient {
  int bucket = 0;
  uint64_t offset = 0;
  int64_t step = 0;
  int64_t samples = 0;  // in the entire gradient
  uint64_t incarnation = 0;
  uint64_t resets = 0;  // how often the bucket was reset
  std::optional<SharedPlaces> shared = {};
};

// Backup workers. To the server that decides: the gradient of `step` is complete. To the others: its verdict.
// `dropped`: the worker continues with `version`. `complete` above 0: the step (if `step` is -1, step
// `version`) is complete with this many workers' gradients.
struct Announcement {
  int64_t step = 0;
  uint64_t incarnation = 0;
  bool dropped = false;
  int64_t version = 0;
  int64_t complete = 0;
};

// Clipping with several servers: the sum of squares of the whole gradient. The first to arrive is used.
struct NormTotal {
  int64_t step = 0;
  double sum_of_squares = 0;
};

// Asks for the weights (slot 0) or a slot of the optimizer (from 1).
struct Fetch {
  int64_t slot = 0;
};

struct Barrier {
  int64_t number = 0;
};

// Synchronous, several servers: begin again in `epoch`, at a checkpoint that is not after `step`.
struct Rewind {
  int64_t step = 0;
  int64_t epoch = 0;
};

struct Leave {};

// Rows of a table (`bucket`): the payload are their numbers on this server, int32, ascending. Asks for their
// values (slot 0), or a slot of their optimizer (from 1). Synchronous: answered when the updates of all steps
// before `step` have been made.
struct PullRows {
  int bucket = 0;
  int64_t step = 0;
  int64_t slot = 0;
  int64_t request = 0;  // repeated in the answer
};

// A part of a push of rows: their numbers, ascending also over the parts of a table, then their gradient,
// float32. `complete` 1: the last part of the step's push, which may have no payload.
struct PushRows {
  int bucket = 0;
  int64_t step = 0;
  int64_t samples = 0;  // in the gradient of the whole push
  int64_t complete = 0;
};

// From worker 0 after its Welcome, if the job has `row_arrays`: rows of a table as in PushRows, with values
// (slot 0) or a slot of their optimizer. The rows of a table and slot come in order, without gaps. Answered
// by Rows without payload. Pulls wait until all rows have arrived.
struct InitialRows {
  int bucket = 0;
  int64_t slot = 0;
  int64_t request = 0;  // repeated in the answer
};

using ToServer = std::variant<Join, InitialWeights, Gradient, Announcement, NormTotal, Fetch, Barrier, Rewind,
                              Leave, PullRows, PushRows, InitialRows>;

// Server to worker.

// Answers Join when all workers have joined.
struct Welcome {
  int64_t step = 0;  // to continue with
  int64_t epoch = 0;
  uint64_t incarnation = 0;
  int64_t patience_ms = 0;  // how long the worker may try to reconnect when it loses this server
  bool went_back = false;   // the server begins at `step` with all workers: what is in flight has no effect
};

// A chunk of the weights, or of what Fetch asked for.
struct Weights {
  int bucket = 0;
  uint64_t offset = 0;
};

// A chunk of the weights after the push's update.
struct Answer {
  int bucket = 0;
  uint64_t offset = 0;
  int64_t step = 0;       // of the push
  int64_t version = 0;    // of these weights
  int64_t staleness = 0;  // of the push
  bool dropped = false;   // the worker's gradient is in no update
  std::optional<SharedPlaces> shared = {};
};

// Backup workers: the announced gradient is to be pushed. `complete`: see Announcement.
struct Admitted {
  int64_t step = 0;
  int64_t complete = 0;
};

// Clipping with several servers: this server's part of the gradient's sum of squares.
struct NormPart {
  int64_t step = 0;
  double sum_of_squares = 0;
};

// A worker was lost in the middle of a push: send the bucket's gradient again.
struct Reset {
  int bucket = 0;
  uint64_t resets = 0;
};

struct FetchDone {};
struct BarrierPassed {
  int64_t number = 0;
};
// Answers Leave. `complete` above 0: without this worker step `version` is complete.
struct Left {
  int64_t version = 0;
  int64_t complete = 0;
};

// Answers PullRows, in any order: the rows' values, float32. Also answers InitialRows, without payload.
struct Rows {
  int bucket = 0;
  int64_t step = 0;
  int64_t request = 0;
  int64_t version = 0;  // the number of updates in these values
};

using ToWorker =
    std::variant<Welcome, Weights, Answer, Admitted, NormPart, Reset, FetchDone, BarrierPassed, Left, Rows>;

// Sets the offset of a message that carries a chunk; others have none.
template <typename Message>
void SetOffset(Message& message, uint64_t offset) {
  std::visit(
      [offset](auto& kind) {
        if constexpr (requires { kind.offset; }) kind.offset = offset;
      },
      message);
}

}  // namespace message

// Sent in every Join: worker and server must have the same.
inline constexpr int kProtocolVersion = 13;

// Bounds of what a message may contain. No sum of counts over all workers, and no product of a count with the
// number of workers or buckets, overflows 64 bits.
inline constexpr int64_t kMaxWireCount = int64_t{1} << 40;  // steps, samples of one push, versions, epochs
inline constexpr size_t kMaxBuckets = 65536;
inline constexpr size_t kMaxTables = 4096;
inline constexpr int kMaxTableRows = 1 << 30;
inline constexpr int kMaxTableWidth = 65536;

}  // namespace psring
