// Which rows of a summary can be compared with one another. Pure.
#pragma once

#include <string>
#include <vector>

#include "experiments/summary/summarise.h"

namespace psring {

// Null: there is no such row.
const SummaryRow* FindRow(const std::vector<SummaryRow>& rows, const std::string& strategy, int workers);

// Whether a shaped link limits the step of `row`, so that oversubscribed cores do not matter. `none`: the row
// of the same workers without communication, or null.
bool NetworkDecides(const SummaryRow* none, const SummaryRow& row);
// Whether this holds for all strategies with `workers` workers.
bool NetworkDecides(const std::vector<SummaryRow>& rows, int workers);

// Worker counts with meaningful times, ascending: several workers, with a core for each or limited by the
// network.
std::vector<int> TimedCounts(const std::vector<SummaryRow>& rows);

// The wires by which `row`, one of `rows`, is compared with the others. If each worker has its own machine:
// those between machines, because a server shares memory with the worker beside it. Empty for one worker
// among rows of several: it needs no network.
std::vector<std::string> ComparedWires(const std::vector<SummaryRow>& rows, const SummaryRow& row);

// "ps-sync on 2 servers", for sentences that name the workers elsewhere.
std::string NameWithServers(const SummaryRow& row, Language language);

// What the row's speed counts: "samples", or "tokens" of a text.
const char* UnitOf(const SummaryRow& row, Language language);

}  // namespace psring
