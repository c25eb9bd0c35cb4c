// Which calibrated system a prediction is nearest to, and in what it differs. Pure.
#pragma once

#include <string>
#include <vector>

#include "experiments/predict/published_systems.h"
#include "experiments/texts/phrase.h"

namespace psring {

struct Situation {
  std::string gpu;  // the workload's device, as text
  bool rdma = false;
  PredictCase point;
  PredictOptions options;
  Cluster cluster;
};

// RDMA's messages take less than 10 us, software included; TCP's do not.
bool LooksLikeRdma(const Cluster& cluster);

// The system of the same family (servers or a ring) with the fewest differences in GPU generation, network,
// rate and number of machines.
const PublishedSystem& NearestSystem(const Situation& situation);

// Whether GPU generation, network and rate are the system's, so that its constants apply; the number of
// machines and how gradients are sent may differ.
bool SameEnvironment(const Situation& situation, const PublishedSystem& system);

// In what the situation lies outside the system's calibration; empty: it lies inside.
std::vector<std::string> Differences(const Situation& situation, const PublishedSystem& system,
                                     Language language);

}  // namespace psring
