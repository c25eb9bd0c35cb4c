// The one analysis of lowered programs: it proves that a program computes a step, builds the graph that the
// executor follows, and times it. Pure.
//
// Lanes: a rank has one for computation, one for each end of a channel (or one for all of them:
// one_copy_stream), one for loading, one for gathering weights, one for reducing and updating. A lane runs
// its nodes in order; lanes run at the same time. A channel carries the messages of one kind between two
// stages, in order and without buffering: a send and its receive are one transfer, which begins when both
// have been reached. A norm begins when all ranks, and a tied reduction when both stages, have reached it.
//
// A load, receive or gathering of weights begins when the computation before the one that needs it has begun:
// one action ahead, for which there is memory.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "trainer/programs/step_program.h"

namespace psring {

enum class StepLane : uint8_t { kCompute, kLoad, kMessages, kGather, kReduce, kTied, kNorm };
StepLane LaneOf(StepKind kind);
bool Computes(StepKind kind);  // a pass of a unit

struct StepNode {
  StepAction action;
  int lane = 0;            // number on this rank; 0: computation
  std::vector<int> after;  // earlier nodes of this rank, on other lanes
};

// When actions end.
class Durations {
 public:
  virtual ~Durations() = default;
  // Node `node` of `rank` begins. Of a transfer it is the send, of a norm or a tied reduction the first
  // rank's.
  virtual void Start(int rank, int node, const StepAction& action, int64_t now_ns) = 0;
  // Advances `now_ns` to the next end of a node that has begun; returns its rank and node, or nothing.
  virtual std::optional<std::pair<int, int>> NextEnd(int64_t& now_ns) = 0;
};

// Every action takes a given time, whatever else runs. `ns`: of an action of a rank, at least 0.
class GivenDurations : public Durations {
 public:
  explicit GivenDurations(std::function<int64_t(int rank, const StepAction& action)> ns)
      : ns_(std::move(ns)) {}
  void Start(int rank, int node, const StepAction& action, int64_t now_ns) override;
  std::optional<std::pair<int, int>> NextEnd(int64_t& now_ns) override;

 private:
  struct Running {
    int64_t end_ns;
    int rank, node;
    auto operator<=>(const Running&) const = default;
  };
  std::function<int64_t(int, const StepAction&)> ns_;
  std::vector<Running> running_;  // a heap
};

struct NodeTime {
  int64_t begin_ns = 0, end_ns = 0;
};

// As measured.
struct TimedAction {
  StepAction action;
  NodeTime time;
};

struct Walk {
  std::vector<std::vector<StepNode>> nodes;  // by rank, in the program's order
  std::vector<std::vector<NodeTime>> times;  // likewise
  int64_t end_ns = 0;                        // of the last node
  // By stage: micro-batches in flight at a time, at most; and with the one that is being received.
  std::vector<int> peak_live, receive_slots;
  std::vector<int> unsharded_peak;  // units with gathered weights at a time, by rank
  // Without a flush, by stage and micro-batch: the version that its passes read. And by stage: how many
  // versions are kept at a time, at most; 1 with a flush.
  std::vector<std::vector<int>> versions;
  std::vector<int> kept_versions;

  // Updates between the version that a micro-batch reads and that to which its gradient is applied.
  int Staleness(const StepProgram& program, int stage, int micro_batch) const {
    return program.flushes() ? 0 : program.UpdateOf(micro_batch) - versions[stage][micro_batch];
  }

  // The part of the step in which a rank computes nothing, on average over the ranks: 1 - ideal/actual.
  double Bubble() const;
};

// `durations`: null: nothing takes any time. InvalidArgument names the action at fault: a stage, unit or
// micro-batch is missing, twice, in the wrong order or on the wrong rank; messages do not match; a gradient
// is reduced before it is complete, weights are updated before their gradient is reduced or the norm is
// known; weights are used without having been gathered; without a flush, an update has gradients of other
// micro-batches, or a pass reads a version that is not there; or actions wait for each other in a cycle.
absl::StatusOr<Walk> WalkProgram(const StepProgram& program, Durations* durations = nullptr);

}  // namespace psring
