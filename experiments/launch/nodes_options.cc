// How many nodes there are, which one this is, and where the others find node 0.
#include <algorithm>

#include "common/base/check.h"
#include "common/base/errors.h"
#include "common/net/address.h"
#include "common/text/peer_text.h"
#include "common/text/translate.h"
#include "experiments/launch/nodes.h"

namespace psring {
namespace {

constexpr int kDefaultPort = 29500;
constexpr int kMaxNodes = 1 << 20;

constexpr int kClockReadings = 20;

}  // namespace

NodeLayout NodesOptions::layout() const {
  return {.nodes = nodes,
          .server_nodes = server_nodes,
          .per_node = std::max(1, per_node),
          .spread = placement == "spread"};
}

absl::StatusOr<NodeLauncher> ReadNodeLauncher(const GetEnv& get_env) {
  NodeLauncher launcher;
  if (IsStartedAsARank(get_env)) {
    PSRING_ASSIGN_OR_RETURN(const LaunchedAs as, ReadLauncher("--nnodes", get_env));
    launcher = {.name = as.launcher,
                .node = as.rank,
                .nodes = as.world_size,
                .master_addr = as.master_host,
                .master_port = as.master_port};
  } else if (const auto index = get_env("JOB_COMPLETION_INDEX"); index.has_value()) {
    launcher.name = "Kubernetes";
    PSRING_ASSIGN_OR_RETURN(launcher.node, NumberOf("JOB_COMPLETION_INDEX", *index, 0, kMaxNodes));
  }
  if (const std::string address = get_env("MASTER_ADDR").value_or(""); !address.empty()) {
    launcher.master_addr = address;
  }
  if (const std::string port = get_env("MASTER_PORT").value_or(""); !port.empty()) {
    PSRING_ASSIGN_OR_RETURN(launcher.master_port, NumberOf("MASTER_PORT", port, 1, 65535));
  }
  return launcher;
}

absl::Status UseLauncher(const absl::StatusOr<NodeLauncher>& launcher, NodesOptions& options) {
  if (options.several()) {
    PSRING_RETURN_IF_ERROR(launcher.status());
    if (options.node < 0 && launcher->nodes > 0 && launcher->nodes != options.nodes) {
      return InvalidArgument(launcher->name, " started ", launcher->nodes,
                             launcher->nodes == 1 ? " process" : " processes", " for --nnodes ",
                             options.nodes, ": start one psring on each machine (srun --ntasks-per-node 1, ",
                             "mpirun --map-by ppr:1:node), or give --node_rank");
    }
    if (options.node < 0) options.node = launcher->node;
    if (options.master_addr.empty()) options.master_addr = launcher->master_addr;
    if (options.master_port == 0) options.master_port = launcher->master_port;
  }
  for (std::string* host : {&options.master_addr, &options.network.bind}) *host = WithoutBrackets(*host);
  options.node = std::max(0, options.node);
  if (options.master_port == 0) options.master_port = kDefaultPort;
  return absl::OkStatus();
}

absl::Status CheckNodes(const NodesOptions& options) {
  if (!options.network.bind.empty() && !options.network.interface.empty()) {
    return absl::InvalidArgumentError("--bind and --interface both select the network; use one of them");
  }
  if (options.node < 0 || options.node >= options.nodes) {
    return InvalidArgument("--node_rank ", options.node, " of --nnodes ", options.nodes,
                           ": nodes count from 0");
  }
  if (options.several() && options.master_addr.empty()) {
    return InvalidArgument("--nnodes ", options.nodes, " needs --master_addr, the address of node 0");
  }
  if (!options.several() && !options.master_addr.empty()) {
    return InvalidTr("--master_addr is for several machines; give --nnodes or omit it");
  }
  return absl::OkStatus();
}

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
