// The text output of a benchmark: tables as in nccl-tests. Lines that are not data begin with #. Pure.
#pragma once

#include <string>

#include "experiments/bench/plan.h"
#include "experiments/bench/result.h"
#include "experiments/host/machine.h"

namespace psring {

// Before the run: machine, sizes, iterations, combinations, notes.
std::string BenchHeadText(const BenchRequest& request, const BenchPlan& plan, const Machine& machine,
                          double expected_s);

// After the run: ranks, a table per combination, the limits, and the busbw of all combinations.
std::string BenchTablesText(const BenchRequest& request, const BenchResult& result);

}  // namespace psring
