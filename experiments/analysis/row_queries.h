// Which rows of a summary can be compared with one another, and how sentences name them. Pure.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "experiments/analysis/summarise.h"

namespace psring {

// What makes a row's times invalid, if its ranks do not share a GPU: the processor time of other programs, or
// another psring.
bool IsDisturbed(const SummaryRow& row);
bool IsBesidePsring(const SummaryRow& row);

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

// Workers of a row with similar shares of its samples.
struct WorkerClass {
  std::vector<int> ranks;
  double share = 0;    // of the row's samples, all of its workers together
  WorkerFigures mean;  // over its workers; samples_per_s: of all together
};

// An asynchronous worker with more than this many times its equal share of the samples is named.
inline constexpr double kUnevenShare = 1.5;

// The share of all samples of the worker with the most. Empty: a strategy whose workers take equal numbers of
// steps.
std::optional<double> MostSamplesShare(const SummaryRow& row);

// If a worker of an asynchronous strategy has more than kUnevenShare / N of the samples: the workers with so
// many, and the others. The row's means then describe no worker, and its speed is not that of its strategy.
// Otherwise empty.
std::vector<WorkerClass> ClassesOf(const SummaryRow& row);

// NameWithServers, with the workers that have most of the samples: for every sentence that compares speeds.
std::string RankedName(const SummaryRow& row);

// `name` of the row, and "(stream)" if its servers' payload does not go over gRPC.
std::string WithWire(const SummaryRow& row, const std::string& name);

// "ps-sync on 2 servers", "pp2 1f1b", for sentences that name the workers elsewhere.
std::string NameWithServers(const SummaryRow& row);

// The names of `those`, or "every row" if they are all `rows` of a run.
std::string NamesOrEveryRow(const std::vector<const SummaryRow*>& those, size_t rows);

// What the row's speed counts: "samples", or "tokens" of a text.
std::string UnitOf(const SummaryRow& row);

// What carried payload: names of common/measure/wires.h.

// Adds the wires that `all` lacks, and sorts it in a fixed order.
void AddWires(const std::vector<std::string>& wires, std::vector<std::string>& all);

// Whether payload went over TCP, with any library.
bool UsesTcp(const std::vector<std::string>& wires);

// `wires` without memory of one machine if others remain: what connects the machines.
std::vector<std::string> BetweenMachines(const std::vector<std::string>& wires);

// "shared memory, TCP".
std::string WireText(const std::vector<std::string>& wires);

// For sentences, without the library: gRPC over TCP is "TCP". "shared memory and TCP".
std::string MediumText(const std::vector<std::string>& wires);

}  // namespace psring
