// One rank's training: the state shared by train_loop.cc and training_*.cc, and used only there.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "trainer/checkpoints/worker_parts.h"
#include "trainer/data/sampler.h"
#include "trainer/layers/sequence_axis.h"
#include "trainer/layers/shared_statistics.h"
#include "trainer/layers/tensor_axis.h"
#include "trainer/models/batch_memory.h"
#include "trainer/models/data_parallel.h"
#include "trainer/models/model.h"
#include "trainer/pipeline/model_part.h"
#include "trainer/pipeline/pipeline_executor.h"
#include "trainer/pipeline/replica_exchange.h"
#include "trainer/step/compute_delay.h"
#include "trainer/step/evaluation.h"
#include "trainer/step/executor.h"
#include "trainer/step/loss_history.h"
#include "trainer/step/train_loop.h"
#include "trainer/step/training_clock.h"
#include "trainer/step/training_plan.h"
#include "trainer/strategies/strategies.h"

namespace psring {

class Training {
 public:
  static absl::StatusOr<std::unique_ptr<Training>> Create(const TrainingOptions& options, Worker& worker);
  // Waits for the device: after an error, its work may still use the memory that is freed here.
  ~Training();

  absl::StatusOr<RankResult> Run(std::vector<float>* final_weights);

 private:
  // When a checkpoint is made: its name, which all ranks use; its step; this worker's next step; whether
  // training stops, so that this step will not be made.
  struct Moment {
    std::string name;
    int64_t step = 0;
    int64_t next = 0;
    bool stops = false;
  };

  Training(const TrainingOptions& options, Worker& worker) : options_(options), worker_(worker) {}

  // training_setup.cc
  absl::StatusOr<ModelRow> Plan();
  absl::StatusOr<std::unique_ptr<Model>> MakeModel(const ModelRow& row, const TensorPlace& at = {});
  void PlanShards();
  absl::Status CheckMemoryOf(const Model& model, int max_batch);
  absl::Status MakeReplicas(const ModelRow& row, Precision precision, int max_batch);
  absl::Status Allocate(int max_batch);
  absl::Status AllocateGradient(size_t bytes);
  absl::Status Register(const Buffer& memory);
  bool group_shares() const { return worker_.group != nullptr && worker_.registered != nullptr; }
  // If the group sends weights: it gets the memory in which it sees them.
  bool registers_weights() const { return group_shares() && strategy_row_.shards_updates; }
  Buffer& sent_weights() {
    return host_weights_.data() != nullptr && !worker_.group->info().on_gpu ? host_weights_ : weights_;
  }
  void PlanBucketsByReadiness();
  absl::Status MakeStrategy();
  std::string OnGpu(const Buffer& memory) const;
  const std::vector<Bucket>& pushed_buckets() const { return counting_.empty() ? buckets_ : counting_; }
  static std::vector<int64_t> BytesOf(const std::vector<Bucket>& buckets);

  // training_pipeline.cc: with --pp or --tp this rank has a part of the model.
  absl::Status TakeModelPart(const ModelRow& row);
  absl::StatusOr<std::vector<size_t>> Cuts(const ModelRow& row, const PipelinePlace& place);
  absl::Status MakePipeline(int max_batch);
  UpdateRule RuleOfUpdates();
  absl::Status FinishStages();
  absl::StatusOr<BatchScore> ScoreOfLastStage();
  absl::StatusOr<BatchScore> EvaluateStages(Span weights, const std::function<void(int64_t)>& on_batches);
  absl::StatusOr<ConstSpan> WholeWeights();
  void TakeOwnPart(TrainingCheckpoint& checkpoint) const;
  absl::Status SaveStages(const Moment& moment);
  template <typename T>
  absl::Status FromFirstRank(T* values, size_t count);
  absl::StatusOr<bool> FirstRankStops(bool stops);
  const ParameterLayout& whole() const { return part_.has_value() ? part_->whole : model_->parameters(); }
  // Of the job: it reports what concerns all ranks, and writes checkpoints.
  bool is_first_rank() const { return worker_.rank == 0 && begins_replica(); }
  bool has_stages() const { return program_.has_value(); }  // of a pipeline
  // Tied tensors whose gradients both of their stages must add up in the same order of replicas, or the two
  // copies would drift apart: in buckets of their own, and by servers in the order of workers. The sum of two
  // has one order.
  std::vector<ReadyRange> OrderedTensors() const {
    return has_stages() && worker_.world_size > 2 ? part_->tied : std::vector<ReadyRange>();
  }
  bool has_first_part() const {
    return worker_.pipeline == nullptr || worker_.pipeline->replica->rank() == 0;
  }
  // Counts its replica's samples.
  bool begins_replica() const { return has_first_part() && segment_.rank == 0; }
  // The same on all ranks of a replica, whose servers may have different updates.
  int64_t StepsDone() const { return part_.has_value() ? clock_->next() : clock_->steps_done(); }

  // training_sequence.cc: with --cp this rank has some positions of each sample.
  absl::Status TakeSegment(const ModelRow& row);
  absl::Status ReserveExchange(const ModelRow& row, int max_batch);
  absl::StatusOr<BatchScore> OfAllSegments(const BatchScore& own);
  // Samples as this rank has them; worker_.data has whole ones.
  const Dataset& train() const { return (segment_data_.has_value() ? *segment_data_ : worker_.data).train; }
  const Dataset& test() const { return (segment_data_.has_value() ? *segment_data_ : worker_.data).test; }
  bool is_of_first_replica() const { return worker_.rank < worker_.segments(); }
  int job_rank() const {
    return worker_.pipeline != nullptr || segment_.divides() ? worker_.trace.rank() : worker_.rank;
  }

  // training_shards.cc: of weights, gradient or both this rank has its shards only.
  bool shards_weights() const { return shards_.shards_weights(); }
  // Takes part in evaluations; with sharded weights all ranks do.
  bool evaluates() const { return options_.evaluate && (is_of_first_replica() || shards_weights()); }
  HostView OwnWeights() const;
  std::vector<float> InitialWeights() const;
  absl::StatusOr<std::string> HashOfWeights();
  absl::StatusOr<std::vector<float>> FinalWeights();
  absl::StatusOr<BatchScore> Score(Span weights, const std::function<void(int64_t)>& on_batches);

  // training_state.cc
  absl::Status AllocateBuffers();
  absl::Status LoadBuffers(const std::vector<float>& values);
  HostView BuffersToBroadcast() const;
  absl::StatusOr<std::vector<float>> BuffersOnHost();
  absl::Status KeepBuffers(int64_t step);
  absl::Status RestoreBuffers(int64_t step);
  Traffic OtherTraffic() const;
  int LoadedArrays() const;
  absl::Status StartTables();
  absl::Status PullRows(int64_t step, const SampledStep& drawn);
  absl::Status PushRows(const StepInfo& info);
  absl::Status FinishRows(const StepInfo& info, StepReport& report);
  absl::Status PullForEvaluation();
  ReadRows RowsOfCheckpoint();
  TouchedRows* rows() { return rows_.has_value() ? &*rows_ : nullptr; }
  SharedStatistics* statistics() { return statistics_.has_value() ? &*statistics_ : nullptr; }

  // train_loop.cc
  absl::StatusOr<int64_t> Start();
  absl::Status Steps(int64_t first);
  absl::Status End(std::vector<float>* final_weights);
  void Abort(const absl::Status& why);
  absl::StatusOr<bool> AwaitBarrier();
  absl::StatusOr<StepRecord> Step(int64_t step);
  SampledStep ForBackward(SampledStep drawn) const;
  absl::Status PrefetchNext();
  absl::Status Advance(int64_t step, const StepReport& report);
  absl::Status Finish(int64_t step, int64_t done_before, StepRecord record);
  void RemoveRecordsFrom(int64_t step);

  // training_checkpoints.cc
  absl::Status PlanResumption();
  absl::Status LoadCheckpoint(std::vector<float>& weights);
  TrainingPosition PositionAt(int64_t next, int64_t updates) const;
  WorkerPart OwnPart(int64_t next) const;
  absl::Status SettleRows();
  absl::Status PublishPart(const Moment& moment);
  void PublishLastPart();
  bool AbortEndsTheProcess() const;
  std::vector<std::optional<WorkerPart>> TakeParts(const Moment& moment);
  absl::StatusOr<TrainingCheckpoint> ReadState(bool& is_of_step);
  absl::Status SaveCheckpoint(const Moment& moment);
  absl::Status SaveOrSend(const Moment& moment);
  absl::Status CheckpointIfDue(int64_t before);
  absl::Status StopTogether(const Moment& end, bool saves);
  absl::Status LastCheckpoint();

  // training_records.cc
  StepRecord RecordOf(const StepInfo& info, StepReport report, int64_t begin_ns, int64_t end_ns);
  void AddReplicas(const DataParallelFigures& figures, StepRecord& record);
  void Count(const StepRecord& record);
  void AddSpans(const PipelineExecutor::StepTimes& times, int64_t step, bool in_full);
  void AddSpan(SpanKind kind, int64_t step, const NodeTime& time, const std::string& action = "");
  absl::StatusOr<ConstSpan> WeightsOnHost();
  absl::Status KeepSnapshot();
  absl::Status ScoreCurve();
  absl::Status Describe();
  MemoryFigures Memory() const;

  const TrainingOptions& options_;
  Worker& worker_;

  // Decided from flags and strategy before training.
  StrategyRow strategy_row_;
  StepPlan plan_;
  UpdatePlan updates_;
  CheckpointPlan checkpoints_;
  bool server_shares_ = false;  // a parameter server on this host may use our buffers

  std::unique_ptr<Ops> ops_;
  std::unique_ptr<Stream> compute_;
  std::unique_ptr<Model> model_;
  Activations activations_;
  int evaluation_batch_ = 0;
  DataParallel* replicas_ = nullptr;  // model_ of the strategy data-parallel
  Buffer weights_, own_gradient_;
  Buffer host_weights_, host_gradient_;  // if the host cannot read the device's memory
  Buffer buffers_, host_buffers_;        // state that is not trained, if the model has any
  std::optional<SharedStatistics> statistics_;
  std::map<int64_t, std::vector<float>> kept_buffers_;  // by the step that begins with them
  HostView gradient_;
  int gradient_fd_ = -1;
  std::optional<BatchMemory> batches_;  // not with --pp, whose executor has those of its slots
  std::vector<Bucket> buckets_;
  ShardPlan shards_;
  std::vector<ShardedBucket> sharded_;  // with a ShardPlan: buckets_
  std::vector<Bucket> counting_;        // instead, for a model that has only tables: see CountingBucket
  Strategy strategy_;
  // Of a model with tables; else null.
  std::unique_ptr<RowStrategy> row_strategy_;
  std::optional<TouchedRows> rows_, evaluated_rows_;
  std::optional<ComputeDelay> delay_;
  std::unique_ptr<Executor> executor_;  // without --pp
  // With --pp, the program and its executor, or --tp, the axis; else null.
  std::optional<NamedProgram> program_;
  std::optional<TensorAxis> axis_;
  // With --cp; else null.
  std::optional<SequenceAxis> sequence_axis_;
  SequencePlace segment_;
  std::optional<DataSplits> segment_data_;
  std::unique_ptr<ReplicaExchange> segments_;     // over the ranks of a sequence
  std::optional<ModelPart> part_;                 // its model is model_
  std::unique_ptr<ReplicaExchange> replica_;      // over the ranks of this replica
  std::unique_ptr<ReplicaExchange> same_stages_;  // over the replicas, on those ranks that begin one
  std::unique_ptr<PipelineExecutor> pipeline_;
  std::vector<float> whole_weights_;  // of the last WholeWeights
  std::vector<NodeTime> waits_;       // in this step, for other stages, after the last computation
  std::optional<DistributedSampler> sampler_;
  std::optional<TrainingClock> clock_;
  bool is_measuring_ = false;  // passed the barrier before the first measured step

  ResumePlan resume_;
  TrainingCheckpoint loaded_;    // until Start
  std::vector<float> residual_;  // until Start
  int64_t sample_shift_ = 0;     // in step s this worker draws the samples of step s + sample_shift_
  int64_t saved_step_ = -1;
  int64_t sequence_ = 0;  // of the newest checkpoint

  int64_t ddp_steps_ = 0;  // whose times are added up in result_.ddp
  double trained_s_ = 0;
  LossHistory losses_;
  BatchScore score_;  // of the last step
  std::vector<WeightsCopy> snapshots_;
  RankResult result_;
};

}  // namespace psring
