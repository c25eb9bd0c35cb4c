// What node 0 asks another node to start, and how that node validates it. Pure.
//
// Anyone who can reach the rendezvous store can write an order, so an order is data and never a command: a
// node starts its own binaries with its own flags, folders and address. An order chooses a strategy, a
// number of servers and their wire among those that the node was started with, and sets the number of
// workers, up to the nodes' capacity, the length of the training, the evaluation interval, the seed, the
// number in the strategy's name ("ps-ssp:2"), the deadline and the store's port; the learning rate only if
// the node was started to try several. It may omit flags. Or it asks a node to take part in measuring the
// network, or in a launch of the benchmark that the node was started with, by the launch's index in the plan.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/options/training_options.h"
#include "experiments/launch/training_job.h"

namespace psring {

struct NodeOrder {
  bool over = false;    // the run is over; only `failure` is set
  std::string failure;  // with `over`: why the run failed; empty: it succeeded
  bool probes = false;  // only measure the network (RunProbe); no other field is set
  std::string what;     // "ring x 4"
  double deadline_s = 0;
  int bench_launch = -1;              // a benchmark's launch; then only `store_port` is set of the following
  std::vector<std::string> training;  // flags as TrainingArguments writes them
  int workers = 1;                    // ranks
  bool has_servers = false;           // whether the strategy has servers
  bool outlives_workers = false;
  int store_port = 0;
};
std::string ToJson(const NodeOrder& order);
// InvalidArgument: not JSON, or a field is missing, out of bounds or of another type.
absl::StatusOr<NodeOrder> NodeOrderFromJson(const std::string& text);

// How a node other than node 0 was started.
struct NodeSetup {
  Binaries binaries;
  TrainingOptions training;
  std::vector<std::string> strategies;               // that an order may choose
  std::vector<int> servers = {0};                    // --servers that an order may choose
  std::vector<std::string> server_wires = {"grpc"};  // likewise
  bool tries_rates = false;                          // whether an order may set the learning rate
  bool cuts_models = false;  // --layouts or --pp: whether an order may set the pipeline and its micro-batches
  NodeLayout layout;         // an order sets its `processes`
};

// What the other nodes start of `job`; `what` and `deadline_s` are not set. Paths are not sent.
NodeOrder OrderOf(const TrainingJob& job);

// The job that `order` describes; `order.over` is false. The store is at `store_host`. Paths are those of
// `own`; `folder` replaces a path that only node 0 has, because only rank 0 uses its files. InvalidArgument
// names a flag that an order may not change.
absl::StatusOr<TrainingJob> JobOf(const NodeOrder& order, const NodeSetup& own, const std::string& store_host,
                                  const std::string& folder);

// Parses a node's list of record files, one per line. InvalidArgument: a name is not in `expected` or occurs
// twice.
absl::StatusOr<std::vector<std::string>> NamedRecords(const std::string& text,
                                                      const std::vector<std::string>& expected);

}  // namespace psring
