// The records of one rank's training: figures and spans of each step, and copies of the weights with their
// scores.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/measure/records.h"
#include "common/measure/trace.h"
#include "trainer/pipeline/rank_times.h"
#include "trainer/step/evaluation.h"
#include "trainer/step/plan/loss_history.h"
#include "trainer/step/plan/training_plan.h"
#include "trainer/step/train_loop.h"
#include "trainer/strategies/sync_strategy.h"

namespace psring {

// Used by the training thread, outside the measured time.
class Recorder {
 public:
  // What was measured in a step. Times in ns, by the trace's clock.
  struct Step {
    StepInfo info;
    StepReport report;
    int64_t begin_ns = 0, end_ns = 0;
    // What this rank computed, and when it waited for others, except what is in `report`.
    RankTimes times = {};
    bool names_passes = false;  // after their actions, as in a pipeline
    // Communication other than that of `report` and messages.
    std::vector<std::pair<int64_t, int64_t>> busy = {};
    int64_t delay_ns = 0;
    double loss_sum = 0;                               // over the step's samples
    std::optional<DataParallelFigures> replicas = {};  // of data-parallel
  };
  // Scores a copy; `on_batch`: see Evaluate.
  using Score = std::function<absl::StatusOr<BatchScore>(
      const WeightsCopy& copy, const std::function<void(int64_t predictions)>& on_batch)>;

  // All are borrowed. `counts_samples`: this rank's samples count; else those of another rank of its replica.
  // Figures of the whole training are added to `result`.
  Recorder(Worker& worker, const StepPlan& plan, bool counts_samples, RankResult& result)
      : worker_(worker), plan_(plan), counts_samples_(counts_samples), result_(result) {}

  // The record of a step, whose spans go to the trace.
  StepRecord RecordOf(Step step);
  // The figures of a record, in the order of steps.
  void Count(const StepRecord& record);
  // Steps from `step` on, before which there were `samples` samples, are repeated and count once.
  void RemoveFrom(int64_t step, int64_t samples);

  // `point`: its samples and updates.
  void Keep(CurvePoint point, ConstSpan weights, std::vector<float> buffers);
  // After training: the curve, of all copies. Reports progress on rank 0.
  absl::Status ScoreCurve(const Score& score);
  // After the last step: means over the measured steps.
  void End();

 private:
  void AddReplicas(const DataParallelFigures& figures, StepRecord& record);
  void AddSpans(const Step& step, bool in_full);
  void AddSpan(SpanKind kind, int64_t step, const NodeTime& time, const std::string& action = "");

  Worker& worker_;
  const StepPlan& plan_;
  const bool counts_samples_;
  RankResult& result_;
  int64_t ddp_steps_ = 0;  // whose times are added up in result_.ddp
  double trained_s_ = 0;
  LossHistory losses_;
  std::vector<WeightsCopy> snapshots_;
};

}  // namespace psring
