// The registry of published training systems to whose steps the model's causes of lost time (causes.h) are
// fitted. Pure.
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
  const char* workload;  // of an exchange only its label
  int batch;             // per GPU
  std::vector<PublishedRow> rows;
  double exchange_mib = 0;  // above 0: exchanges of so many MiB, without computing, and every row is one
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
  // FittedCauses, fitted over all rows; near the initial value if no row determines one. Without compute_cv
  // if nothing is computed.
  Constants constants;
  const char* remark;

  const char* network() const { return rdma ? "RDMA" : "TCP"; }
};
const std::vector<PublishedSystem>& PublishedSystems();

// NotFound lists the systems.
absl::StatusOr<const PublishedSystem*> FindSystem(const std::string& name);

int MostGpus(const PublishedSystem& system);

}  // namespace psring
