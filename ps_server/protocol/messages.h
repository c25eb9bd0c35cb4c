// What a worker and the server say to each other, whatever carries it: the words of
// proto/parameter_server.proto without the bytes.
//
// A conversation begins with Join and ends with Leave. A bucket's data travel as *chunks*: kChunkBytes each,
// in order, the last one short; a bucket without elements is one empty chunk.
//
//   worker                              server
//   Join, with the job            ->
//   Weights of all buckets        ->                                     (worker 0 only; before them the
//                                                                         optimizer's slots, where it has
//                                                                         any)
//                                 <-    Weights of all buckets, version 0 (to the other workers)
//                                 <-    Join: all workers are here
//   Announce: a gradient is whole ->                                     (backup workers only)
//                                 <-    Announce: it is admitted         (or: Exchange, dropped)
//   Exchange: a gradient          ->
//                                 <-    Norm: the server's part           (clipping, several servers)
//   Norm: of the whole gradient   ->
//                                 <-    Exchange: the weights it led to
//                                 <-    Reset: send the bucket's gradient again (a worker was lost in it)
//   Barrier                       ->
//                                 <-    Barrier: nobody is missing there
//   Rewind: to a step             ->                                     (several servers, synchronous)
//   Fetch                         ->
//                                 <-    Weights of all buckets, then Fetch (or of one of the optimizer's
//                                 slots)
//   Leave                         ->
//                                 <-    Leave
//
// *incarnation*: one life of a server, from its start or its restart to its end; never 0. The answer to Join
// tells it, the step with which the worker goes on, and for how long a worker that loses this server may look
// for it. Every push carries the incarnation: one that was meant for another is ignored.
//
// A push is applied exactly once, however often it is sent. It is known by (worker, step, bucket) and by how
// often the bucket was reset; of each the server keeps the *high-water mark*: bytes below it are in the sum
// and are skipped when they come again.
//
// A worker whose stream has broken joins again with the same session. Where the server is the same, both go
// on: exchanges in flight are sent again. Where it has come back with older weights, the answer to Join names
// the step: a synchronous worker goes back to it, with the weights that a Fetch brings (`dropped` is set); an
// asynchronous one goes on.
//
// Of several servers one may come back with older weights than the others hold. Every worker that hears of it
// says Rewind to these, with the step and an epoch: each begins once more, as another incarnation, at the
// newest of its checkpoints that is not beyond that step, as if it had died; and so on until all begin in the
// same epoch at the same step (common_step.h). The answer to Join tells a server's epoch, and Join the newest
// that the worker has heard of from it. A Rewind to an epoch that is not newer is ignored.
//
// With backup workers a gradient is announced when its last bucket is ready, and sent once it is admitted.
// One that is dropped is not sent: its worker gets all buckets' weights at once, of the version that is its
// next step.
//
// Where gradients are clipped, a server that has added up its part of a step's tells all whose gradients are
// in it the sum of squares. A worker that has heard of all servers tells each the total; the first to do so
// counts, since they all have the same.
//
// Of several servers the first decides who is admitted. Its worker carries the verdict to the others, as an
// Announce of the same step: `dropped` with the `version` that the worker goes on with, or admitted (and
// `complete`, where that was said), followed by the gradient. What completes a step when a worker leaves
// comes as an Announce of step -1 with that step's `version`: the server says both in its answer to Leave.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace psring {

enum class MessageKind : uint8_t {
  kJoin = 1,
  kWeights = 2,
  kExchange = 3,
  kFetch = 4,
  kLeave = 5,
  kAnnounce = 6,
  kNorm = 7,
  kReset = 8,
  kBarrier = 9,
  kRewind = 10
};

struct ChunkHeader {
  MessageKind kind = MessageKind::kExchange;
  int bucket = 0;
  uint64_t offset = 0;  // of the payload's first byte in the bucket, in bytes
  // Exchange, Announce, Reset, Rewind; Join, to the worker: to go on with. Weights, to the server, and Fetch:
  // above 0 not the weights, but the optimizer's slot of this number, from 1.
  int64_t step = 0;
  int64_t samples = 0;    // Exchange, to the server: in the gradient
  int64_t version = 0;    // Exchange, to the worker: of these weights; Rewind and Join, to it: epoch
  int64_t staleness = 0;  // Exchange, to the worker: of the push that is answered
  // To the worker: its gradient has no part in these weights. Join: nor has any in flight, since the server
  // begins at that step with all its workers.
  bool dropped = false;
  // Announce: see below. To the worker: above 0 where with it the step is complete, made of so many workers'
  // gradients.
  int64_t complete = 0;
  double sum_of_squares = 0;  // Norm: to the worker the server's own, to the server that of all servers
  bool repeated = false;      // on the server alone: this answer was lost on the way, and is counted already
  uint64_t incarnation = 0;   // Exchange, Announce, to the server; Join, to the worker
  uint64_t resets = 0;        // Exchange, to the server, and Reset: how often the bucket was reset
  int64_t patience_ms = 0;    // Join, to the worker: how long it may look for this server when it loses it
  // Exchange through shared memory (shared_payload.h): the payload is not in the message. To the server: so
  // many bytes of gradient stand in the worker's memory, and the bucket's weights are to go there. To the
  // worker: they are there.
  bool shared = false;
  uint64_t shared_bytes = 0;
  uint64_t gradient_at = 0;
  uint64_t weights_at = 0;
  bool on_gpu = false;  // on either side alone: the payload stands on a GPU, not where the host reads it
  bool operator==(const ChunkHeader&) const = default;
};

// Told in every Join: both sides must speak the same.
inline constexpr int kProtocolVersion = 8;

inline constexpr size_t kChunkBytes = 1 << 20;

// Bounds of what a message may say. No sum of counts over all workers, and no product of a count with the
// number of workers or buckets, overflows 64 bits.
inline constexpr int64_t kMostCount = int64_t{1} << 40;  // steps, samples of one push, versions, epochs
inline constexpr size_t kMostBuckets = 65536;

// Payload as it was received: pieces of any length, at any alignment, so that a float may straddle two.
using Bytes = std::span<const std::byte>;
using Pieces = std::span<const Bytes>;

inline size_t TotalBytes(Pieces pieces) {
  size_t total = 0;
  for (const Bytes& piece : pieces) total += piece.size();
  return total;
}

// Bytes of the chunk that starts at `offset` of a bucket with `bucket_bytes`.
inline size_t ChunkLength(size_t bucket_bytes, size_t offset) {
  const size_t rest = bucket_bytes - offset;
  return rest < kChunkBytes ? rest : kChunkBytes;
}

}  // namespace psring
