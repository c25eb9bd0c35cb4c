// The answer of a comparison: one line, at most three facts, and the details. Pure.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "experiments/analysis/summarise.h"

namespace psring {

struct VerdictFact {
  std::string label, text;  // "if you must", "ring, 2.70 times as fast as ps-sync (95%: 2.66 to 2.75)"
};

struct RunVerdict {
  std::string line;                     // empty: there are fewer than two strategies to compare
  std::vector<VerdictFact> facts;       // at most three, the most important first
  std::vector<std::string> details;     // sentences of Findings
  std::vector<std::string> next_flags;  // for the comparison that would tell more: "--link 4.2gbit"
};

// Compares the strategies that compute the same updates (synchronous, no gradient dropped) at the largest
// number of workers with meaningful times, or at a smaller one that is shown to be faster. A strategy is
// recommended only if the paired intervals show, after Holm's correction, that it is faster than another one
// (ShowDifference); otherwise a fact says why none is. One process is recommended if the workers are slower,
// and the line says "Undecided" if they are not shown to be slower or faster.
RunVerdict VerdictOf(const std::vector<SummaryRow>& rows, const std::optional<Wires>& wires);

// What two layouts with equal samples per step send: `copy`, replicas of the model, and `cut`, whose
// replicas have several ranks; and from which link rate or, on links without a rate, from which size of the
// gradient the slower one wins (derived: what is exposed is proportional to the bytes, and inversely to the
// rate).
std::string CopyOrCut(const SummaryRow& copy, const SummaryRow& cut);

// A line for each fact, its label first, longer ones wrapped.
std::string FactsText(const RunVerdict& verdict);

// The strategies that VerdictOf recommends, in English with their servers; "single" for one process; empty:
// it recommends none.
std::vector<std::string> Recommended(const std::vector<SummaryRow>& rows);

// Places in `rows` of those whose figures VerdictOf uses, ascending; empty: it names no strategy.
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
// usable share is kept. Empty: the links have no rate, no rate suffices, or the model is cut.
std::optional<UsefulRate> LeastUsefulRate(const SummaryRow& row, const SummaryRow& single,
                                          const SummaryRow& computing, const Wires& wires);

// From which rate the workers of `best` pay.
struct UsefulLink {
  std::string text;  // "from 4.2 Gbit/s per link (derived)", or that no rate suffices; empty: not known
  std::string rate;  // for --link; empty: none is known to suffice
};
UsefulLink WorthDistributing(const std::vector<SummaryRow>& rows, const SummaryRow& best,
                             const SummaryRow& single, const Wires& wires);

// Whether the times that the verdict uses can be trusted: one line below it, on the terminal and on the page.
struct Validity {
  const char* state = "";  // "valid", "limited", "simulated" or "invalid"
  std::string title;       // "Valid with limits."
  std::string why;         // one or more sentences

  std::string Text() const;  // "Valid with limits. One round: no intervals."
};

// About the rows of RowsOfVerdict, or all if there are none; other rows that are not valid are named
// separately. `cores`: of all machines; empty: the rows are the records of one launch, which do not say where
// it ran. Empty: no rows.
std::optional<Validity> ValidityOf(const std::vector<SummaryRow>& rows, std::optional<int> cores);

// "mlp, 7.45 MB, 1, 2, 4 workers, 1 Gbit/s, valid, 5 rounds": what was run, in one line. Empty: no rows.
std::string SettingsText(const std::vector<SummaryRow>& rows, std::optional<int> cores);

}  // namespace psring
