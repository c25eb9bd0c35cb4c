// One rank's training, for train_loop.cc and training_*.cc alone: what all of them work on.
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "trainer/checkpoints/worker_parts.h"
#include "trainer/data/sampler.h"
#include "trainer/models/batch_memory.h"
#include "trainer/models/model.h"
#include "trainer/step/bucket_pipeline.h"
#include "trainer/step/compute_delay.h"
#include "trainer/step/data_parallel.h"
#include "trainer/step/ddp_sums.h"
#include "trainer/step/evaluation.h"
#include "trainer/step/recorded_pass.h"
#include "trainer/step/train_loop.h"
#include "trainer/step/training_plan.h"
#include "trainer/strategies/sync_strategy.h"

namespace psring {

// One rank's training, from checked flags to a result.
class Training {
 public:
  static absl::StatusOr<std::unique_ptr<Training>> Create(const TrainingOptions& options, Worker& worker);
  // Waits for the device: after an error, its work may still use the memory that is freed here.
  ~Training();

  absl::StatusOr<RankResult> Run(std::vector<float>* final_weights);

 private:
  static constexpr int kEvaluationBatch = 128;
  // Bytes of a bucket.
  static std::vector<int64_t> BytesOf(const std::vector<Bucket>& buckets);
  BucketSizes BucketSizesAsked() const {
    return {.first_mb = std::min(1.0, options_.bucket_mb), .others_mb = options_.bucket_mb};
  }

  Training(const TrainingOptions& options, Worker& worker) : options_(options), worker_(worker) {}

  // training_setup.cc
  absl::Status MakeModel(const ModelRow& row, int max_batch);
  absl::Status AllocateGradient(size_t bytes);
  std::string OnGpu(const Buffer& memory) const;

  // train_loop.cc
  absl::Status Steps();
  absl::StatusOr<StepRecord> Step(int64_t step, int64_t& next);
  absl::Status Compute(size_t batch_of_step, const Batch& batch, const StepInfo& info);
  absl::Status ForwardAndBackward(size_t batch_of_step, const Batch& batch, const StepInfo& info);
  bool RecordsPasses() const { return options_.cuda_graph && !strategy_->records_steps(); }
  absl::Status Forward(const Batch& batch);
  absl::Status Backward(int batch_of_step, const Batch& batch);
  std::vector<std::vector<int64_t>> BatchesOf(SampledStep drawn) const;
  absl::Status RebuildBuckets(std::vector<int> order);
  absl::Status PlanBucketsByTrial();
  absl::StatusOr<std::optional<int64_t>> AwaitStage(int stage);
  void GoBackTo(int64_t step);
  bool IsOver(int64_t step) const;
  int64_t StepsDone(int64_t next) const;

  // training_checkpoints.cc
  absl::Status PlanResumption();
  absl::Status LoadCheckpoint(std::vector<float>& weights);
  TrainingPosition PositionAt(int64_t next, int64_t updates) const;
  // A checkpoint's: what all ranks call it, the step of it, this worker's own next one, and whether that is
  // not made any more.
  struct Moment {
    std::string name;
    int64_t step = 0;
    int64_t next = 0;
    bool stops = false;
  };
  WorkerPart OwnPart(int64_t next) const;
  absl::Status LeavePart(const Moment& moment);
  void LeavePartForTheEnd();
  bool AbortEndsTheProcess() const;
  std::vector<std::optional<WorkerPart>> TakeParts(const Moment& moment, bool meets);
  absl::Status SaveCheckpoint(const Moment& moment);
  absl::Status CheckpointIfDue(int64_t before, int64_t done, int64_t next);
  absl::Status LastCheckpoint(int64_t next);
  int64_t SamplesBefore(int64_t step) const;
  int64_t SamplesOf(int64_t version) const;

  // training_records.cc
  void Describe(DataParallelFigures figures, StepRecord& record);
  absl::Status Describe();
  void Count(const StepRecord& record);
  void AddSpan(SpanKind kind, int64_t step, int64_t begin_ns, int64_t end_ns);
  absl::StatusOr<ConstSpan> WeightsOnHost();
  absl::Status KeepSnapshot(int64_t steps_done);
  absl::Status ScoreCurve();
  double MeanLoss(size_t first) const;
  double StateMb() const;

  const TrainingOptions& options_;
  Worker& worker_;
  const StrategyRow* strategy_row_ = nullptr;
  StepPlan plan_;
  std::vector<Bucket> buckets_;

  std::unique_ptr<Ops> ops_;
  std::unique_ptr<Stream> compute_;
  std::unique_ptr<Model> model_;
  DataParallel* replicas_ = nullptr;  // model_, where it is that
  Buffer weights_, own_gradient_;
  Buffer host_weights_, host_gradient_;  // where the host does not read the device's memory
  Buffer worker_gradient_;               // of one of the workers that micro-batches stand for
  Buffer micro_gradient_;                // of one batch of several that are accumulated
  HostView gradient_;
  int gradient_fd_ = -1;
  std::optional<BatchMemory> batches_;
  // With --cuda_graph. Where the strategy records steps: by which of the step's batches it is, and all ranks'
  // samples of the step, which say how many are in each rank's batch.
  std::map<std::pair<size_t, int64_t>, RecordedPass> step_passes_;
  // Elsewhere: by the samples of a batch; backward also by which of the step's batches it is, since its
  // gradient goes elsewhere.
  std::map<int, RecordedPass> forward_passes_;
  std::map<std::pair<int, int>, RecordedPass> backward_passes_;
  bool server_shares_ = false;  // a parameter server on this host may work in our buffers
  std::unique_ptr<SyncStrategy> strategy_;
  bool shares_steps_ = false;  // among workers that never wait for each other
  std::optional<BucketPipeline> pipeline_;
  bool has_rebuilt_ = false;  // or need not
  DdpSums ddp_;
  std::optional<DistributedSampler> sampler_;
  std::optional<ComputeDelay> delay_;
  UpdatePlan updates_;
  ResumePlan resume_;
  TrainingCheckpoint loaded_;    // until Start
  std::vector<float> residual_;  // likewise
  int64_t sample_shift_ = 0;     // this worker draws what the step so much later would
  int64_t next_step_ = 0;        // where it ended
  int64_t saved_step_ = -1;
  int64_t sequence_ = 0;  // of the newest checkpoint

  struct Stamps {
    int64_t forward_ns = 0, backward_ns = 0, end_ns = 0;
  };
  std::vector<Stamps>
      stamps_;  // of a step's batches, each always at one place; the compute stream writes them

  int64_t global_samples_ = 0;  // in all updates so far
  int64_t version_ = 0;         // asynchronous: updates in this rank's weights, those of all workers
  double trained_s_ = 0;
  struct Made {
    int64_t step;
    int64_t samples;  // that count
    int64_t drawn;
    double loss;  // mean over those
  };
  std::vector<Made> made_;    // this rank's steps
  size_t snapshot_made_ = 0;  // there were so many when the last snapshot was taken
  std::vector<WeightsCopy> snapshots_;
  RankResult result_;
};

}  // namespace psring
