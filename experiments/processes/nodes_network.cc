// What nodes learn from each other: their network, their clocks, and which processes have ended.
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/text/peer_text.h"
#include "experiments/processes/nodes.h"

namespace psring {
namespace {

constexpr int kClockReadings = 20;

}  // namespace

absl::StatusOr<ClockOffset> Nodes::MeasureClock() {
  std::vector<ClockReading> readings;
  for (int i = 0; i < kClockReadings; ++i) {
    PSRING_ASSIGN_OR_RETURN(readings.emplace_back(), rendezvous_->ReadClock());
  }
  return OffsetOf(readings);
}

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

void Nodes::ReportDeaths(const NodeLaunch& launch) {
  for (int node = 1; node < options_.nodes; ++node) {
    for (const int process : PartOf(*job_, node).processes) {
      if (dead_.contains(process)) continue;
      const auto how = rendezvous_->TryGet(Key("died", process), "the other nodes");
      if (!how.ok() || !how->has_value()) continue;
      dead_.insert(process);
      launch.on_death(process * job_->training.ranks_per_process, PeerText(**how));
    }
  }
}

void Nodes::ReportLost(int worker) { (void)rendezvous_->Set(Key("lost", worker), ""); }

bool Nodes::AnyLost(int first, int count) {
  for (int worker = first; worker < first + count; ++worker) {
    const auto lost = rendezvous_->TryGet(Key("lost", worker), "the other nodes");
    if (lost.ok() && lost->has_value()) return true;
  }
  return false;
}

}  // namespace psring
