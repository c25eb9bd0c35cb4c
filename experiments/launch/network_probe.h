// Measures the network between machines, each represented by one process.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/net/job_secret.h"
#include "common/rendezvous/rendezvous.h"
#include "experiments/launch/interrupt.h"
#include "experiments/machine/network_report.h"

namespace psring {

// This process's part of the phases; all processes of `rendezvous` call it. Returns the figures of all flows
// of all phases (s or bytes/s). `addresses`: of all nodes; `name`: the same on all, and different in each
// call. Errors name the node at fault.
absl::StatusOr<std::vector<std::vector<double>>> RunProbe(Rendezvous& rendezvous,
                                                          const std::vector<std::string>& addresses,
                                                          const std::string& name, const JobSecret& secret,
                                                          const std::vector<ProbePhase>& phases,
                                                          const Interrupt& interrupt);

}  // namespace psring
