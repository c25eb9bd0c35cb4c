// What node 0 has another node start, and how that node checks it. Until jobs have a secret, anyone who can
// reach the rendezvous store can write an order, so an order is data and never a command: a node starts its
// own binaries with the flags that it was started with itself, in its own folders, on its own address. An
// order sets only the budget, the evaluation interval, the seed, the strategy's number and the port of node
// 0's store, and may leave flags out. Pure.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/options/training_options.h"
#include "experiments/processes/training_job.h"

namespace psring {

struct NodeOrder {
  bool over = false;    // there is nothing more to start, and the rest is not set
  std::string failure;  // with `over`: why; empty: all is well
  std::string what;     // "ring x 4"
  double deadline_s = 0;
  std::vector<std::string> training;  // flags, as TrainingArguments writes them
  bool has_servers = false;           // the strategy's
  bool outlives_workers = false;
  int store_port = 0;
};
std::string ToJson(const NodeOrder& order);
// InvalidArgument, in one line, for text that is not an order: no JSON, a field of another type, or out of
// bounds.
absl::StatusOr<NodeOrder> NodeOrderFromJson(const std::string& text);

// What a node that takes orders was started with.
struct NodeOwn {
  Binaries binaries;
  TrainingOptions training;
  int nodes = 1;
  int per_node = 0;  // trainers per node; 0: 1
  int metrics_port = -1;
};

// The job that `order`, which is not `over`, stands for. The store is at `store_host`. Paths are those of
// `own`; where only node 0 was told one, `folder` stands for it, because only rank 0 uses its files.
// InvalidArgument names what an order may not change.
absl::StatusOr<TrainingJob> JobOf(const NodeOrder& order, const NodeOwn& own, const std::string& store_host,
                                  const std::string& folder);

// The files that a node says it sends, one per line. InvalidArgument: one is not in `expected` or occurs
// twice.
absl::StatusOr<std::vector<std::string>> NamedRecords(const std::string& text,
                                                      const std::vector<std::string>& expected);

}  // namespace psring
