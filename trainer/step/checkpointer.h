// Resuming from a checkpoint, and writing checkpoints together with the other ranks.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/parameters.h"
#include "common/device/device.h"
#include "common/options/training_options.h"
#include "trainer/checkpoints/checkpoint.h"
#include "trainer/checkpoints/worker_parts.h"
#include "trainer/pipeline/model_part.h"
#include "trainer/pipeline/replica_exchange.h"
#include "trainer/step/model_memory.h"
#include "trainer/step/plan/training_clock.h"
#include "trainer/step/plan/training_plan.h"
#include "trainer/step/table_rows.h"
#include "trainer/step/train_loop.h"
#include "trainer/strategies/capabilities.h"

namespace psring {

// How a rank continues; without a checkpoint from the beginning.
struct Resumption {
  ResumePlan plan;
  int64_t sequence = 0;      // of the newest checkpoint
  int64_t sample_shift = 0;  // in step s this worker draws the samples of step s + sample_shift
};
// `now`: of this run at its beginning. Errors are those of DecodePosition.
absl::StatusOr<Resumption> PlanResumption(const CheckpointBytes& from, const TrainingPosition& now,
                                          int64_t steps_per_epoch, int rank);

// Used by the training thread, between steps with no work in progress. Errors are those of the strategy, of
// WorkerParts and of Worker::save.
class Checkpointer {
 public:
  // Borrowed.
  struct Parts {
    const TrainingOptions& options;
    Worker& worker;
    bool is_first_rank;  // of the job
    CheckpointPlan plan;
    TrainingPosition run;  // without the progress
    int64_t steps_per_epoch, total_steps;
    Resumption resumption;
    const TrainingClock& clock;
    const Strategy& strategy;
    TableRows& rows;
    ModelBuffers& buffers;
    const ParameterLayout& layout;  // of this rank's model
    Span weights;
    // Null: this rank has the whole model. Else its part, and what connects it with the ranks of its replica
    // and, on the rank that begins the replica, with those of the others.
    const ModelPart* part;
    ReplicaExchange* replica;
    ReplicaExchange* same_stages;
  };
  explicit Checkpointer(Parts parts)
      : parts_(std::move(parts)), worker_(parts_.worker), sequence_(parts_.resumption.sequence) {}

  // The checkpoint to resume from. `weights` are replaced by its weights, and `state` has none, unless
  // another rank has them.
  struct Loaded {
    TrainingCheckpoint state;
    std::vector<float> residual;
    int row_arrays = 0;  // see RowStart::arrays
  };
  absl::StatusOr<Loaded> Load(std::vector<float>& weights);

  // After a step, on every rank: every --checkpoint_every steps, and when this rank is stopped, which returns
  // Cancelled. `before`: the clock's checkpoint_step before the step.
  absl::Status SaveIfDue(int64_t before);
  // After the last step of all workers.
  absl::Status SaveLast();
  // After an error of a step.
  void PublishLastPart();

 private:
  // When a checkpoint is made: its name, which all ranks use; its step; this worker's next step; whether
  // training stops, so that this step will not be made.
  struct Moment {
    std::string name;
    int64_t step = 0;
    int64_t next = 0;
    bool stops = false;
  };

  TrainingPosition PositionAt(int64_t next, int64_t updates) const;
  WorkerPart OwnPart(int64_t next) const;
  absl::Status SettleRows();
  absl::Status PublishPart(const Moment& moment);
  bool AbortEndsTheProcess() const;
  std::vector<std::optional<WorkerPart>> TakeParts(const Moment& moment);
  absl::StatusOr<TrainingCheckpoint> ReadState(bool& is_of_step);
  absl::Status SaveCheckpoint(const Moment& moment);
  absl::Status SaveOrSend(const Moment& moment);
  absl::Status StopTogether(const Moment& end, bool saves);
  // With a part of the model.
  void TakeOwnPart(TrainingCheckpoint& checkpoint) const;
  absl::Status SaveStages(const Moment& moment);
  absl::StatusOr<bool> FirstRankStops(bool stops);

  const Parts parts_;
  Worker& worker_;
  int64_t sequence_;  // of the newest checkpoint
  int64_t saved_step_ = -1;
};

}  // namespace psring
