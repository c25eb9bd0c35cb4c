// The files of a benchmark: JSON as in nccl-tests, a CSV with a row per combination and size, and its part of
// the manifest. Pure. `run`: without figures.
#pragma once

#include <string>

#include "experiments/run_folder/manifest.h"
#include "experiments/verbs/bench/plan.h"
#include "experiments/verbs/bench/result.h"

namespace psring {

// Version 3 of the layout of nccl-tests' -J, with extra fields. One file has all combinations; nccl-tests
// writes one file for each.
std::string BenchJson(const BenchRequest& request, const BenchResult& result, const Manifest& run,
                      const std::string& ended_utc = "");

std::string BenchCsv(const BenchRequest& request, const BenchResult& result, const Manifest& run);

// Manifest::bench.
std::string BenchPlanJson(const BenchRequest& request, const BenchPlan& plan);

}  // namespace psring
