// What people and parsers read of a benchmark: nccl-tests' tables; lines that are not data begin with #.
// Pure.
#pragma once

#include <string>

#include "experiments/bench/plan.h"
#include "experiments/bench/result.h"
#include "experiments/host/machine.h"
#include "experiments/texts/phrase.h"

namespace psring {

// Machine, sizes, how often, combinations, notes: what is known before anything runs.
std::string BenchHeadText(const BenchRequest& request, const BenchPlan& plan, const Machine& machine,
                          double expected_s, Language language = Language::kEnglish);

// Ranks, then a table a combination with its footer, the limits, and the busbw of all combinations side by
// side.
std::string BenchTablesText(const BenchRequest& request, const BenchResult& result,
                            Language language = Language::kEnglish);

}  // namespace psring
