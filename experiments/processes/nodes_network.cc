// Measuring the network between the nodes.
#include "common/base/check.h"
#include "experiments/processes/nodes.h"

namespace psring {

absl::StatusOr<NetworkReport> Nodes::Probe(ProbeScope scope, const Interrupt& interrupt) {
  PSRING_ASSIGN_OR_RETURN(const auto results,
                          RunProbe(*rendezvous_, addresses_, Key("probe"), options_.secret,
                                   ProbePhases(options_.nodes, scope), interrupt));
  return ReportOf(options_.nodes, scope, results);
}

absl::StatusOr<NetworkReport> Nodes::MeasureNetwork(ProbeScope scope, const Interrupt& interrupt) {
  const NodeOrder order{.probes = true, .all_pairs = scope == ProbeScope::kAllPairs};
  for (int node = 1; node < options_.nodes; ++node) {
    PSRING_RETURN_IF_ERROR(rendezvous_->Set(Key("order", node), ToJson(order)));
  }
  PSRING_ASSIGN_OR_RETURN(const NetworkReport report, Probe(scope, interrupt));
  ++launch_;
  return report;
}

}  // namespace psring
