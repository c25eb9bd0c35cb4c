#include "trainer/pipeline/pipeline_links.h"

#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "trainer/programs/pipeline_flags.h"

namespace psring {
namespace {

constexpr int kChannelsOfAStage = 4;  // to and from both of its neighbours

}  // namespace

absl::StatusOr<std::unique_ptr<PipelineLinks>> PipelineLinks::Connect(const TrainingOptions& options,
                                                                      ProcessGroup& world, Device& device) {
  PSRING_ASSIGN_OR_RETURN(const Mesh mesh,
                          Mesh::Create(world.size(), options.pp, options.rank_order, options.tp, options.cp));
  std::unique_ptr<PipelineLinks> links(new PipelineLinks());
  const MeshPlace place = links->place_ = mesh.PlaceOf(world.rank());
  Pipeline& pipeline = links->pipeline_;
  pipeline = {.position = place.position,
              .size = mesh.positions(),
              .program = options.program,
              .ranks = mesh.workers()};

  const int part = place.position * mesh.shares() + place.share;
  // Those that compute parts of the model for the same positions of the same samples.
  const int of_samples = place.replica * mesh.segments() + place.segment;
  if (mesh.replicas() * mesh.segments() > 1) {
    PSRING_ASSIGN_OR_RETURN(links->same_stages_, world.Split(/*color=*/part, /*key=*/of_samples));
  }
  const bool ring = ContextParallelOf(options.context_parallel).uses_ring;
  if (mesh.segments() > 1) PSRING_RETURN_IF_ERROR(links->ConnectSequence(mesh, ring, world, device));
  if (mesh.positions() * mesh.shares() == 1) return links;
  PSRING_ASSIGN_OR_RETURN(links->replica_, world.Split(/*color=*/of_samples, /*key=*/part));
  pipeline.replica = links->replica_.get();
  if (mesh.shares() > 1 && mesh.positions() > 1) {
    PSRING_ASSIGN_OR_RETURN(
        links->tensors_,
        world.Split(/*color=*/of_samples * mesh.positions() + place.position, /*key=*/place.share));
    pipeline.tensors = links->tensors_.get();
  } else if (mesh.shares() > 1) {
    pipeline.tensors = pipeline.replica;
  }
  if (mesh.positions() > 1) PSRING_RETURN_IF_ERROR(links->ConnectStages(options, mesh, world, device));
  return links;
}

absl::Status PipelineLinks::ConnectSequence(const Mesh& mesh, bool ring, ProcessGroup& world,
                                            Device& device) {
  const int segments = mesh.segments(), own = place_.segment;
  const int of_part = (place_.replica * mesh.positions() + place_.position) * mesh.shares() + place_.share;
  PSRING_ASSIGN_OR_RETURN(segments_, world.Split(/*color=*/of_part, /*key=*/own));
  sequence_.group = segments_.get();
  if (!ring) return absl::OkStatus();
  for (int from = 0; from < segments; ++from) {
    const int to = (from + 1) % segments;
    PSRING_ASSIGN_OR_RETURN(
        std::unique_ptr<ProcessGroup> pair,
        world.Split(own == from || own == to ? of_part : kNoColor, /*key=*/own == from ? 0 : 1));
    if (pair == nullptr) continue;
    PSRING_ASSIGN_OR_RETURN(channels_.emplace_back(),
                            Channel::Create(std::move(pair), device, absl::StrCat("sequence ", from)));
    (own == from ? sequence_.next : sequence_.previous) = channels_.back().get();
  }
  return absl::OkStatus();
}

absl::Status PipelineLinks::ConnectStages(const TrainingOptions& options, const Mesh& mesh,
                                          ProcessGroup& world, Device& device) {
  Pipeline& pipeline = pipeline_;
  PSRING_ASSIGN_OR_RETURN(const NamedProgram named, FindPipelineProgram(options.program));
  PSRING_ASSIGN_OR_RETURN(const StepProgram program, MakeStepProgram(named, options.pp, /*micro_batches=*/1));
  PSRING_ASSIGN_OR_RETURN(pipeline.cuts, ParseCuts(options.cuts, program.stages()));
  const auto is_at = [&](int position) { return place_.position == position; };
  const int of_share = (place_.replica * mesh.segments() + place_.segment) * mesh.shares() + place_.share;
  const auto color_if = [&](bool takes_part) { return takes_part ? of_share : kNoColor; };
  const int first = program.rank_of.front(), last = program.rank_of.back();
  if (first != last) {
    PSRING_ASSIGN_OR_RETURN(tied_, world.Split(color_if(is_at(first) || is_at(last)), is_at(last)));
    pipeline.tied = tied_.get();
  }

  std::shared_ptr<Stream> lane;  // of all channels
  if (options.copy_streams == 1) lane = device.NewStream(StreamKind::kBackground, "messages");
  const auto connect = [&](int from, int to, const std::string& name) -> absl::StatusOr<Channel*> {
    PSRING_ASSIGN_OR_RETURN(std::unique_ptr<ProcessGroup> pair,
                            world.Split(color_if(is_at(from) || is_at(to)), /*key=*/is_at(to)));
    if (pair == nullptr) return nullptr;
    PSRING_ASSIGN_OR_RETURN(channels_.emplace_back(), Channel::Create(std::move(pair), device, name, lane));
    return channels_.back().get();
  };
  for (int boundary = 0; boundary + 1 < program.stages(); ++boundary) {
    const int before = program.rank_of[boundary], after = program.rank_of[boundary + 1];
    if (before == after) continue;
    PSRING_ASSIGN_OR_RETURN(Channel* const activations,
                            connect(before, after, absl::StrCat("forward ", boundary)));
    PSRING_ASSIGN_OR_RETURN(Channel* const gradients,
                            connect(after, before, absl::StrCat("backward ", boundary)));
    if (activations != nullptr) pipeline.boundaries.push_back({boundary, activations, gradients});
  }
  return absl::OkStatus();
}

void PipelineLinks::Abort(const absl::Status& why) const {
  if (same_stages_ != nullptr) same_stages_->Abort(why);
  if (sequence_.group != nullptr) sequence_.Abort(why);
  pipeline_.Abort(why);
}

absl::StatusOr<int> MostChannels(const TrainingOptions& options) {
  const int of_sequence = options.cp > 1 && ContextParallelOf(options.context_parallel).uses_ring ? 2 : 0;
  if (options.pp == 1) return of_sequence;
  PSRING_ASSIGN_OR_RETURN(const NamedProgram program, FindPipelineProgram(options.program));
  return of_sequence + kChannelsOfAStage * program.chunks;
}

}  // namespace psring
