// The limit of a figure of bench: the least work that a collective needs, measured by the same processes,
// alternating with it (--limits of ring_worker and ps_worker). Pure.
//
//   over shared memory  every rank adds up its part of all ranks' buffers, straight out of them, and writes
//                       the sum into all of them, between two barriers (for other collectives: what they
//                       cannot avoid). Nothing is copied twice, so this is the minimum.
//   over TCP            every rank sends what a ring sends over each of its links to the next rank, all at
//                       once, in one go: the ring without its rounds and without adding. With L bytes/s over
//                       all N links that is a busbw of L / N.
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
#include "experiments/texts/phrase.h"

namespace psring {

// "shared", "tcp", "raw", "fused", as the workers name them; empty if it has no limit.
std::string LimitKindOf(const BenchCombination& combination, const std::string& transport);

// Every measurement of the limits of a run.
class MeasuredLimits {
 public:
  void Add(int workers, const std::string& kind, const std::string& collective, uint64_t bytes,
           const std::vector<double>& times_us);

  bool empty() const { return times_us_.empty(); }

  // 10^9 bytes/s, as the collective's busbw; none where it was not measured, or means nothing (one worker).
  // `transport` is what the combination really ran over.
  std::optional<double> BusBandwidth(const BenchCombination& combination, const std::string& transport,
                                     uint64_t bytes) const;

  // The lines for people: a size a line, what each of `workers` can do. Each begins with #.
  std::string Text(int workers, Language language = Language::kEnglish) const;

 private:
  using Key = std::tuple<int, std::string, std::string, uint64_t>;
  std::optional<double> MedianUs(const Key& key) const;
  std::string PushPullText(int workers, Language language) const;
  std::map<Key, std::vector<double>> times_us_;
};

}  // namespace psring
