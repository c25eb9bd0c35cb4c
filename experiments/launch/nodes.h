// Runs psring on several machines. A *node* is one psring process per machine; all are started with the same
// flags except --node_rank, as with torchrun. Node 0 leads: it hosts the rendezvous store, decides what is
// launched, and keeps the results. The other nodes follow: they start their part of each launch and send back
// its records.
//
// Every process with the job's secret can write to the store, so a node validates what it reads there
// (node_order.h). It ignores invalid values, because the right node may still overwrite them.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/deadline.h"
#include "common/net/clock_offset.h"
#include "common/net/job_secret.h"
#include "common/rendezvous/launched_as.h"
#include "common/rendezvous/own_address.h"
#include "common/rendezvous/rendezvous.h"
#include "experiments/launch/interrupt.h"
#include "experiments/launch/launcher.h"
#include "experiments/launch/node_order.h"
#include "experiments/launch/progress.h"
#include "experiments/launch/training_job.h"
#include "experiments/machine/network_report.h"

namespace psring {

struct NodesOptions {
  int nodes = 1;
  int server_nodes = 0;               // the last ones, which run only dedicated servers
  int per_node = 0;                   // most processes on each; 0: not set
  std::string placement = "compact";  // of fewer processes: "compact": node by node; "spread": equal numbers
  int node = -1;                      // the number of this one; below 0: the launcher's
  std::string master_addr;
  int master_port = 0;  // 0: the launcher's, else 29500
  NetworkChoice network;
  ProbeScope probes = ProbeScope::kNeighbours;
  JobSecret secret;  // the same on all nodes
  absl::Duration timeout = absl::Seconds(60);

  bool several() const { return nodes > 1; }
  // Its `processes` are not set.
  NodeLayout layout() const;
};

// What the launcher of the nodes, or Kubernetes, says about this one.
struct NodeLauncher {
  std::string name;  // "srun", "mpirun", "Kubernetes"; empty: there is none
  int node = 0;
  int nodes = 0;  // 0: not known
  std::string master_addr;
  int master_port = 0;
};
// From the environment: the variables of launched_as.h, where a rank is a node; JOB_COMPLETION_INDEX of
// Kubernetes; MASTER_ADDR and MASTER_PORT. InvalidArgument names a malformed variable.
absl::StatusOr<NodeLauncher> ReadNodeLauncher(const GetEnv& get_env);
// Fills in what `options` does not set. InvalidArgument: the launcher started another number of processes.
absl::Status UseLauncher(const absl::StatusOr<NodeLauncher>& launcher, NodesOptions& options);

// InvalidArgument: flags are missing or contradict each other.
absl::Status CheckNodes(const NodesOptions& options);

// Converts the times in a record file (steps-*.jsonl, trace-*.json) by `clock`; other files stay unchanged.
// InvalidArgument: the file is malformed.
absl::StatusOr<std::string> OnClock(const ClockMap& clock, const std::string& name, const std::string& text);

// A node's part of a launch.
struct NodeTask {
  std::vector<ChildSpec> children;  // servers come last
  std::vector<int> processes;       // the numbers, in the job, of the children that are no servers
  int ranks_per_process = 1;
  std::vector<std::string> records;  // the names of the files that they may write, which node 0 collects
};

// A launch on all nodes, for node 0.
struct NodeLaunch {
  NodeOrder order;                 // RunLaunch sets `what` and `deadline_s`
  std::optional<TrainingJob> job;  // nullopt: it has no records
  // A process of another node died, and the job continues without it: its first rank and how it died.
  std::function<void(int rank, const std::string& what)> on_death;
  // Asked at the end: the same launch follows if this one is Aborted.
  std::function<bool()> may_restart = [] { return false; };
};

class Nodes {
 public:
  // Waits for all nodes. Errors name nodes that do not join or whose `flags` differ from node 0's.
  static absl::StatusOr<std::unique_ptr<Nodes>> Join(const NodesOptions& options,
                                                     const std::vector<std::string>& flags);
  // Node 0: calls End(OK) unless End was called.
  ~Nodes();

  const NodesOptions& options() const { return options_; }
  bool leads() const { return options_.node == 0; }
  const std::string& address(int node) const { return addresses_[node]; }
  const std::string& host(int node) const { return hosts_[node]; }
  // "a at 10.0.0.1", of each node.
  std::vector<std::string> Machines() const;
  // Accuracy of the conversion of other nodes' times to node 0's clock in the last gathered launch; 0 if all
  // nodes share one clock.
  absl::Duration clocks_within() const { return clocks_within_; }

  // Node 0: measures the network together with the other nodes.
  absl::StatusOr<NetworkReport> MeasureNetwork(const Interrupt& interrupt);

  // Node 0: asks the other nodes to start their parts of `launch`, runs `spec`, its own part, and writes the
  // records of the others to `folder`. A failure on one node ends the launch on all. Returns the outcome of
  // the launch; of several failures, the first cause if it is known. Aborted with `may_restart`: the other
  // nodes expect the same launch again. Unavailable: a node has ended, so there can be no restart.
  absl::Status RunLaunch(const NodeLaunch& launch, LaunchSpec& spec, const std::string& folder,
                         const Interrupt& interrupt, Display& display);
  // A server of this node has ended the launch's job without this worker, which may run on any node.
  void ReportLost(int worker);
  // Whether some node has reported that of any of these workers.
  bool AnyLost(int first, int count);
  // Node 0: tells the other nodes how the run ended.
  void End(const absl::Status& status);

  // Turns an order of node 0 into this node's part of the launch; `folder` is for its records. An error: the
  // order is invalid.
  using TaskOfOrder =
      std::function<absl::StatusOr<NodeTask>(const NodeOrder& order, const std::string& folder)>;
  // Of a verb that trains.
  absl::StatusOr<NodeTask> TrainingTask(const NodeOrder& order, const NodeSetup& own,
                                        const std::string& folder) const;
  // Other nodes: runs this node's part of each launch until node 0 calls End.
  absl::Status Follow(const TaskOfOrder& task_of, const Interrupt& interrupt, Display& display);

 private:
  Nodes() = default;
  // This node's part of measuring the network.
  absl::StatusOr<NetworkReport> Probe(const Interrupt& interrupt);
  // The offset to node 0's clock.
  absl::StatusOr<ClockOffset> MeasureClock();
  // Calls `on_death` for the deaths that other nodes have reported for this launch since the last call.
  void ReportDeaths(const NodeLaunch& launch);
  // After node 0's own processes have ended with `own`: the other nodes' records, and the outcome.
  absl::Status Gather(const absl::Status& own, const std::string& folder, MonotonicTime deadline,
                      bool may_restart, const Interrupt& interrupt, Display& display);
  // The failure that another node reported for this launch, or the store's error if a node is lost.
  absl::Status ReportedFailure();
  // Waits up to `timeout` for a reported failure other than `known`; OK: there is none.
  absl::Status AwaitFailure(absl::Duration timeout, const Interrupt& interrupt, absl::string_view known = "");
  // Reports the outcome of this node's part or, on node 0, of the launch.
  void Report(const char* key, const absl::Status& status);
  bool AllNodesFollow();
  // A value that one node writes once. Other nodes may have written its key before.
  struct ValueRequest {
    std::string key;
    std::string whom;  // completes "waited too long for"
    std::string what;  // completes "ignored"
    MonotonicTime deadline;
    absl::Duration patience;                                       // after an invalid value
    std::function<absl::Status(const std::string& value)> accept;  // an error: the value is invalid
  };
  // Waits for a valid value. Prints a note and ignores invalid ones, because the right node usually
  // overwrites them.
  absl::Status WaitFor(const ValueRequest& request, const Interrupt& interrupt, Display& display);
  absl::Status FollowAll(const TaskOfOrder& task_of, const Interrupt& interrupt, Display& display);
  absl::Status FollowOne(const NodeOrder& order, NodeTask task, const std::string& folder,
                         const Interrupt& interrupt, Display& display);
  // Sends this node's records, with times on node 0's clock.
  absl::Status SendRecords(const NodeTask& task, const ClockMap& clock, const std::string& folder);
  // Waits until `node` has ended its part and writes its records to `folder`.
  absl::Status TakeRecords(int node, const std::string& folder, MonotonicTime deadline,
                           const Interrupt& interrupt, Display& display);
  std::string Key(const char* what, int node = -1) const;

  NodesOptions options_;
  std::unique_ptr<Rendezvous> rendezvous_;
  std::vector<std::string> addresses_, hosts_;
  std::optional<TrainingJob> job_;  // node 0: of the current launch; empty: it has no records
  std::set<int> dead_;              // node 0: processes of other nodes in this launch
  bool own_clock_ = false;          // whether this node's clock is not node 0's
  absl::Duration clocks_within_;
  int launch_ = 0;
  bool ended_ = false;
};

// Measures the network between machines: this process's part of the phases; all processes of `rendezvous`
// call it. Returns the figures of all flows of all phases (s or bytes/s). `addresses`: of all nodes; `name`:
// the same on all, and different in each call. Errors name the node at fault.
absl::StatusOr<std::vector<std::vector<double>>> RunProbe(Rendezvous& rendezvous,
                                                          const std::vector<std::string>& addresses,
                                                          const std::string& name, const JobSecret& secret,
                                                          const std::vector<ProbePhase>& phases,
                                                          const Interrupt& interrupt);

}  // namespace psring
