// Measuring the network between the nodes.
#include "common/base/check.h"
#include "experiments/processes/nodes.h"

namespace psring {

absl::StatusOr<NetworkReport> Nodes::Probe(const Interrupt& interrupt) {
  const std::vector<ProbePhase> phases = ProbePhases(options_.nodes, options_.probes);
  PSRING_ASSIGN_OR_RETURN(const auto results, RunProbe(*rendezvous_, addresses_, Key("probe"),
                                                       options_.secret, phases, interrupt));
  return ReportOf(options_.nodes, phases, results);
}

absl::StatusOr<NetworkReport> Nodes::MeasureNetwork(const Interrupt& interrupt) {
  const NodeOrder order{.probes = true};
  for (int node = 1; node < options_.nodes; ++node) {
    PSRING_RETURN_IF_ERROR(rendezvous_->Set(Key("order", node), ToJson(order)));
  }
  PSRING_ASSIGN_OR_RETURN(const NetworkReport report, Probe(interrupt));
  ++launch_;
  return report;
}

}  // namespace psring
