// Measures several combinations side by side: one set of processes holds a group for each, and for every size
// they take turns, call by call, so that whatever disturbs the machine disturbs all alike.
//
// A *turn* is a few calls of one combination in a row, behind a barrier, timed together. Their number is
// chosen so that a turn lasts long enough for a clock (kTurn): a single call of one microsecond would mostly
// measure who came first through the barrier. A turn's time over its calls is one *sample*.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/rendezvous/rendezvous.h"
#include "ring_worker/bench/bench_case.h"
#include "ring_worker/bench/bench_limits.h"
#include "ring_worker/groups/process_group.h"

namespace psring {

// What ranks' times become: nccl-tests' -a.
enum class AcrossRanks { kRankZero = 0, kMean = 1, kMin = 2, kMax = 3 };

struct BenchOptions {
  std::vector<Combination> combinations;  // may be empty where limits are asked for
  std::vector<size_t> bytes;
  std::vector<DType> types = {DType::kFloat32};
  std::vector<ReduceOp> ops = {ReduceOp::kSum};  // of all_reduce and reduce_scatter
  int root = 0;                                  // of broadcast
  int turns = 20;
  int calls_per_turn = 0;  // 0: as many as last kTurn
  int warmup_calls = 5;    // of each combination and size
  int checked_calls = 1;   // before the timed ones; above 0, the last timed turn is checked as well
  AcrossRanks across = AcrossRanks::kMax;
  bool limits = false;
  std::string device = "cpu";  // whose memory: cpu, or cuda, where the ranks of a host take its GPUs in turn
  bool oversubscribe = false;  // ranks may share a GPU
  bool pin = true;     // each rank's calling thread to a core of its own, where the host has one for each
  GroupOptions group;  // what is not the combination's: segment, sockets, timeout, ...
};

inline constexpr absl::Duration kTurn = absl::Microseconds(200);

// The samples of one combination, placement and size, in order; of all ranks they are one by `across`.
struct Samples {
  std::vector<double> times_us;  // of one call
  int64_t calls_per_turn = 0;
  int64_t wrong = -1;  // elements over all ranks: 0, or -1 where nobody looked; others are errors
};

struct BenchRow {
  size_t combination = 0;
  DType type = DType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  uint64_t bytes = 0;  // of a rank's larger buffer
  uint64_t count = 0;
  Samples out_of_place, in_place;
};

struct LimitRow {
  LimitKind kind = LimitKind::kCopy;
  Collective collective = Collective::kAllReduce;
  uint64_t bytes = 0;  // of the collective; time x busbw = BusFactor x bytes
  Samples samples;
};

struct RankInfo {
  std::string host;
  int pid = 0;
  std::string device = "cpu";  // "cuda:1"
};

// What rank 0 is told while it measures. On other ranks nothing is called.
struct BenchReport {
  // All ranks are there and every group is made: `groups` by combination.
  std::function<void(const std::vector<RankInfo>& ranks, const std::vector<GroupInfo>& groups)> on_start;
  std::function<void(const BenchRow&)> on_row;
  std::function<void(const LimitRow&)> on_limit;
  std::function<void(size_t done, size_t of)> on_progress;  // sizes, over all types and reductions
};

// Every rank calls it with the same options. Errors name the combination, and the rank and element where a
// value is wrong; rows up to there have been reported. Nobody returns OK before everybody may.
absl::Status RunBench(const BenchOptions& options, Rendezvous& rendezvous, const BenchReport& report);

// What RunBench would refuse by looking at the options alone.
absl::Status CheckBenchOptions(const BenchOptions& options);

// Whether a collective has a reduction.
bool Reduces(Collective collective);

}  // namespace psring
