// The memory and the step of one way to divide a transformer's training among devices. Pure.
//
// A layout has D replicas (dp), each cut into P stages (pp) of t tensor-parallel ranks (tp), and each of
// these into C that divide its sequences (cp): D P t C devices. Tensor-parallel ranks are neighbours, then
// come those of a sequence, then the replicas of a stage, then the stages (--rank_order tp,cp,dp,pp).
// Computing time is proportional to samples, to the share of a matrix and to that of a sequence. All D C
// ranks with the same part of the model add up its gradients. With dp_shard S each S neighbouring ones of
// these have one copy of the state, and once per step each shard's gradients are added up over the copies.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/options/context_parallel.h"
#include "experiments/layouts/axis_links.h"
#include "experiments/layouts/layout_model.h"
#include "trainer/programs/mesh.h"
#include "trainer/programs/program_rows.h"

namespace psring {

// Which candidates are considered; what is empty, or 0, is not restricted.
struct LayoutChoice {
  std::vector<Layout> layouts = {};
  std::vector<std::string> strategies = {};  // of ShardingStrategies
  std::string context_parallel = {};         // empty: ring, and ulysses where it divides the heads
  int micro_batches = 0;
};

struct LayoutQuestion {
  LayoutModel model;
  Cluster cluster;
  int workers = 1;
  int64_t global_batch = 1;  // samples of a step; a multiple of `workers`
  LayoutChoice choice = {};
};

// The same on `cluster`, whose constants may differ, with computing that takes `slowest` times as long: a
// step waits for the slowest node (ExpectedMaximum).
LayoutQuestion Assuming(LayoutQuestion question, const Cluster& cluster, double slowest);

struct LayoutCandidate {
  int dp = 1, pp = 1, tp = 1, cp = 1;
  const StrategyRow* strategy = &ShardingStrategies().front();  // of the replicas; not null
  NamedProgram program = {};
  int samples = 1;        // of a micro-batch
  int micro_batches = 1;  // of a replica and step
  int dp_shard = 0;       // replicas that have one copy of sharded state together; 0: all
  std::string context_parallel = kDefaultContextParallel.name;  // as in TrainingOptions; of cp above 1

  int replicas() const { return dp * cp; }  // that add up the same gradients
  ShardSplit split() const { return strategy->SplitOf(replicas(), dp_shard); }
  int stages() const { return pp * program.chunks; }
  const ContextParallelRow& kind() const { return ContextParallelOf(context_parallel); }
  bool gathers() const { return replicas() > 1 && strategy->shards_weights; }
  // "dp64xpp2xtp8 zero1", "dp64 fsdp of 8" (dp_shard), "dp2xcp4 ulysses" (another one than ring).
  std::string layout() const;
};

// Bytes of the rank with the most. Weights and gradients include the buffers of units (sharded_costs.h) and
// activations those of messages. Without what libraries allocate.
struct LayoutMemory {
  StateBytes state = {};
  double activations = 0;
  double total() const { return state.total() + activations; }
};

// Everything that the prices of the candidates with one cut have in common, by stage and rank.
struct LayoutStages {
  std::vector<int> first_layer;  // of each stage, and the number of layers
  std::vector<int> live;         // micro-batches that a stage keeps when its rank keeps most
};
// InvalidArgument: fewer layers than stages, or a program that does not fit in memory.
absl::StatusOr<LayoutStages> StagesOf(const LayoutModel& model, const LayoutCandidate& candidate);

LayoutMemory MemoryOf(const LayoutModel& model, const LayoutCandidate& candidate, const LayoutStages& stages);

// A step takes at least as long: the computation of the last rank and what must precede and follow it, or
// the exchanges of the busiest rank.
double LeastSeconds(const LayoutQuestion& question, const LayoutCandidate& candidate,
                    const LayoutStages& stages);

struct LayoutPrice {
  double step_s = 0;
  double bubble = 0;    // the part of the step in which a device waits for another stage
  double exposed = 0;   // the part in which it waits for bytes, those of tp and of attention with cp included
  LinkBytes sent = {};  // of the device and the card that send most
};
// By a walk of the lowered program: messages, gathering of weights and reductions run beside computation, the
// all-reduces of tensor parallelism are part of it. In backward, that of a matrix's input is hidden as long
// as the gradient of its weights is computed (LayoutModel::overlaps_sums). Of attention with cp, computing
// hides what it can of the ring's messages (RingSteps), and nothing of ulysses' all-to-alls.
absl::StatusOr<LayoutPrice> PriceOf(const LayoutQuestion& question, const LayoutCandidate& candidate,
                                    const LayoutStages& stages);

}  // namespace psring
