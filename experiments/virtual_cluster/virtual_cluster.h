// A cluster on one machine: nodes with links of their own, on which the processes of a configuration stand.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/net/link_shaper.h"
#include "common/rendezvous/rendezvous.h"
#include "experiments/host/connections.h"
#include "experiments/plan/plan.h"
#include "experiments/processes/interrupt.h"
#include "experiments/processes/launcher.h"
#include "experiments/theory/cost_model.h"
#include "experiments/virtual_cluster/link.h"
#include "experiments/virtual_cluster/namespaces.h"

namespace psring {

// Which node a process stands on: that of some ranks on a node of their own; a server beside rank 0, beside
// its worker, or on a node of its own behind the workers'. Pure.
int NodeOfServer(const Configuration& configuration, int server);
int NodesOf(const Configuration& configuration);

class VirtualCluster {
 public:
  // How `options` are kept here: where it is left open by namespaces, or else by psring's own transports;
  // then `why` says why. FailedPrecondition: namespaces are asked for, and this host does not make them.
  static absl::StatusOr<Shaping> Choose(const LinkOptions& options, const Interrupt& interrupt,
                                        std::string& why);

  // `nodes` of them, shaped. FailedPrecondition: this host does not allow it.
  static absl::StatusOr<std::unique_ptr<VirtualCluster>> Create(const LinkOptions& options, Shaping shaping,
                                                                int nodes, const Interrupt& interrupt);

  // The payload, in bits/s, of the slowest link of `nodes` while every node sends to the next one and links
  // have no limit. Takes less than 1 s.
  static absl::StatusOr<double> MeasureCapacity(const LinkOptions& options, Shaping shaping, int nodes,
                                                const Interrupt& interrupt);

  // Measures each link while the others are idle, the ring and the incast, in about 4 s, longer where one
  // falls short, and stores the results in report(), with `capacity` (see MeasureCapacity). Returns what the
  // cost model needs: payload at the links' *measured* rate (the median), the latency of a message.
  absl::StatusOr<Wires> Measure(double capacity);

  const LinkReport& report() const { return report_; }

  // What the links have counted so far, by node. Empty where nobody counts: links that the transports hold
  // back, a rate that is not kept, a kernel without such counters.
  std::vector<NodeCounters> Counters(const Interrupt& interrupt) const;

  // The address by which a process on `node` is reached.
  std::string Address(int node) const;
  // What a node sends leaves by this interface, and nothing else does; empty: nodes have none of their own.
  std::string interface() const { return namespaces_ != nullptr ? "eth0" : ""; }
  // Puts a child that has not been started there.
  void Place(int node, ChildSpec& child) const;
  // A store that all nodes reach, at the switch; `host` is where.
  absl::StatusOr<std::unique_ptr<RendezvousServer>> HostStore(std::string& host) const;

 private:
  VirtualCluster() = default;
  // What a process on a node keeps of its link itself.
  LinkShape OwnShare() const;
  // For a cluster that the transports hold back: shapers for the measurements.
  void StartShapers();
  std::vector<std::pair<int, int>> Ring() const;
  absl::StatusOr<SocketPair> Connect(int from, int to) const;
  // All times in s.
  double Warmup() const;
  absl::StatusOr<std::vector<double>> Rates(const std::vector<std::pair<int, int>>& pairs, double warmup,
                                            double seconds) const;
  absl::StatusOr<double> BestRate(const std::vector<std::pair<int, int>>& pairs, double warmup,
                                  double seconds,
                                  const std::function<double(const std::vector<double>&)>& figure) const;

  std::unique_ptr<Namespaces> namespaces_;  // null: kUserspace
  int nodes_ = 0;
  std::vector<std::unique_ptr<LinkShaper>> shapers_;  // kUserspace: the nodes', while they are measured
  LinkReport report_;
};

}  // namespace psring
