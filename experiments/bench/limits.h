// The limit of a collective: the minimum work for its result, measured by the same processes alternately with
// the collective (--limits of ring_worker and ps_worker). Pure.
//
//   over shared memory  every rank adds its part of all ranks' buffers in place and writes the sum to all of
//                       them, between two barriers (other collectives: only the necessary copies). Nothing is
//                       copied twice, so this is the minimum.
//   over TCP            every rank sends as many bytes to the next rank as in a ring, all at once: the ring
//                       without rounds and additions. L bytes/s over all N links are a busbw of L / N.
//   parameter server    over TCP, *raw*: the same round over plain sockets, without messages or framework;
//                       over shared memory, *fused*: adding all gradients, updating the weights and writing
//                       them for every worker in one pass.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "experiments/bench/plan.h"

namespace psring {

// All measured limits of a run.
class MeasuredLimits {
 public:
  void Add(int workers, const std::string& kind, const std::string& collective, uint64_t bytes,
           const std::vector<double>& times_us);

  bool empty() const { return times_us_.empty(); }

  // In 10^9 bytes/s, comparable with the collective's busbw. nullopt if not measured, or with one worker.
  // `transport`: the one that the collective used.
  std::optional<double> BusBandwidth(const BenchCombination& combination, const std::string& transport,
                                     uint64_t bytes) const;

  // A table with a line per size; every line begins with #.
  std::string Text(int workers) const;

 private:
  using Key = std::tuple<int, std::string, std::string, uint64_t>;
  std::optional<double> MedianUs(const Key& key) const;
  std::string PushPullText(int workers) const;
  std::map<Key, std::vector<double>> times_us_;
};

}  // namespace psring
