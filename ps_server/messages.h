// What a worker and the server say to each other, whatever carries it: the words of
// proto/parameter_server.proto without the bytes.
//
// A conversation begins with Join and ends with Leave. A bucket's data travel as *chunks*: kChunkBytes each,
// in order, the last one short; a bucket without elements is one empty chunk.
//
//   worker                              server
//   Join, with the job            ->
//   Weights of all buckets        ->                                     (worker 0 only)
//                                 <-    Weights of all buckets, version 0 (to the other workers)
//                                 <-    Join: all workers are here
//   Announce: a gradient is whole ->                                     (backup workers only)
//                                 <-    Announce: it is admitted         (or: Exchange, dropped)
//   Exchange: a gradient          ->
//                                 <-    Norm: the server's part           (clipping, several servers)
//   Norm: of the whole gradient   ->
//                                 <-    Exchange: the weights it led to
//   Fetch                         ->
//                                 <-    Weights of all buckets, then Fetch
//   Leave                         ->
//                                 <-    Leave
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
  kNorm = 7
};

struct ChunkHeader {
  MessageKind kind = MessageKind::kExchange;
  int bucket = 0;
  uint64_t offset = 0;    // of the payload's first byte in the bucket, in bytes
  int64_t step = 0;       // Exchange, Announce
  int64_t samples = 0;    // Exchange, to the server: in the gradient
  int64_t version = 0;    // Exchange, to the worker: of these weights
  int64_t staleness = 0;  // Exchange, to the worker: of the push that is answered
  bool dropped = false;   // Exchange, to the worker: its gradient has no part in these weights
  // Announce: see below. To the worker: above 0 where with it the step is complete, made of so many workers'
  // gradients.
  int64_t complete = 0;
  double sum_of_squares = 0;  // Norm: to the worker the server's own, to the server that of all servers
  // Exchange through shared memory (shared_payload.h): the payload is not in the message. To the server: so
  // many bytes of gradient stand in the worker's memory, and the bucket's weights are to go there. To the
  // worker: they are there.
  bool shared = false;
  uint64_t shared_bytes = 0;
  uint64_t gradient_at = 0;
  uint64_t weights_at = 0;
  bool operator==(const ChunkHeader&) const = default;
};

// Told in every Join: both sides must speak the same.
inline constexpr int kProtocolVersion = 4;

inline constexpr size_t kChunkBytes = 1 << 20;

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
