// Measures several combinations in the same run: one set of processes holds a group for each, and for every
// size they alternate, so that disturbances of the machine affect all equally.
//
// A *turn* is a few consecutive calls of one combination after a barrier, timed together. Their number is
// chosen so that a turn lasts at least kTurn: a single call of one microsecond would mostly measure the order
// in which ranks leave the barrier. A turn's time divided by its calls is one *sample*.
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

// How the ranks' times are combined: nccl-tests' -a.
enum class AcrossRanks { kRankZero = 0, kMean = 1, kMin = 2, kMax = 3 };

struct BenchOptions {
  std::vector<Combination> combinations;  // may be empty if limits are measured
  std::vector<size_t> bytes;
  std::vector<DType> types = {DType::kFloat32};
  std::vector<ReduceOp> ops = {ReduceOp::kSum};  // of all_reduce and reduce_scatter
  int root = 0;                                  // of broadcast
  int turns = 20;
  int calls_per_turn = 0;  // 0: as many as fit into kTurn
  int warmup_calls = 5;    // of each combination and size
  int checked_calls = 1;   // before the timed ones; above 0, the last timed turn is checked as well
  AcrossRanks across = AcrossRanks::kMax;
  bool limits = false;
  std::string device =
      "cpu";  // the memory to measure: cpu, or cuda, where the ranks of a host take its GPUs in turn
  bool oversubscribe = false;  // ranks may share a GPU
  bool pin = true;             // pin each rank's calling thread to its own core, if there are enough
  GroupOptions group;          // options that combinations do not set: segment, sockets, timeout, ...
};

inline constexpr absl::Duration kTurn = absl::Microseconds(200);

// The samples of one combination, placement and size, in order, combined over ranks by `across`.
struct Samples {
  std::vector<double> times_us;  // of one call
  int64_t calls_per_turn = 0;
  int64_t wrong = -1;  // wrong elements: 0, or -1 if not checked; others are errors
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

// Called on rank 0 during the run, and not on other ranks.
struct BenchReport {
  // All groups exist: `groups` by combination.
  std::function<void(const std::vector<RankInfo>& ranks, const std::vector<GroupInfo>& groups)> on_start;
  std::function<void(const BenchRow&)> on_row;
  std::function<void(const LimitRow&)> on_limit;
  std::function<void(size_t done, size_t of)> on_progress;  // sizes, over all types and reductions
};

// Collective with the same options. Errors name the combination, and rank and element of a wrong value; rows
// before the error have been reported. No rank returns OK before all have finished.
absl::Status RunBench(const BenchOptions& options, Rendezvous& rendezvous, const BenchReport& report);

// The errors of RunBench that follow from the options only.
absl::Status CheckBenchOptions(const BenchOptions& options);

// Whether a collective has a reduction.
bool Reduces(Collective collective);

}  // namespace psring
