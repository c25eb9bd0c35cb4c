#include "experiments/simulator/server_layout.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "experiments/simulator/cluster_links.h"

namespace psring {
namespace {

// Nodes with the same counts act alike.
struct NodeKind {
  int workers = 0, slow = 0, servers = 0;
  auto operator<=>(const NodeKind&) const = default;
};

// Colocated servers are spread evenly: server s is on the node of worker floor(s N / S).
std::vector<NodeKind> Nodes(const ServerRun& run, const Shape& shape) {
  std::vector<NodeKind> nodes(shape.nodes, NodeKind{.workers = shape.ranks_per_node});
  for (int worker = 0; worker < run.slow_workers; ++worker) ++nodes[worker / shape.ranks_per_node].slow;
  switch (run.place) {
    case ServerPlace::kRank0:
      nodes.front().servers = run.servers;
      break;
    case ServerPlace::kColocated:
      for (int64_t server = 0; server < run.servers; ++server) {
        ++nodes[server * run.workers / run.servers / shape.ranks_per_node].servers;
      }
      break;
    case ServerPlace::kDedicated:
      nodes.insert(nodes.end(), run.servers, NodeKind{.servers = 1});
      break;
  }
  return nodes;
}

class LayoutBuilder {
 public:
  LayoutBuilder(const ServerRun& run, const Cluster& cluster, bool each_alone, FluidNetwork& network)
      : run_(run),
        cluster_(cluster),
        each_alone_(each_alone),
        network_(network),
        shape_(ShapeOf(cluster, run.workers)),
        nodes_(Nodes(run, shape_)),
        links_(cluster, shape_.nodes, network) {
    for (const NodeKind& node : nodes_) ++count_[node];
    layout_.simulated_workers = run.workers;
  }

  ServerLayout Build(Simulated simulated) {
    AddSharedResources();
    switch (simulated) {
      case Simulated::kGroups:
        AddGroups();
        break;
      case Simulated::kSample:
        AddSample();
        break;
      case Simulated::kEach:
        for (const NodeKind& kind : nodes_) AddNode(kind, 1);
        break;
    }
    return std::move(layout_);
  }

 private:
  void AddSharedResources() {
    layout_.fabric = links_.fabric();
    const double add = cluster_.server_add_s_per_byte;
    layout_.processor =
        network_.AddResource(add > 0 && !each_alone_ ? run_.servers / add : FluidNetwork::kUnlimited);
    const double host = cluster_.server_worker_s_per_byte;
    layout_.host = network_.AddResource(host > 0 ? run_.servers / host : FluidNetwork::kUnlimited);
    // One resource for the cards of all nodes of a kind.
    for (const auto& [kind, of_kind] : count_) {
      const NodePorts ports = ports_[kind] = AddPorts(of_kind);
      if (kind.servers > 0) layout_.server_ports.push_back(ports);
      if (kind.workers > 0) layout_.worker_ports.push_back(ports);
    }
  }

  NodePorts AddPorts(int nodes) {
    const double bytes_per_s = links_.CardsRate() * nodes;
    const double bytes = cluster_.burst_bytes * cluster_.cards_per_node * nodes;
    const FluidNetwork::Burst burst{bytes, bytes, FullSpeed(cluster_) * cluster_.cards_per_node * nodes};
    const size_t out = network_.AddResource(bytes_per_s, burst);
    return {out, network_.AddResource(bytes_per_s, burst)};
  }

  void AddGroups() {
    const size_t any = network_.AddResource(FluidNetwork::kUnlimited);
    const NodePorts unlimited = {any, any};
    for (const auto& [kind, of_kind] : count_) {
      for (const bool slow : {false, true}) {
        const int workers = of_kind * (slow ? kind.slow : kind.workers - kind.slow);
        if (workers > 0) AddGroup(kind, workers, slow, 1, unlimited, links_.IntraRate() * workers);
      }
    }
  }

  // At least one node of each kind.
  void AddSample() {
    const double part = std::min(1.0, double(run_.most_alone) / run_.workers);
    layout_.simulated_workers = 0;
    for (const auto& [kind, of_kind] : count_) {
      if (kind.workers == 0) continue;
      const int taken = each_alone_ ? std::max(1, static_cast<int>(of_kind * part)) : of_kind;
      for (int i = 0; i < taken; ++i) AddNode(kind, double(of_kind) / taken);
      layout_.simulated_workers += taken * kind.workers;
    }
  }

  // Each worker of the node is a group.
  void AddNode(const NodeKind& kind, double weight) {
    const NodePorts node = AddPorts(1);
    for (int place = 0; place < kind.workers; ++place) {
      AddGroup(kind, 1, place < kind.slow, weight, node, links_.IntraRate());
    }
  }

  void AddGroup(const NodeKind& kind, int workers, bool slow, double weight, NodePorts node,
                double own_intra) {
    const int first =
        layout_.groups.empty() ? 0 : layout_.groups.back().first_worker + layout_.groups.back().workers;
    const double w = workers, all = w * weight, s = run_.servers;
    const double here = kind.servers / s;  // share of every bucket that stays on the worker's node
    std::vector<FluidNetwork::Use> push, pull;
    const auto use = [&](size_t by_push, size_t by_pull, double load) {
      if (load <= 1e-12) return;
      push.push_back({by_push, load});
      pull.push_back({by_pull, load});
    };
    const size_t local = network_.AddResource(own_intra);
    use(local, local, w * here);
    use(node.out, node.in, w * (1 - here));
    use(layout_.fabric, layout_.fabric, all * (1 - here));
    push.push_back({layout_.processor, all / run_.pushed_part});  // capacity in float32 bytes
    use(layout_.host, layout_.host, all);
    for (const auto& [other, of_kind] : count_) {
      const double away = other.servers * (of_kind - (other == kind ? 1 : 0)) / s;
      // A kind's port carries what its workers send and what its servers receive.
      use(ports_[other].in, ports_[other].out, all * away);
      if (other == kind) use(ports_[kind].out, ports_[kind].in, all * (1 - here));
    }
    // One worker fills at most one card.
    double most = here < 1 ? links_.FastestCard() / (1 - here) : FluidNetwork::kUnlimited;
    // A worker has one connection per server, with an equal share of the bytes.
    if (here < 1 && cluster_.connection_bytes_per_s > 0)
      most = std::min(most, cluster_.connection_bytes_per_s * s);
    const size_t push_kind = network_.AddKind(std::move(push), most);
    const size_t pull_kind = network_.AddKind(std::move(pull), most);
    layout_.groups.push_back({weight, first, workers, slow, push_kind, pull_kind});
  }

  const ServerRun& run_;
  const Cluster& cluster_;
  const bool each_alone_;
  FluidNetwork& network_;
  const Shape shape_;
  const std::vector<NodeKind> nodes_;
  const ClusterLinks links_;
  std::map<NodeKind, int> count_;
  std::map<NodeKind, NodePorts> ports_;
  ServerLayout layout_;
};

}  // namespace

absl::Status CheckServers(const ServerRun& run, const WaitingRule& rule) {
  const auto wrong = [](const auto&... what) { return absl::InvalidArgumentError(absl::StrCat(what...)); };
  if (run.clips && rule.each_alone()) {
    return wrong("a gradient can be clipped by its norm only if the pushes of all workers make one update");
  }
  PSRING_CHECK(run.delays.slowness.size() <= run.workers);
  if (run.servers < 1) return wrong(run.servers, " servers; at least 1 is needed");
  if (run.place == ServerPlace::kColocated && run.servers > run.workers) {
    return wrong(run.servers, " servers cannot be colocated with ", run.workers, " workers, one with each");
  }
  if (run.slow_workers > run.workers) {
    return wrong(run.slow_workers, " of ", run.workers, " workers cannot be slow");
  }
  return absl::OkStatus();
}

ServerLayout LayOutServers(const ServerRun& run, const Cluster& cluster, Simulated simulated, bool each_alone,
                           FluidNetwork& network) {
  return LayoutBuilder(run, cluster, each_alone, network).Build(simulated);
}

}  // namespace psring
