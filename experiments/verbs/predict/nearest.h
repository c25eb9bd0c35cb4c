// The calibrated system nearest to a prediction, and their differences. Pure.
#pragma once

#include <string>
#include <vector>

#include "experiments/verbs/predict/published_systems.h"

namespace psring {

struct Situation {
  std::string gpu;  // the workload's device, as text
  bool rdma = false;
  PredictCase point;
  PredictOptions options;
  Cluster cluster;
};

// True for latencies below 10 us, software included. TCP is slower.
bool LooksLikeRdma(const Cluster& cluster);

// The system of the same family (servers or a ring) with the fewest differences in GPU generation, network,
// rate and number of machines.
const PublishedSystem& NearestSystem(const Situation& situation);

// True if the GPU generation, network and rate are the system's, so its constants apply. The number of
// machines and how gradients are sent may differ.
bool SameEnvironment(const Situation& situation, const PublishedSystem& system);

// One phrase per property outside the system's calibration; empty if the situation is within it.
std::vector<std::string> Differences(const Situation& situation, const PublishedSystem& system);

}  // namespace psring
