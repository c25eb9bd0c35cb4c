// Measures several combinations in the same run: one set of processes holds a group for each, and for every
// size they alternate, so that disturbances of the machine affect all equally.
//
// A *turn* is a few consecutive calls of one combination after a barrier, timed together. Their number is
// chosen so that a turn lasts at least kTurnNs: a single call of one microsecond would mostly measure the
// order in which ranks leave the barrier. A turn's time divided by its calls is one *sample*.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/measure/collective_bench.h"
#include "common/rendezvous/rendezvous.h"
#include "ring_worker/bench/bench_case.h"
#include "ring_worker/groups/process_group.h"

namespace psring {

struct BenchOptions {
  std::vector<Combination> combinations;  // may be empty if limits are measured
  std::vector<size_t> bytes;
  std::vector<DType> types = {DType::kFloat32};
  std::vector<ReduceOp> ops = {ReduceOp::kSum};  // of all_reduce and reduce_scatter
  int root = 0;                                  // of broadcast
  int turns = 20;
  int calls_per_turn = 0;  // 0: as many as fit into kTurnNs
  int warmup_calls = 5;    // of each combination and size
  int checked_calls = 1;   // before the timed ones; above 0, the last timed turn is checked as well
  AcrossRanks across = AcrossRanks::kMax;
  bool limits = false;
  std::string device =
      "cpu";  // the memory to measure: cpu, or cuda, where the ranks of a host take its GPUs in turn
  bool oversubscribe = false;  // ranks may share a GPU
  bool pin = true;             // pin each rank's calling thread to its own core, if there are enough
  GroupOptions group;          // options that combinations do not set: segment, timeout, ...
};

// Collective with the same options. Only rank 0 uses `output`, which it does not finish. Errors name the
// combination, and rank and element of a wrong value; rows before the error have been reported. No rank
// returns OK before all have finished.
absl::Status RunBench(const BenchOptions& options, Rendezvous& rendezvous, BenchOutput& output);

// The options of a combination's group.
GroupOptions OptionsOfGroup(const BenchOptions& options, const Combination& combination);

// The errors of RunBench that follow from the options only.
absl::Status CheckBenchOptions(const BenchOptions& options);

}  // namespace psring
