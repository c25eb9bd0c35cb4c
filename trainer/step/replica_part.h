// What a rank has of its replica: all of it, or some stages of the model (--pp), a share of its matrices
// (--tp), some positions of each sample (--cp); and what it exchanges with the replica's other ranks.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/options/training_options.h"
#include "trainer/layers/sequence_axis.h"
#include "trainer/layers/tensor_axis.h"
#include "trainer/models/model.h"
#include "trainer/pipeline/model_part.h"
#include "trainer/pipeline/replica_exchange.h"
#include "trainer/pipeline/stage_messages.h"
#include "trainer/programs/program_rows.h"
#include "trainer/step/train_loop.h"

namespace psring {

// Used by the training thread. Calls that are collective are so over the ranks of the replica, with no work
// in progress.
class ReplicaPart {
 public:
  // Both outlive it. At first the rank has all of its replica, and its program is single_stage.
  ReplicaPart(const TrainingOptions& options, Worker& worker);

  // With --cp, before the model is made: this rank has some positions of each sample.
  absl::Status TakeSegment(const ModelRow& row);
  // The model, or this share of its matrices.
  absl::StatusOr<std::unique_ptr<Model>> MakeModel(const ModelRow& row, Ops& ops,
                                                   const TensorPlace& share = {}) const;
  // With --pp or --tp: `model` becomes this rank's part of it. Collective. The first rank of the job measures
  // layers on `compute` if the user does not cut the model.
  absl::Status TakeModelPart(const ModelRow& row, Ops& ops, Stream& compute, std::unique_ptr<Model>& model);
  // Memory for what layers exchange of batches up to this size. Before the first pass.
  absl::Status Reserve(const Model& model, int max_batch);
  // Destroys messages and axes, after all that uses them and before the compute stream.
  void Close();

  const NamedProgram& program() const { return program_; }
  bool has_stages() const { return !program_.row.one_rank; }  // of a pipeline
  // Null: all of the model. Without its model, which TakeModelPart gives away.
  const ModelPart* model_part() const { return model_.has_value() ? &*model_ : nullptr; }
  StageMessages* messages() { return messages_.get(); }  // null unless has_stages()
  // Over the ranks of this replica; null unless the model is divided. And over the replicas, on those ranks
  // that begin one.
  ReplicaExchange* replica() { return replica_.get(); }
  ReplicaExchange* same_stages() { return same_stages_.get(); }
  bool has_segments() const { return segments_ != nullptr; }

  // Samples as this rank has them; those of the worker are whole.
  const Dataset& train() const { return data().train; }
  const Dataset& test() const { return data().test; }

  // Of the job: it reports what concerns all ranks, and writes checkpoints.
  bool is_first_rank() const { return worker_.rank == 0 && begins_replica(); }
  // Counts its replica's samples.
  bool begins_replica() const { return has_first_part() && segment_.rank == 0; }
  bool is_of_first_replica() const { return worker_.rank < worker_.segments(); }

  // Tied tensors whose gradients both of their stages must add up in the same order of replicas, or the two
  // copies would drift apart: in buckets of their own, and by servers in the order of workers. The sum of two
  // has one order.
  std::vector<ReadyRange> OrderedTensors() const {
    return has_stages() && worker_.world_size > 2 ? model_->tied : std::vector<ReadyRange>();
  }
  // Whether servers must add up all gradients in one order: of these tensors, and of those, such as norms, of
  // which the ranks that divide matrices have copies, each with servers of its own.
  bool needs_order() const {
    return !OrderedTensors().empty() || (axis_.has_value() && worker_.world_size > 2);
  }

  // Over all parts of the model. Collective.
  absl::StatusOr<double> Sum(double own);
  // Of the last stage, and of all segments. Collective.
  absl::StatusOr<BatchScore> Score(BatchScore own);

  // Of this rank beside its strategy's: `all`, with BatchNorm's statistics and the other two.
  struct Traffics {
    Traffic all, tensors, sequences;
    Traffics operator-(const Traffics& other) const {
      return {all - other.all, tensors - other.tensors, sequences - other.sequences};
    }
  };
  Traffics traffic() const;
  // Of both axes, since the last call. After the compute stream was synchronized.
  TensorAxis::Times TakeTimes();
  size_t reserved_bytes() const;

 private:
  const DataSplits& data() const { return segment_data_.has_value() ? *segment_data_ : worker_.data; }
  bool has_first_part() const {
    return worker_.pipeline == nullptr || worker_.pipeline->replica->rank() == 0;
  }
  absl::StatusOr<std::vector<double>> LayerTimes(const ModelRow& row, Ops& ops, Stream& compute,
                                                 const Model& model);
  absl::StatusOr<std::vector<size_t>> Cuts(const ModelRow& row, Ops& ops, Stream& compute, const Model& model,
                                           const PipelinePlace& place);

  const TrainingOptions& options_;
  Worker& worker_;
  NamedProgram program_;
  std::optional<ModelPart> model_;
  std::optional<TensorAxis> axis_;           // with --tp
  std::unique_ptr<StageMessages> messages_;  // with --pp
  std::unique_ptr<ReplicaExchange> replica_, same_stages_;
  // With --cp.
  std::optional<SequenceAxis> sequence_axis_;
  SequencePlace segment_;
  std::optional<DataSplits> segment_data_;
  std::unique_ptr<ReplicaExchange> segments_;  // over the ranks of a sequence
};

}  // namespace psring
