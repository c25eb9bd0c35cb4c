// Several machines that run one psring together. A *node* is a psring on a machine of its own; all are
// started with the same command but for --node_rank, as torchrun has it. Node 0 leads: it hosts the store by
// which the nodes meet, decides what is launched, and keeps what comes of it. The others follow: they start
// what they are told to, and send back the records.
//
// Anyone who can reach the store can write to it, so a node checks what it reads there (node_order.h). It
// ignores a value that no node of the job would write, because the node's own value may still replace it.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/net/clock_offset.h"
#include "common/rendezvous/own_address.h"
#include "common/rendezvous/rendezvous.h"
#include "experiments/processes/interrupt.h"
#include "experiments/processes/launcher.h"
#include "experiments/processes/node_order.h"
#include "experiments/processes/progress.h"
#include "experiments/processes/training_job.h"

namespace psring {

struct NodesOptions {
  int nodes = 1;
  int per_node = 0;  // workers on each; 0: not said
  int node = 0;      // this one's number
  std::string master_addr;
  int master_port = 29500;
  NetworkChoice network;
  absl::Duration timeout = absl::Seconds(60);

  bool several() const { return nodes > 1; }
};

// InvalidArgument: what contradicts itself, or is missing.
absl::Status CheckNodes(const NodesOptions& options);

// The times in a record file (steps-*.jsonl, trace-*.json), on the clock that `clock` leads to; other files
// come back as they are. InvalidArgument: it is no such file.
absl::StatusOr<std::string> OnClock(const ClockMap& clock, const std::string& name, const std::string& text);

class Nodes {
 public:
  // Waits for all nodes. Errors name those that do not come, or have other flags than node 0 (`flags`: those
  // that must be the same).
  static absl::StatusOr<std::unique_ptr<Nodes>> Join(const NodesOptions& options,
                                                     const std::vector<std::string>& flags);
  // A leader that has not said how it ends ends well.
  ~Nodes();

  const NodesOptions& options() const { return options_; }
  bool leads() const { return options_.node == 0; }
  const std::string& address(int node) const { return addresses_[static_cast<size_t>(node)]; }
  const std::string& host(int node) const { return hosts_[static_cast<size_t>(node)]; }
  // Records of other nodes come with node 0's times, give or take so much in the launch that was gathered
  // last; 0 where all nodes read one clock.
  absl::Duration clocks_within() const { return clocks_within_; }

  // Which node runs what of a job.
  NodeLayout LayoutOf(const TrainingOptions& training) const;

  // Node 0's side of a launch: tells the other nodes to start their parts of `job`. `spec` has node 0's own
  // part, which then also ends when another node reports a failure.
  absl::Status HandOut(const TrainingJob& job, LaunchSpec& spec);
  // After node 0's own processes have ended as `own` says: waits for the others, whose records come into
  // `folder`; or has them end. The verdict on the whole: the first cause, where it can be told. Aborted with
  // `may_restart`: the others know that the same is launched again. Where that cannot be, because a node has
  // ended, it is Unavailable.
  absl::Status Gather(const absl::Status& own, const std::string& folder, absl::Time deadline,
                      bool may_restart, const Interrupt& interrupt, Display& display);
  // Tells the others how all of it ended.
  void End(const absl::Status& status);

  // The other nodes' side, until node 0 says that it is over. `own`: what this node was started with.
  absl::Status Follow(const NodeOwn& own, const Interrupt& interrupt, Display& display);

 private:
  Nodes() = default;
  absl::Status CompareClocks();
  // Node 0's clock as seen from here.
  absl::StatusOr<ClockOffset> MeasureClock();
  // What another node has reported of the present launch; the store's own error where a node is lost.
  absl::Status Trouble();
  // Tells the others what has become of this node's part, or (node 0) of the whole.
  void Report(const char* key, const absl::Status& status);
  // Whether all other nodes still follow.
  bool AllFollow();
  // A value of the store that another node writes once, and that anyone else may have written before.
  struct Wanted {
    std::string key;
    std::string whom;  // completes "waited too long for"
    std::string what;  // completes "ignored"
    absl::Time deadline;
    absl::Duration patience;                                     // after a value that was refused
    std::function<absl::Status(const std::string& value)> take;  // its error refuses the value
  };
  // Waits for a value that `take` accepts. A refused one is ignored, with a note. That loses least for the
  // job: the node that should write the value usually replaces it.
  absl::Status WaitFor(const Wanted& wanted, const Interrupt& interrupt, Display& display);
  absl::Status FollowAll(const NodeOwn& own, const Interrupt& interrupt, Display& display);
  absl::Status FollowOne(const NodeOrder& order, const TrainingJob& job, const NodeOwn& own,
                         const std::string& folder, const Interrupt& interrupt, Display& display);
  // This node's records of `job`, with node 0's times.
  absl::Status SendRecords(const TrainingJob& job, const ClockMap& clock, const std::string& folder);
  // Waits until `node` has ended its part, and takes its records into `folder`.
  absl::Status TakeRecords(int node, const std::string& folder, absl::Time deadline,
                           const Interrupt& interrupt, Display& display);
  std::string Key(const char* what, int node = -1) const;

  NodesOptions options_;
  std::unique_ptr<Rendezvous> meeting_;
  std::vector<std::string> addresses_, hosts_;
  TrainingJob job_;         // node 0: of the present launch
  bool own_clock_ = false;  // this node does not read node 0's
  absl::Duration clocks_within_;
  int launch_ = 0;
  bool ended_ = false;
};

}  // namespace psring
