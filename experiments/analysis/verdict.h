// The answer of a comparison in a few sentences: which strategy to use, and why. Pure.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "experiments/analysis/summarise.h"

namespace psring {

// Compares the strategies that compute the same updates (synchronous, no gradient dropped) at the largest
// number of workers with meaningful times, or at a smaller one that is shown to be faster. A strategy is
// recommended only if the paired intervals show, after Holm's correction, that it is faster than another one
// (ShowDifference); otherwise the text says why none is. If the workers are not shown to be faster than one
// process, the first sentence recommends one process. Empty: there are fewer than two such strategies.
std::string Verdict(const std::vector<SummaryRow>& rows, const std::optional<Wires>& wires);

// The strategies that Verdict recommends, in English with their servers; "single" for one process; empty: it
// recommends none.
std::vector<std::string> Recommended(const std::vector<SummaryRow>& rows);

// Places in `rows` of those whose figures Verdict uses, ascending; empty: it names no strategy.
std::vector<size_t> RowsOfVerdict(const std::vector<SummaryRow>& rows);

// The row that says how long the workers of `row` compute with a core each: `none` with the largest number of
// workers, at most those of `row`, that was not oversubscribed; else `single`. A worker computes the same in
// all of them, but `none` includes --straggler and --jitter_ms.
const SummaryRow& ComputingRow(const std::vector<SummaryRow>& rows, const SummaryRow& row,
                               const SummaryRow& single);

// In bits/s, *derived*: at the mean samples/s of one process, and at the ends of its 95% interval.
struct UsefulRate {
  double bits_per_s = 0;
  double low = 0;
  std::optional<double> high;  // empty: if one process is as fast as the upper end, no rate suffices
};

// The lowest rate of all links at which the workers of `row` process as many samples/s as `single`, by the
// cost model: the exchange of the actual buckets may expose the time by which one process takes longer for
// the samples of a step than the workers, which compute as in `computing` (ComputingRow). The buckets of an
// all-reduce overlap with backward, from the measured times at which they were ready, shortened if `row` was
// oversubscribed; of a server's exchange nothing is hidden. `wires`: measured on links of `row.link`, whose
// usable share is kept. Empty: the links have no rate, or no rate suffices.
std::optional<UsefulRate> LeastUsefulRate(const SummaryRow& row, const SummaryRow& single,
                                          const SummaryRow& computing, const Wires& wires);

// The sentence that names this rate for `best`, or says that no rate suffices. Empty: it is not known.
std::string DistributeFrom(const std::vector<SummaryRow>& rows, const SummaryRow& best,
                           const SummaryRow& single, const Wires& wires);

}  // namespace psring
