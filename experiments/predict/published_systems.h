// The registry of published training systems to which the model's constants are calibrated. The calibration,
// its validation, `--system` and the tests read it. Pure.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "experiments/predict/constants.h"
#include "experiments/predict/fit.h"

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
  const char* gpu;      // generation
  const char* network;  // "TCP" or "RDMA"
  bool servers;         // false: a ring all-reduce
  bool seconds;         // `published` is the time of a step
  Cluster cluster;
  PredictOptions options;  // buckets, placement, schedule, local aggregation
  double partition_mb = 0;
  bool after_backward = false;  // nothing overlaps with backward
  std::vector<PublishedModel> models;
  std::vector<std::string> fitted;  // names of constants, at most two
  Constants constants;              // fitted over all rows
  const char* remark;
};
const std::vector<PublishedSystem>& PublishedSystems();

// NotFound lists the systems.
absl::StatusOr<const PublishedSystem*> FindSystem(const std::string& name);

// The rows to fit or check: all but the first of each model. `size` is the number of GPUs.
absl::StatusOr<std::vector<FitRow>> RowsOf(const PublishedSystem& system);

int MostGpus(const PublishedSystem& system);

// The calibrated range: at least 90% of the withheld rows are within this factor of their prediction, up or
// down. For all systems together 1.08 suffices. But the constants to fit were chosen when the withheld rows
// of the first systems were known; the systems added afterwards need 1.17.
inline constexpr double kCalibratedFactor = 1.2;

}  // namespace psring
