// Starts the processes of a launch, of a training or of a benchmark, and waits for them: on this machine, on
// a virtual cluster or on several machines.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/deadline.h"
#include "common/rendezvous/rendezvous.h"
#include "experiments/launch/interrupt.h"
#include "experiments/launch/nodes.h"
#include "experiments/launch/progress.h"
#include "experiments/machine/machine.h"
#include "experiments/machine/network_report.h"
#include "experiments/virtual_cluster/virtual_cluster.h"
#include "trainer/strategies/table/cost_model.h"

namespace psring {

// Where the processes of a launch run: on the nodes of a virtual cluster, on several machines, or, if both
// are null, on this machine, at `address`.
struct Site {
  const VirtualCluster* cluster = nullptr;
  Nodes* nodes = nullptr;
  std::string address = "127.0.0.1";
  std::function<void()> on_progress;        // after each progress line of a process; may be null
  const MeasuringNow* measuring = nullptr;  // finds other psrings; may be null
  MonotonicTime until = MonotonicTime::InfiniteFuture();  // launches still running then are ended

  // `node`: of the virtual cluster, or a machine.
  std::string Address(int node) const;
};

// The rendezvous store of a launch, which ends with this.
struct JobStore {
  std::unique_ptr<RendezvousServer> server;
  StorePlace address;
};
// `tls`: as --tls. On several machines, all launches have the secret of the nodes.
absl::StatusOr<JobStore> StartStore(const Site& site, const std::string& tls);

// More than a launch of `expected_s` takes, even if a process is silent for --timeout.
absl::Duration DeadlineOf(double expected_s, double timeout_s);

// Runs this machine's processes, and on several machines the others' (Nodes::RunLaunch).
absl::Status RunLaunch(const Site& site, const NodeLaunch& launch, LaunchSpec& spec,
                       const std::string& folder, const Interrupt& interrupt, Display& display);

// Prints a note, once, if another psring measures now; `commented`: as a line of a benchmark. Returns its
// process ID, or 0. `measuring` may be null.
int NoteOtherPsring(const MeasuringNow* measuring, Display& display, bool commented = false);

// Turns an order of node 0 into this node's part of a launch; `folder` is for its records.
using TaskOnNode = std::function<absl::StatusOr<NodeTask>(const Nodes& nodes, const NodeOrder& order,
                                                          const std::string& folder)>;
// With several machines, waits for all nodes. On node 0, runs `lead` and tells the others how it ended; on
// the others, starts this node's part of each launch. `flags`: the same on all nodes. Returns the error of
// `lead` or of this node.
absl::Status LeadOrFollow(const NodesOptions& nodes, const std::string& tls,
                          const std::vector<std::string>& flags, const TaskOnNode& task,
                          const Interrupt& interrupt, Display& display,
                          const std::function<absl::Status(Nodes* nodes)>& lead);

// Runs rounds, each of which runs every case once: in the order of RoundOrder, or, without a seed, in the
// given one. `next`: the number of the next round; nullopt: there is none. `end` ends a round.
absl::Status RunRounds(size_t cases, std::optional<uint64_t> seed,
                       const std::function<std::optional<int>()>& next,
                       const std::function<absl::Status(int round, size_t index)>& run,
                       const std::function<absl::Status()>& end);

// Typical figures of the network: the medians over its pairs of nodes, and this machine's speed of adding.
Wires WiresBetween(const NetworkReport& network);

}  // namespace psring
