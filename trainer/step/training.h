// One rank's training: the state shared by train_loop.cc and training_*.cc, and used only there.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "trainer/data/sampler.h"
#include "trainer/layers/sequence_axis.h"
#include "trainer/layers/tensor_axis.h"
#include "trainer/models/data_parallel.h"
#include "trainer/models/model.h"
#include "trainer/pipeline/model_part.h"
#include "trainer/pipeline/replica_exchange.h"
#include "trainer/pipeline/stage_messages.h"
#include "trainer/step/checkpointer.h"
#include "trainer/step/compute_delay.h"
#include "trainer/step/evaluation.h"
#include "trainer/step/executor.h"
#include "trainer/step/model_memory.h"
#include "trainer/step/plan/training_clock.h"
#include "trainer/step/plan/training_plan.h"
#include "trainer/step/recorder.h"
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
  Training(const TrainingOptions& options, Worker& worker) : options_(options), worker_(worker) {}

  // training_setup.cc
  absl::StatusOr<ModelRow> Plan();
  absl::StatusOr<std::unique_ptr<Model>> MakeModel(const ModelRow& row, const TensorPlace& at = {});
  void PlanShards();
  absl::Status CheckMemoryOf(const ModelRow& row, int max_batch);
  absl::Status MakeReplicas(const ModelRow& row, Precision precision, int max_batch);
  absl::Status Allocate(int max_batch);
  void PlanBucketsByReadiness();
  absl::Status MakeStrategy();
  TrainingPosition PositionOfRun() const;
  void MakeCheckpointer();
  const std::vector<Bucket>& pushed_buckets() const { return counting_.empty() ? buckets_ : counting_; }
  static std::vector<int64_t> BytesOf(const std::vector<Bucket>& buckets);

  // training_pipeline.cc: with --pp or --tp this rank has a part of the model.
  absl::Status TakeModelPart(const ModelRow& row);
  absl::StatusOr<std::vector<size_t>> Cuts(const ModelRow& row, const PipelinePlace& place);
  absl::Status MakeExecutor(int max_batch);
  UpdateRule RuleOfUpdates();
  absl::Status FinishStages(StepReport& report);
  absl::StatusOr<BatchScore> ScoreOfReplica();
  absl::StatusOr<ConstSpan> WholeWeights();
  const ParameterLayout& whole() const { return part_.has_value() ? part_->whole : model_->parameters(); }
  // Of the job: it reports what concerns all ranks, and writes checkpoints.
  bool is_first_rank() const { return worker_.rank == 0 && begins_replica(); }
  bool has_stages() const { return !program_.row.one_rank; }  // of a pipeline
  // Tied tensors whose gradients both of their stages must add up in the same order of replicas, or the two
  // copies would drift apart: in buckets of their own, and by servers in the order of workers. The sum of two
  // has one order.
  std::vector<ReadyRange> OrderedTensors() const {
    return has_stages() && worker_.world_size > 2 ? part_->tied : std::vector<ReadyRange>();
  }
  // The same of what the ranks that divide matrices have copies of, each with servers of its own: norms.
  bool HasCopiesOfTensors() const { return axis_.has_value() && worker_.world_size > 2; }
  bool has_first_part() const {
    return worker_.pipeline == nullptr || worker_.pipeline->replica->rank() == 0;
  }
  // Counts its replica's samples.
  bool begins_replica() const { return has_first_part() && segment_.rank == 0; }
  // The same on all ranks of a replica.
  int64_t StepsDone() const {
    return part_.has_value() && !strategy_row_.shares_steps ? clock_->next() : clock_->steps_done();
  }

  // With --cp this rank has some positions of each sample.
  absl::Status TakeSegment(const ModelRow& row);
  absl::StatusOr<BatchScore> OfAllSegments(const BatchScore& own);
  // Samples as it has them; worker_.data has whole ones.
  const Dataset& train() const { return (segment_data_.has_value() ? *segment_data_ : worker_.data).train; }
  const Dataset& test() const { return (segment_data_.has_value() ? *segment_data_ : worker_.data).test; }
  bool is_of_first_replica() const { return worker_.rank < worker_.segments(); }

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
  bool evaluates() const { return options_.evaluate && (is_of_first_replica() || shards_weights()); }
  HostView OwnWeights() const;
  std::vector<float> InitialWeights() const;
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
  Traffic OtherTraffic() const;
  Traffic TensorTraffic() const;  // part of it, as the next
  Traffic SequenceTraffic() const;
  SampledStep ForBackward(SampledStep drawn) const;
  absl::Status PrefetchNext();
  absl::Status Advance(int64_t step, const StepReport& report);
  absl::Status Finish(int64_t step, int64_t done_before, StepRecord record);
  void RemoveRecordsFrom(int64_t step);

  // training_result.cc
  Recorder::Step Measured(const StepInfo& info, StepReport report, int64_t begin_ns, int64_t end_ns);
  absl::StatusOr<ConstSpan> WeightsOnHost();
  absl::Status KeepSnapshot();
  absl::StatusOr<BatchScore> ScoreCopy(const WeightsCopy& copy, const std::function<void(int64_t)>& on_batch);
  absl::Status Describe();
  MemoryFigures Memory() const;

  const TrainingOptions& options_;
  Worker& worker_;

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
  NamedProgram program_ = {};
  std::unique_ptr<Executor> executor_;
  std::unique_ptr<StageMessages> messages_;  // with --pp; else null
  std::optional<TensorAxis> axis_;           // with --tp; else null
  // With --cp; else null.
  std::optional<SequenceAxis> sequence_axis_;
  SequencePlace segment_;
  std::optional<DataSplits> segment_data_;
  std::unique_ptr<ReplicaExchange> segments_;     // over the ranks of a sequence
  std::optional<ModelPart> part_;                 // its model is model_
  std::unique_ptr<ReplicaExchange> replica_;      // over the ranks of this replica
  std::unique_ptr<ReplicaExchange> same_stages_;  // over the replicas, on those ranks that begin one
  std::vector<float> whole_weights_;              // of the last WholeWeights
  std::vector<NodeTime> waits_;  // in this step, for other stages, after the last computation
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
