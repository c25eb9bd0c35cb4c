// What connects a rank that has a part of a replica (--pp, --tp) or of its sequences (--cp) to the others.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/device/device.h"
#include "common/options/training_options.h"
#include "ring_worker/groups/channel.h"
#include "ring_worker/groups/process_group.h"
#include "trainer/layers/sequence_axis.h"
#include "trainer/pipeline/pipeline.h"
#include "trainer/programs/mesh.h"

namespace psring {

// Parts of the group of all ranks. Used by one thread, except Abort.
class PipelineLinks {
 public:
  // Every rank of `world` calls it, after CheckPipelineFlags. `world` and `device` outlive the links. Errors
  // name missing ranks; InvalidArgument: the group cannot reach the device's memory.
  static absl::StatusOr<std::unique_ptr<PipelineLinks>> Connect(const TrainingOptions& options,
                                                                ProcessGroup& world, Device& device);
  PipelineLinks(const PipelineLinks&) = delete;
  PipelineLinks& operator=(const PipelineLinks&) = delete;

  MeshPlace place() const { return place_; }
  // The ranks with the same part of the model, by replica, and then by segment of the sequences; null: there
  // is only this one. `rank` and `ranks`: of these.
  ProcessGroup* same_stages() const { return same_stages_.get(); }
  int rank() const { return same_stages_ != nullptr ? same_stages_->rank() : 0; }
  int ranks() const { return same_stages_ != nullptr ? same_stages_->size() : 1; }
  // Both borrow groups and channels. The pipeline is only for ranks that have a part of the model.
  Pipeline& pipeline() { return pipeline_; }
  bool cuts_model() const { return replica_ != nullptr; }
  const Sequence* sequence() const { return sequence_.group != nullptr ? &sequence_ : nullptr; }

  // Every pending and later call and transfer fails with `why`.
  void Abort(const absl::Status& why) const;

 private:
  PipelineLinks() = default;

  absl::Status ConnectStages(const TrainingOptions& options, const Mesh& mesh, ProcessGroup& world,
                             Device& device);
  absl::Status ConnectSequence(const Mesh& mesh, bool ring, ProcessGroup& world, Device& device);

  MeshPlace place_;
  std::unique_ptr<ProcessGroup> same_stages_, replica_, tensors_, tied_, segments_;
  std::vector<std::unique_ptr<Channel>> channels_;
  Pipeline pipeline_;
  Sequence sequence_;
};

// How many channels a rank has, at most; none without --pp and --cp.
absl::StatusOr<int> MostChannels(const TrainingOptions& options);

}  // namespace psring
