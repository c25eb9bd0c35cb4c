// A cluster on one machine: each node has its own link and runs some processes of a configuration.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/net/link_shaper.h"
#include "common/rendezvous/rendezvous.h"
#include "experiments/design/plan.h"
#include "experiments/launch/interrupt.h"
#include "experiments/launch/launcher.h"
#include "experiments/machine/connections.h"
#include "experiments/virtual_cluster/link.h"
#include "experiments/virtual_cluster/namespaces.h"
#include "trainer/strategies/table/cost_model.h"

namespace psring {

// The node of a server: rank 0's, a worker's (colocated), or its own after the workers' nodes (dedicated).
// Pure.
int NodeOfServer(const Configuration& configuration, int server);
int NodesOf(const Configuration& configuration);

class VirtualCluster {
 public:
  // How to shape links on this host. Without --shaping: namespaces if the host allows them, else psring's
  // transports, and `why` states the reason. FailedPrecondition: --shaping netns, and the host does not allow
  // it.
  static absl::StatusOr<Shaping> Choose(const LinkOptions& options, const Interrupt& interrupt,
                                        std::string& why);

  // FailedPrecondition: this host does not allow the shaping.
  static absl::StatusOr<std::unique_ptr<VirtualCluster>> Create(const LinkOptions& options, Shaping shaping,
                                                                int nodes, const Interrupt& interrupt);

  // Payload in bits/s of the slowest of `nodes` unlimited links while every node sends to the next one. Takes
  // less than 1 s.
  static absl::StatusOr<double> MeasureCapacity(const LinkOptions& options, Shaping shaping, int nodes,
                                                const Interrupt& interrupt);

  // Measures each link while the others are idle, the ring and the incast, and stores the results and
  // `capacity` (see MeasureCapacity) in report(). Takes about 4 s, more if a link falls short. Returns the
  // cost model's input: the links' median *measured* rate and the latency of a message.
  absl::StatusOr<Wires> Measure(double capacity);

  const LinkReport& report() const { return report_; }

  // The links' counters so far, by node. Empty if there are none: kUserspace, unlimited links, or a kernel
  // without such counters.
  std::vector<NodeCounters> Counters(const Interrupt& interrupt) const;

  // The address of processes on `node`.
  std::string Address(int node) const;
  // The interface that carries all traffic of a node and no other; empty: none.
  std::string interface() const { return namespaces_ != nullptr ? "eth0" : ""; }
  // Configures `child`, which has not started, to run on `node`.
  void Place(int node, ChildSpec& child) const;
  // Starts a rendezvous store at the switch, which all nodes reach; sets `host` to its address.
  absl::StatusOr<std::unique_ptr<RendezvousServer>> HostStore(const JobSecret& secret,
                                                              std::string& host) const;

 private:
  VirtualCluster() = default;
  // The part of the shaping that processes of a node do themselves.
  LinkShape OwnShare() const;
  using Pairs = std::vector<std::pair<int, int>>;  // of sending and receiving nodes
  absl::StatusOr<SocketPair> Connect(int from, int to) const;
  // Times are in s, rates in bytes/s, BestRate in bits/s.
  absl::StatusOr<std::vector<double>> Rates(const Pairs& pairs, double warmup, double seconds) const;
  absl::StatusOr<double> BestRate(const Pairs& pairs, double warmup, double seconds, bool of_all) const;

  std::unique_ptr<Namespaces> namespaces_;  // null: kUserspace
  int nodes_ = 0;
  Pairs ring_;
  std::vector<std::unique_ptr<LinkShaper>> shapers_;  // kUserspace: the nodes', until they are measured
  LinkReport report_;
};

struct CarriedCluster {
  std::shared_ptr<const VirtualCluster> cluster;  // measured
  Wires wires;                                    // for the cost model, as measured on it
  std::string why_lower;                          // why its rate is below the requested one, or empty
};

// The rates of kDefaultRates up to `most` for which links of `capacity` have headroom, fastest first; the
// first is tried several times. All in bits/s. Pure.
std::vector<double> RatesToTry(double capacity, double most);

// What a user can do if this host cannot carry the links `asked`: a lower rate, fewer workers, a slower run
// (--scale; only if `asked` has a rate) or a prediction. `capacity`: of links without a limit. `carried`: by
// the links that fell short, which limits the suggested rate. Both in bits/s. Pure.
std::string LinkAdvice(const LinkOptions& asked, double capacity, double carried, int nodes);

// A cluster of `nodes` with links of `asked.bits_per_s` / `asked.scale`. With `may_lower`, the rate is the
// fastest of kDefaultRates, up to the requested one, that this host carries with headroom while every node
// sends. Takes about 4 s, and at least as long again for each rate that falls short. FailedPrecondition: the
// host carries no such rate; the message states what it carries and what to do.
absl::StatusOr<CarriedCluster> BuildCarriedCluster(const LinkOptions& asked, bool may_lower, Shaping shaping,
                                                   int nodes, const Interrupt& interrupt);

}  // namespace psring
