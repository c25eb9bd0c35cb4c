// The text output of a benchmark: tables as in nccl-tests, and the network between machines. Lines that are
// not data begin with #. Pure.
#pragma once

#include <string>
#include <vector>

#include "experiments/machine/machine.h"
#include "experiments/machine/network_report.h"
#include "experiments/run_folder/manifest.h"
#include "experiments/verbs/bench/plan.h"
#include "experiments/verbs/bench/result.h"

namespace psring {

// Before the run: machine, sizes, iterations, combinations, notes.
std::string BenchHeadText(const BenchRequest& request, const BenchPlan& plan, const Machine& machine,
                          double expected_s);

// After the run: ranks, a table per combination, the limits, and the busbw of all combinations.
std::string BenchTablesText(const BenchRequest& request, const BenchResult& result);

// Up to this many nodes, NetworkText has the matrices.
inline constexpr int kMaxNodesOfMatrix = 16;

// Lines that begin with #: a matrix of rates and one of latencies (a row is the sending node), the names of
// the nodes, and the slowest node or link in a sentence. `machines`: "HOST at ADDRESS", of each node.
std::string NetworkText(const NetworkReport& network, const std::vector<std::string>& machines);

// "the slowest node is node 2 (HOST at ADDRESS): ..."; empty if nothing was measured.
std::string SlowestText(const SlowestLink& slowest, const std::vector<std::string>& machines);

// A row for each pair of nodes in each direction.
std::string NetworkCsv(const std::string& run_id, const NetworkReport& network,
                       const std::vector<std::string>& machines);

// Version 3 of the layout of nccl-tests' -J, with extra fields. One file has all combinations; nccl-tests
// writes one file for each.
std::string BenchJson(const BenchRequest& request, const BenchResult& result, const Manifest& run,
                      const std::string& ended_utc = "");

std::string BenchCsv(const BenchRequest& request, const BenchResult& result, const Manifest& run);

// Manifest::bench.
std::string BenchPlanJson(const BenchRequest& request, const BenchPlan& plan);

}  // namespace psring
