// The registry of published training systems to which the model's constants are calibrated, and the check of
// the calibrated model against them: constants are fitted without the largest run of each model, which is
// then predicted. (Leave-one-out would not test extrapolation.) Pure.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "experiments/verbs/predict/fit.h"

namespace psring {

struct PublishedRow {
  int gpus;
  double published;  // samples/s of all GPUs, or seconds of a step
};

// The first row, on one machine, sets the computing time; it includes the exchange between that machine's
// GPUs.
struct PublishedModel {
  const char* workload;
  int batch;  // per GPU
  std::vector<PublishedRow> rows;
};

struct PublishedSystem {
  const char* name;  // for --system
  const char* title;
  const char* source;
  const char* gpu;       // generation
  bool rdma = false;     // else TCP
  bool servers = false;  // else a ring all-reduce
  bool seconds = false;  // `published` is the time of a step
  Cluster cluster;
  PredictOptions options;  // buckets, placement, schedule, local aggregation
  double partition_mb = 0;
  bool after_backward = false;  // nothing overlaps with backward
  std::vector<PublishedModel> models;
  std::vector<std::string> fitted;  // names of constants, at most two
  Constants constants;              // fitted over all rows
  const char* remark;

  const char* network() const { return rdma ? "RDMA" : "TCP"; }
};
const std::vector<PublishedSystem>& PublishedSystems();

// NotFound lists the systems.
absl::StatusOr<const PublishedSystem*> FindSystem(const std::string& name);

// The rows to fit or check: all but the first of each model. `size` is the number of GPUs. The last row of
// each model is withheld.
absl::StatusOr<std::vector<FitRow>> RowsOf(const PublishedSystem& system);

int MostGpus(const PublishedSystem& system);

struct CheckedSystem : CheckedFit {
  const PublishedSystem* system = nullptr;
};
absl::StatusOr<CheckedSystem> CheckSystem(const PublishedSystem& system);

// The factor, at least 1, within which `share` (0 to 1) of the withheld rows are predicted, up or down.
double FactorOf(const std::vector<CheckedSystem>& systems, double share);

// The tables of experiments/results/published_runs.md.
std::string PublishedText(const std::vector<CheckedSystem>& systems);

// The calibrated range: at least 90% of the withheld rows are within this factor of their prediction, up or
// down. For all systems together 1.08 suffices. But the constants to fit were chosen when the withheld rows
// of the first systems were known; the systems added afterwards need 1.17.
inline constexpr double kCalibratedFactor = 1.2;

}  // namespace psring
