// The files of a benchmark: nccl-tests' JSON, a CSV with a row per combination and size, the manifest. Pure.
#pragma once

#include <string>
#include <vector>

#include "experiments/bench/plan.h"
#include "experiments/bench/result.h"
#include "experiments/host/machine.h"
#include "experiments/runs/provenance.h"

namespace psring {

// A run without its figures.
struct BenchRun {
  std::string run_id;
  std::vector<std::string> command_line;
  std::string started_utc, ended_utc;  // "2026-11-21 06:19:00"
  Machine machine;
  Provenance provenance;
  double wall_s = 0;  // 0: not finished
};

// nccl-tests' -J, version 3 of its layout, with extra fields. One file has all combinations, whereas
// nccl-tests writes a file for each.
std::string BenchJson(const BenchRequest& request, const BenchResult& result, const BenchRun& run);

std::string BenchCsv(const BenchRequest& request, const BenchResult& result, const BenchRun& run);

std::string BenchManifest(const BenchRequest& request, const BenchPlan& plan, const BenchRun& run);

}  // namespace psring
