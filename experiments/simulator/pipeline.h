// Simulated steps of a pipeline, or of several replicas of one. Pure.
//
// *block*: consecutive tensors of a workload with the same BlockName. A model is cut between blocks. A
// block's backward pass ends when its last tensor is ready, and its forward pass takes the same share of the
// whole. A stage's gradients are reduced in buckets, which end with a block; if they are shards, each block
// is one.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/workloads/workload.h"
#include "experiments/simulator/prediction.h"
#include "trainer/programs/program_rows.h"
#include "trainer/programs/walk_program.h"

namespace psring {

struct LayerBlock {
  std::string name;
  double forward_ms = 0, backward_ms = 0;
  double gradient_bytes = 0;
  double ms() const { return forward_ms + backward_ms; }
};
// In the order of the forward pass; at least one.
std::vector<LayerBlock> BlocksOf(const Workload& workload);

// The first block of each stage but the first, balanced by time. `stages`: 1 to the number of blocks.
std::vector<int> BalancedCuts(const std::vector<LayerBlock>& blocks, int stages);

struct PipelineCase {
  NamedProgram program = {};
  int ranks = 2;               // of one replica
  int micro_batches = 1;       // of one replica and step
  std::vector<int> cuts = {};  // as BalancedCuts; empty: balanced
  double boundary_bytes = 0;   // of a micro-batch's activations between two stages, and of their gradient
  StrategyRow strategy = {};   // the all-reduce over the replicas, or its halves if it shards
  int workers = 2;             // devices of all replicas
  int copy_streams = 2;        // 1: a device's messages follow one another

  int stages() const { return ranks * program.chunks; }
  int replicas() const { return workers / ranks; }
  std::string layout() const;  // "pp4", "dp2xpp4"
};

struct PipelinePrediction {
  // Without `limit` and figures of servers. `exposed`: the part of the step in which a device computes
  // nothing while bytes that it waits for are on their way.
  Prediction prediction = {};
  double bubble = 0;   // the part of the step in which a device waits otherwise
  int in_flight = 0;   // micro-batches whose activations a device keeps, at most
  double slowest = 1;  // the computing time of the slowest stage, relative to the mean
  std::vector<int> cuts;
  // Without a flush: versions of its weights that a device keeps, and the bytes of those beside the newest,
  // at most.
  int versions = 1;
  double older_versions_bytes = 0;
};

// How a device spends a step, in ns. exposed: it waits for messages, gathered weights or, at the end,
// reductions; idle: it waits otherwise. moving: bytes of its own are on their way, to replicas as `strategy`
// says (HalvesOf), with the update that an all-gather belongs to.
struct DeviceTime {
  double computing = 0, exposed = 0, idle = 0, moving = 0;
};
DeviceTime DeviceTimeOf(const Walk& walk, int rank, const StrategyRow& strategy);

// InvalidArgument, with what would work: the stages do not divide the workers, the replicas do not fill
// nodes, the model has fewer blocks than stages, `cuts` are not ascending blocks, or the program is for one
// rank.
absl::Status CheckPipeline(const Workload& workload, const PipelineCase& point, const Cluster& cluster);

// `workload`: of one micro-batch. Uses the buckets, the bytes on the wire and the variation of `options`.
// Errors: those of CheckPipeline, or more actions than fit in memory.
absl::StatusOr<PipelinePrediction> PredictPipeline(const Workload& workload, const PredictOptions& options,
                                                   const PipelineCase& point, const Cluster& cluster);

// A step of one replica; and how long a device waits in it other than for the bytes of a message, mean over
// devices.
struct WalkSeconds {
  double step = 0, bubble = 0;
};
// What a device does, in seconds.
struct DeviceSeconds {
  // Forward and backward in the step, divided equally among its stages and micro-batches.
  double forward = 0, backward = 0;
  // Until it has received a micro-batch's activations, and their gradient.
  double activation = 0, gradient = 0;
};
// By a walk of the program; `devices` by position. `copy_streams`: see PipelineCase.
absl::StatusOr<WalkSeconds> SecondsOfWalk(const NamedProgram& program, int micro_batches,
                                          const std::vector<DeviceSeconds>& devices, int copy_streams = 2,
                                          bool ties_ends = false);

// What a data-parallel worker on each of the same devices computes of the same global batch; if the samples
// do not divide evenly, the most.
Workload DataParallelShare(const Workload& workload, const PipelineCase& point);

// A step of `compute`, whose actions are of whole stages, with a time for each computation and send; what
// else a step does takes none. `copy_streams`: see PipelineCase. `ties_ends`: the first and the last stage
// share a tensor.
absl::StatusOr<Walk> WalkStages(const StepProgram& compute,
                                std::function<int64_t(int rank, const StepAction& action)> ns,
                                int copy_streams = 2, bool ties_ends = false);
// When a device waits other than for the bytes of a message; a wait for both begins with this.
std::vector<NodeTime> BubblesOf(const Walk& walk, int rank);

}  // namespace psring
