// Trains one rank with any strategy.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/device/device.h"
#include "common/measure/records.h"
#include "common/measure/trace.h"
#include "common/ops/ops.h"
#include "common/options/training_options.h"
#include "common/rendezvous/rendezvous.h"
#include "ps_server/client/ps_client.h"
#include "ring_worker/groups/process_group.h"
#include "trainer/checkpoints/checkpoint.h"
#include "trainer/checkpoints/worker_parts.h"
#include "trainer/data/dataset.h"
#include "trainer/layers/sequence_axis.h"
#include "trainer/memory/memory_need.h"
#include "trainer/models/model.h"
#include "trainer/pipeline/pipeline.h"
#include "trainer/pipeline/shard_groups.h"
#include "trainer/strategies/table/strategy_table.h"

namespace psring {

// The inputs and callbacks of one rank; assembled by main, or by a test whose ranks are threads. With a
// pipeline `rank` and `world_size` are the replica's, `group` has the ranks with the same part, and
// `barrier` waits for all. With a sequence, consecutive ranks compute the samples of one replica.
struct Worker {
  int rank = 0;
  int world_size = 1;
  Device& device;
  const DataSplits& data;
  Trace& trace;
  const StrategyTable* strategies = &StrategyRows();
  const ModelTable* models = &Models();
  ProcessGroup* group = nullptr;
  // With --dp_shard: parts of `group` (shard_groups.h). Null: all of its ranks have one copy of sharded
  // state.
  ShardGroups* shard_groups = nullptr;
  // With --sync_batch_norm: a second group of the same ranks, which layers use while `group` sums gradients.
  ProcessGroup* statistics = nullptr;
  // With --pp or --tp: this rank has a part of the model. Null: all of it.
  Pipeline* pipeline = nullptr;
  // With --cp: this rank has some positions of each sample. Null: whole samples.
  const Sequence* sequence = nullptr;
  // Owns the buffers that are registered with the group, and those that a server has open on this GPU; must
  // outlive group and client. Null: none are registered.
  std::vector<Buffer>* registered = nullptr;
  PsClient* client = nullptr;
  // Collective, before any rank allocates: what the ranks that share this rank's memory need together, and
  // their number. `bytes`: this rank's.
  ShareMemory share_memory = [](size_t bytes) { return MemoryUse{1, bytes}; };
  // Waits for all ranks.
  std::function<absl::Status()> barrier = [] { return absl::OkStatus(); };
  // The same for --align_steps; on one host, all ranks return at the same time.
  std::function<absl::Status()> begin_together = [] { return absl::OkStatus(); };
  // Called after every step, on the training thread, outside the measured time.
  std::function<void(const StepRecord&)> on_step = [](const StepRecord&) {};
  std::function<void(int64_t steps_done, int64_t steps_planned, double loss)> on_progress =
      [](int64_t, int64_t, double) {};
  // The checkpoint to resume from; null: none. Every rank has the position. Rank 0 also has the tensors;
  // without communication all ranks have them.
  const CheckpointBytes* resume = nullptr;
  // Brings the workers' own parts of a checkpoint to rank 0. Null: there are none, or a single rank.
  WorkerParts* parts = nullptr;
  // Writes a checkpoint, on rank 0 with --checkpoint_dir: every --checkpoint_every steps, when stops() is
  // true, and at the end. The other ranks wait at a barrier.
  std::function<absl::Status(int64_t step, const CheckpointContent& content)> save =
      [](int64_t, const CheckpointContent&) { return absl::OkStatus(); };
  // Called after each step: whether a signal has stopped this rank.
  std::function<bool()> stops = [] { return false; };
  // Called after each step: an error ends training.
  std::function<absl::Status()> objection = [] { return absl::OkStatus(); };
  // Before training, on rank 0: settings that are valid but probably harmful.
  std::function<void(const std::string& warning)> on_warning = [](const std::string&) {};
  // State that could not be saved to or restored from a checkpoint exactly; also other notes for the user.
  std::function<void(const std::string& note)> on_note = [](const std::string&) {};
  // After training, on the rank that evaluates: at the beginning and after each batch, and for each point of
  // the curve.
  std::function<void(int64_t predictions_done, int64_t predictions_planned)> on_evaluating = [](int64_t,
                                                                                                int64_t) {};
  std::function<void(const CurvePoint&)> on_evaluation = [](const CurvePoint&) {};

  // The ranks that divide a sample, and those that draw samples of their own.
  int segments() const { return sequence != nullptr ? sequence->group->size() : 1; }
  int replicas() const { return world_size / segments(); }
  // In the records.
  int job_rank() const { return pipeline != nullptr || sequence != nullptr ? trace.rank() : rank; }
};

// Trains and, on rank 0, evaluates. Evaluation follows training and uses copies of the weights taken during
// it, so it affects neither speed nor staleness. `final_weights`: null, or receives the final weights and the
// tables of this rank. Invalid flags are InvalidArgument or NotFound, before any work. An error of a step
// names the step; the group or the server reports it to the peers.
absl::StatusOr<RankResult> RunWorker(const TrainingOptions& options, Worker& worker,
                                     std::vector<float>* final_weights = nullptr);

}  // namespace psring
