// A collective is described by a schedule, which is data: what every rank sends, receives and adds, round by
// round, over equal chunks of one buffer. It is computed on demand and never stored as a whole.
//
// *rank*: a process's number, 0 to ranks - 1. *chunk*: a slice of the buffer; chunk c of C holds elements [c
// n / C, (c + 1) n / C) rounded down (see ChunkBounds). *round*: transfers that are in flight together.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "ring_worker/schedules/cost.h"

namespace psring {

// The contents of every rank's chunks before and after a schedule.
//   all-reduce      each rank its own values -> the sum over all ranks, everywhere with the same bits
//   reduce-scatter  each rank its own values -> rank r holds the sum in chunk r; its other chunks are
//                   unspecified. chunks() == ranks()
//   all-gather      rank r its values in chunk r -> all chunks everywhere. chunks() == ranks()
//   broadcast       the root's values -> everywhere
//   all-to-all      rank r's chunk c is its block for rank r + c (modulo ranks) -> its block from rank r - c:
//                   a block keeps its chunk's number on its way. chunks() == ranks(), keeps_input()
enum class Collective : uint8_t { kAllReduce, kReduceScatter, kAllGather, kBroadcast, kAllToAll };
inline constexpr Collective kCollectives[] = {Collective::kAllReduce, Collective::kReduceScatter,
                                              Collective::kAllGather, Collective::kBroadcast,
                                              Collective::kAllToAll};
const char* Name(Collective collective);  // "all_reduce", as in nccl-tests
absl::StatusOr<Collective> ParseCollective(const std::string& name);
// Whether it adds, or takes the minimum or maximum.
inline bool Reduces(Collective collective) {
  return collective == Collective::kAllReduce || collective == Collective::kReduceScatter;
}

enum class TransferKind : uint8_t { kSend, kReceive, kReceiveAdd };

struct Transfer {
  TransferKind kind;
  int peer;  // another rank; in a kReceiveAdd possibly the rank itself: see Round
  int first_chunk;
  int chunk_count;  // consecutive chunks; no wrap-around
  bool operator==(const Transfer&) const = default;
};

// CheckSchedule (schedule_check.h) proves this contract for every algorithm here. Immutable; thread-safe.
class Schedule {
 public:
  virtual ~Schedule() = default;

  virtual std::string name() const = 0;  // the algorithm's name: "ring"
  virtual int ranks() const = 0;
  virtual int chunks() const = 0;
  // A rank goes through rounds 0 to rounds(rank) - 1 in order; in some it may have no transfers.
  virtual int rounds(int rank) const = 0;

  // Replaces `transfers` with rank's transfers in `round`. All transfers of a round are in flight together:
  // none waits for another of its round.
  //
  // Matching: the k-th send from rank a to rank b matches b's k-th receive from a in the same round, and both
  // name the same chunks. A kReceiveAdd from the rank itself has no send.
  //
  // Values: a send carries the values before the round. Receives into one chunk all name the same chunks, and
  // combine values in the order listed: the result starts with the value before the round, or, if the first
  // is a kReceive (no other may be), with the received value; each kReceiveAdd then adds the received value,
  // the one from the rank itself adds the value before the round. A transport may do this in one pass (see
  // cpu::Reduce, which takes the rank's own memory as a source at any position).
  virtual void Round(int rank, int round, std::vector<Transfer>& transfers) const = 0;

  // True if some rank receives into a chunk in the round in which it also sends it. The sent values must then
  // be copied first, or all receivers of the round must have read before any of them writes. Otherwise
  // received data may be written immediately. Schedules for large buffers avoid this.
  virtual bool copies_sends() const { return false; }

  // True of an all-to-all: received values are written to other memory than the input, and no chunk is sent
  // after the round in which it is received. So it may be sent in that round.
  virtual bool keeps_input() const { return false; }

  // Ranks of one class behave the same at the same time up to renaming of ranks and chunks; this lets a
  // simulator handle 65,536 ranks. A separate class per rank is always correct.
  virtual int symmetry_class(int rank) const { return rank; }
  // So many consecutive ranks form a group: renaming shifts whole groups, and ranks within all of them.
  virtual int symmetry_period() const { return 1; }
};

// Elements of chunk `chunk` of `chunks` in a buffer of `count`: {first, length}. Lengths differ by at most
// one.
struct ChunkRange {
  size_t first, length;
};
ChunkRange ChunkBounds(size_t count, int chunks, int first_chunk, int chunk_count = 1);

// The number of ranks and their placement.
struct ScheduleShape {
  int ranks = 1;
  int ranks_per_node = 1;  // rank r is on node r / ranks_per_node; divides `ranks`
  int root = 0;            // broadcast
};

struct ScheduleTraits {
  bool uses_nodes = false;   // who sends to whom depends on ranks_per_node
  bool is_ring = false;      // a rank sends only to the next; libraries run several rings at once
  bool has_root = false;     // one rank or two get the sums first and send them back
  bool is_compared = false;  // measured by `bench` without --algorithms
  // Messages one after another of an all-gather in which a rank receives each other's part once. Null: no
  // closed form.
  int (*gather_messages)(int ranks) = nullptr;
};

struct ScheduleRow {
  const char* name;
  const char* summary;  // for Tr
  // Null if the algorithm does not offer the collective.
  std::unique_ptr<Schedule> (*make)(Collective collective, const ScheduleShape& shape);
  // Of an all-reduce; terms are for at least two ranks. Null: no closed form, so theory omits the
  // schedule.
  ScheduleCost (*cost)(int ranks, double bytes) = nullptr;
  ScheduleTraits traits = {};
  // The same of an all-to-all of `bytes` per rank.
  ScheduleCost (*exchange_cost)(int ranks, double bytes) = nullptr;

  bool offers(Collective collective) const { return make(collective, ScheduleShape()) != nullptr; }
};
using ScheduleTable = std::vector<ScheduleRow>;

// Every algorithm, one row each. Process groups, simulator, theory, report, explain, --help, benchmark and
// tests read this table; functions with a `rows` parameter accept another one.
const ScheduleTable& ScheduleRows();
std::vector<std::string> AlgorithmsFor(Collective collective, const ScheduleTable& rows = ScheduleRows());
// Null if no algorithm has this name. If its rounds depend on nodes, the name may contain the number of ranks
// per node: "hierarchical:4".
const ScheduleRow* FindSchedule(const std::string& algorithm, const ScheduleTable& rows = ScheduleRows());
// The name without that number; of no schedule: as given.
std::string BaseAlgorithm(const std::string& algorithm, const ScheduleTable& rows = ScheduleRows());
// Whether its rounds depend on a number of ranks per node that the name does not contain: "hierarchical".
bool NeedsRanksPerNode(const std::string& algorithm, const ScheduleTable& rows = ScheduleRows());

// NotFound: an unknown name; lists those that offer the collective. InvalidArgument: the algorithm does not
// offer the collective (lists those that do), or the shape is invalid. A number in the name replaces
// `shape.ranks_per_node`.
absl::StatusOr<std::unique_ptr<Schedule>> MakeSchedule(const std::string& algorithm, Collective collective,
                                                       const ScheduleShape& shape,
                                                       const ScheduleTable& rows = ScheduleRows());

}  // namespace psring
