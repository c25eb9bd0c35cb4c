// Interprets the rows of the summary in a few sentences. Pure.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "experiments/analysis/summarise.h"

namespace psring {

// The verdict's details, then one fact each; of one kind, that with the largest effect first. A winner is
// named only if the interval of the paired ratio excludes 1 over enough rounds. On the bare loopback, no
// winner between server and ring is named for networks.
std::vector<std::string> Findings(const std::vector<SummaryRow>& rows, const std::optional<Wires>& wires,
                                  int cores);

// The costs of synchrony and asynchrony, part of Findings. Empty without disturbed workers: waiting then
// depends on the machine, not on the strategies.
std::vector<std::string> WaitingFindings(const std::vector<SummaryRow>& rows);

// The mean staleness of `row`'s gradients, of all and of every worker, and each worker's in theory. Empty:
// unknown. Part of findings.
std::string StalenessByWorker(const SummaryRow& row);

// The gradients that the busiest link carries one after another in one exchange of many buckets, by placement
// and schedule. Empty: theory has no formula, or the model has tables.
std::optional<double> GradientsThroughLink(const SummaryRow& row);
// "one dedicated server (push and pull at the same time)", or the name of an all-reduce. `form`: of both
// parts.
std::string WayText(const SummaryRow& row, const char* form);

// How long an exchange with each synchronous server takes by the law for large gradients, compared with the
// first all-reduce of the same number of workers that theory covers; the largest ratio first. A placement is
// named once. Part of Findings; empty: nothing to compare.
std::vector<std::string> ServerLaw(const std::vector<SummaryRow>& rows);

// How fast this machine moves servers' payload over each wire, of which theory uses that of a row. Empty: not
// measured.
std::string ServerWireRates(const Wires& wires);

// Servers that were measured over gRPC and over plain sockets (--server_wire): how the fastest all-reduce
// over TCP compares with the server over each, and whether the wire or the scheme decides: which is faster,
// or more than half of the (logarithmic) difference. `candidates`: rows with the same updates and rounds,
// fastest first; of several servers, the fastest is described. Empty: not over both wires.
std::string ServerWireText(const std::vector<const SummaryRow*>& candidates);

// Whether both rows update the weights with the same optimizer and rate.
bool SameUpdateRule(const SummaryRow& row, const SummaryRow& other);

// The synchronous servers for which theory with the actual buckets differs by more than 5% from the law for
// large gradients, which other findings state; and the reason. Part of Findings.
std::vector<std::string> BucketFindings(const std::vector<SummaryRow>& rows,
                                        const std::optional<Wires>& wires);

// The learning rates that were tried, part of Findings. Empty: none were.
std::vector<std::string> RateFindings(const std::vector<SummaryRow>& rows);
// Accuracy, and the training time to a target accuracy: sentences of Findings, if anything was evaluated.
void AddAccuracy(const std::vector<SummaryRow>& rows, std::vector<std::string>& findings);
void AddTarget(const std::vector<SummaryRow>& rows, std::vector<std::string>& findings);

// "figure (interval)".
std::string WithRange(const std::string& figure, const std::optional<Interval>& interval, int digits);

}  // namespace psring
