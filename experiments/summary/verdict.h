// The answer of a comparison in a few sentences: which strategy to use, and why. Pure.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "experiments/summary/summarise.h"
#include "experiments/texts/phrase.h"

namespace psring {

// Compares the strategies that compute the same updates (synchronous, no gradient dropped) at the largest
// number of workers with meaningful times. A strategy is recommended only if the paired intervals show, after
// Holm's correction, that it is faster than another one (ShowDifference); otherwise the text says why none
// is. Empty: there are fewer than two such strategies.
std::string Verdict(const std::vector<SummaryRow>& rows, const std::optional<Wires>& wires,
                    Language language);

// The strategies that Verdict recommends, in English with their servers; empty: it recommends none.
std::vector<std::string> Recommended(const std::vector<SummaryRow>& rows);

// The lowest rate of all links, in bits/s, at which the workers of `row` process as many samples/s as
// `single`, by the cost model (*derived*): the exchange of the actual buckets may expose the time by which a
// step of as many samples takes longer with one worker than a step without communication (`none`, or the
// computing time of `row` if null). The buckets of an all-reduce overlap with backward, from the measured
// times at which they were ready; of a server's exchange nothing is hidden. `wires`: measured on links of
// `row.link`, whose usable share is kept. Empty: the links have no rate, or no rate suffices.
std::optional<double> LeastUsefulRate(const SummaryRow& row, const SummaryRow& single, const SummaryRow* none,
                                      const Wires& wires);

}  // namespace psring
