// The files of a benchmark: JSON as in nccl-tests, a CSV with a row per combination and size, and the
// manifest. Pure.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "experiments/bench/plan.h"
#include "experiments/bench/result.h"
#include "experiments/host/machine.h"
#include "experiments/host/network_report.h"
#include "experiments/runs/provenance.h"
#include "trainer/strategies/table/cost_model.h"

namespace psring {

// A run's properties, without figures.
struct BenchRun {
  std::string run_id;
  std::vector<std::string> command_line;
  std::string started_utc, ended_utc;  // "2026-11-21 06:19:00"
  Machine machine;
  Provenance provenance;
  double wall_s = 0;                     // 0: not finished
  std::vector<std::string> machines;     // of --nnodes, "HOST at ADDRESS"; empty: one machine
  std::optional<NetworkReport> network;  // between them
  std::optional<Wires> wires;            // typical of `network`
};

// Version 3 of the layout of nccl-tests' -J, with extra fields. One file has all combinations; nccl-tests
// writes one file for each.
std::string BenchJson(const BenchRequest& request, const BenchResult& result, const BenchRun& run);

std::string BenchCsv(const BenchRequest& request, const BenchResult& result, const BenchRun& run);

std::string BenchManifest(const BenchRequest& request, const BenchPlan& plan, const BenchRun& run);

}  // namespace psring
