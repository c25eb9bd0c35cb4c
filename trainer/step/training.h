// One rank's training: the state shared by train_loop.cc and training_*.cc, and used only there.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "trainer/data/sampler.h"
#include "trainer/models/data_parallel.h"
#include "trainer/models/model.h"
#include "trainer/step/checkpointer.h"
#include "trainer/step/compute_delay.h"
#include "trainer/step/evaluation.h"
#include "trainer/step/executor.h"
#include "trainer/step/model_memory.h"
#include "trainer/step/plan/training_clock.h"
#include "trainer/step/plan/training_plan.h"
#include "trainer/step/recorder.h"
#include "trainer/step/replica_part.h"
#include "trainer/step/table_rows.h"
#include "trainer/step/train_loop.h"
#include "trainer/strategies/strategies.h"

namespace psring {

class Training {
 public:
  static absl::StatusOr<std::unique_ptr<Training>> Create(const TrainingOptions& options, Worker& worker);
  // Waits for the device: after an error, its work may still use the memory that is freed here.
  ~Training();

  absl::StatusOr<RankResult> Run(std::vector<float>* final_weights);

 private:
  Training(const TrainingOptions& options, Worker& worker)
      : options_(options), worker_(worker), part_(options, worker) {}

  // training_setup.cc
  absl::StatusOr<ModelRow> Plan();
  void PlanShards();
  absl::Status CheckMemoryOf(const ModelRow& row, int max_batch);
  absl::Status MakeReplicas(const ModelRow& row, Precision precision, int max_batch);
  absl::Status Allocate(int max_batch);
  void PlanBucketsByReadiness();
  UpdateRule RuleOfUpdates();
  absl::Status MakeStrategy();
  TrainingPosition PositionOfRun() const;
  void MakeCheckpointer();
  absl::Status MakeExecutor(int max_batch);
  const std::vector<Bucket>& pushed_buckets() const { return counting_.empty() ? buckets_ : counting_; }
  static std::vector<int64_t> BytesOf(const std::vector<Bucket>& buckets);

  // training_shards.cc: of weights, gradient or both this rank has its shards only.
  bool shards_weights() const { return shards_.shards_weights(); }
  // Those that have one copy of sharded state together, and this one among them.
  const ProcessGroup* shard_group() const {
    return worker_.shard_groups != nullptr ? worker_.shard_groups->shards.get() : worker_.group;
  }
  int shard_ranks() const {
    return strategy_row_.shards_updates && worker_.world_size > 1 ? shard_group()->size() : 1;
  }
  // Takes part in evaluations; with sharded weights all ranks do.
  bool evaluates() const { return options_.evaluate && (part_.is_of_first_replica() || shards_weights()); }
  HostView OwnWeights() const;
  std::vector<float> InitialWeights() const;
  // Of the whole model.
  const ParameterLayout& whole() const {
    return part_.model_part() != nullptr ? part_.model_part()->whole : model_->parameters();
  }
  absl::StatusOr<ConstSpan> WholeWeights();
  absl::StatusOr<std::string> HashOfWeights();
  absl::StatusOr<std::vector<float>> FinalWeights();
  absl::StatusOr<BatchScore> Score(Span weights, const std::function<void(int64_t)>& on_batches);

  // train_loop.cc
  absl::StatusOr<int64_t> Start();
  absl::Status Steps(int64_t first);
  absl::Status End(std::vector<float>* final_weights);
  void Abort(const absl::Status& why);
  absl::StatusOr<bool> AwaitBarrier();
  absl::StatusOr<StepRecord> Step(int64_t step);
  absl::Status FinishStages(StepReport& report);
  SampledStep ForBackward(SampledStep drawn) const;
  absl::Status PrefetchNext();
  absl::Status Advance(int64_t step, const StepReport& report);
  absl::Status Finish(int64_t step, int64_t done_before, StepRecord record);
  void RemoveRecordsFrom(int64_t step);
  // The same on all ranks of a replica.
  int64_t StepsDone() const {
    const bool is_divided = part_.model_part() != nullptr;
    return is_divided && !strategy_row_.shares_steps ? clock_->next() : clock_->steps_done();
  }

  // training_result.cc
  Recorder::Step Measured(const StepInfo& info, StepReport report, int64_t begin_ns, int64_t end_ns);
  absl::StatusOr<ConstSpan> WeightsOnHost();
  absl::Status KeepSnapshot();
  absl::StatusOr<BatchScore> ScoreCopy(const WeightsCopy& copy, const std::function<void(int64_t)>& on_batch);
  absl::Status Describe();
  MemoryFigures Memory() const;

  const TrainingOptions& options_;
  Worker& worker_;
  ReplicaPart part_;

  // Decided from flags and strategy before training.
  StrategyRow strategy_row_;
  StepPlan plan_;
  UpdatePlan updates_;

  std::unique_ptr<Ops> ops_;
  std::unique_ptr<Stream> compute_;
  std::unique_ptr<Model> model_;
  int evaluation_batch_ = 0;
  DataParallel* replicas_ = nullptr;  // model_ of the strategy data-parallel
  std::unique_ptr<WeightMemory> memory_;
  std::unique_ptr<ModelBuffers> buffers_;
  std::vector<Bucket> buckets_;
  ShardPlan shards_;
  std::vector<ShardedBucket> sharded_;  // with a ShardPlan: buckets_
  std::vector<Bucket> counting_;        // instead, for a model that has only tables: see CountingBucket
  Strategy strategy_;
  std::unique_ptr<TableRows> rows_;
  std::optional<ComputeDelay> delay_;
  std::unique_ptr<Executor> executor_;
  std::vector<float> whole_weights_;  // of the last WholeWeights
  std::vector<NodeTime> waits_;       // in this step, for other stages, after the last computation
  std::optional<DistributedSampler> sampler_;
  std::optional<TrainingClock> clock_;
  int updates_of_step_ = 1;    // more without a flush (--program pipedream)
  bool is_measuring_ = false;  // passed the barrier before the first measured step

  Resumption resume_;
  std::optional<Checkpointer> checkpointer_;
  BatchScore score_;  // of the last step
  RankResult result_;
  std::optional<Recorder> recorder_;
};

}  // namespace psring
