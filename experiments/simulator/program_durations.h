// The times of a training-step program's actions on a described network. Pure.
//
// Computing takes the given times; a backward pass that a program divides takes half for the gradient of the
// input and half for that of the weights. A message is a flow between the cards of two nodes, or between two
// GPUs of one, and arrives one latency after its last byte. An exchange with the replicas, such as a
// reduction, is a flow over its rank's links with the bytes and the time of its collective (collective.h),
// which other flows on these links lengthen. An update takes time per byte. Loading, a norm and the sum of a
// tied tensor take none.
//
// Replicas are equal and start together, so one is simulated, and its flows load what they share as all do.
// Rank r of replica d is device r * replicas + d: the devices of a stage are adjacent.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "experiments/simulator/cluster_links.h"
#include "experiments/simulator/collective.h"
#include "experiments/simulator/event_loop.h"
#include "trainer/programs/walk_program.h"
#include "trainer/strategies/table/strategy_table.h"

namespace psring {

// A unit of a stage, with which a bucket ends.
struct UnitCost {
  double forward_s = 0, backward_s = 0;
  double gradient_bytes = 0;  // of the bucket, float32
  // All-reduces over the replicas: of the gradient, and of as many bytes as the weights have.
  CollectiveTime reduction = {}, of_weights = {};
};

// Halves of an all-reduce over the replicas (a reduce-scatter and an all-gather) that an action is: 0, 1
// or 2.
int HalvesOf(const StrategyRow& strategy, StepKind kind);

struct ProgramCosts {
  std::vector<std::vector<UnitCost>> units = {};  // by stage
  double boundary_bytes = 0;  // of a micro-batch's activations between two stages, and of their gradient
  int replicas = 1;
  StrategyRow strategy = {};  // of the replicas: ring, or one with shards
};

class ProgramDurations : public Durations {
 public:
  // `program` is lowered and, as `cluster`, exists as long as this object. The devices of a stage fill nodes,
  // or a node holds those of whole stages.
  ProgramDurations(const StepProgram& program, ProgramCosts costs, const Cluster& cluster);

  void Start(int rank, int node, const StepAction& action, int64_t now_ns) override;
  std::optional<std::pair<int, int>> NextEnd(int64_t& now_ns) override;

 private:
  struct NodeEnd {
    double time;
    int rank, node;
    bool operator>(const NodeEnd& other) const {
      return std::tie(time, rank, node) > std::tie(other.time, other.rank, other.node);
    }
  };

  const UnitCost& CostOf(const StepAction& action) const { return costs_.units[action.stage][action.unit]; }
  bool SameNode(int rank, int other) const;
  double SecondsOf(const StepAction& action) const;  // of an action that is no flow
  int ReceiverOf(int rank, int node) const;          // of a message
  size_t MessageKind(int from, int to);
  // Starts the flow of so many halves of a collective; false: it moves no bytes.
  bool StartExchange(int rank, CollectiveTime time, int halves, int64_t token);

  const StepProgram& program_;
  const ProgramCosts costs_;
  const Cluster& cluster_;
  const Shape shape_;        // of all replicas' devices
  const Shape stage_shape_;  // of one stage's
  const double together_;    // replicas that share a node
  EventLoop<NodeEnd> loop_;
  ClusterLinks links_;
  std::vector<LinkPorts> cards_, intra_;            // by rank
  std::map<std::pair<int, int>, size_t> messages_;  // kinds of flow, by ranks
  std::deque<std::pair<int, int>> ended_;
};

}  // namespace psring
