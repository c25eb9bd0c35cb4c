#include "trainer/memory/layout_memory.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/check.h"
#include "common/text/translate.h"
#include "trainer/layers/sequence_axis.h"
#include "trainer/models/model_stages.h"
#include "trainer/pipeline/model_part.h"
#include "trainer/pipeline/rank_plan.h"
#include "trainer/pipeline/step_units.h"
#include "trainer/pipeline/unit_passes.h"
#include "trainer/programs/pipeline_flags.h"

namespace psring {
namespace {

// With --cp, of the positions that a rank has.
SampleSpec SamplesOf(const TrainingOptions& options, const MemoryQuestion& question) {
  return options.cp > 1 ? OfPositions(question.samples, question.samples.labels / options.cp)
                        : question.samples;
}

MakeModel MakerOf(const TrainingOptions& options, const MemoryQuestion& question) {
  const SequencePlace segment{.ranks = options.cp, .kind = ContextParallelOf(options.context_parallel).kind};
  return [question, segment, samples = SamplesOf(options, question),
          dropout = options.dropout](const TensorPlace& at) -> absl::StatusOr<std::unique_ptr<Model>> {
    if (at.ranks == 1 && !segment.divides()) return question.row.make(samples, question.ops);
    PSRING_ASSIGN_OR_RETURN(const ModelRow::Make part, MakerOfPart(question.row, dropout, at, segment));
    return part(samples, question.ops);
  };
}

// Of equally many layers, unless the user cuts.
absl::StatusOr<std::vector<size_t>> CutsOf(const TrainingOptions& options, const MakeModel& make,
                                           int stages) {
  PSRING_ASSIGN_OR_RETURN(std::vector<size_t> cuts, ParseCuts(options.cuts, stages));
  if (!cuts.empty()) return cuts;
  PSRING_ASSIGN_OR_RETURN(const std::unique_ptr<Model> whole, make({}));
  return BalancedCuts(*whole, std::vector<double>(whole->layers(), 1), stages);
}

absl::StatusOr<MemoryNeed> NeedOfModel(const TrainingOptions& options, const StrategyRow& strategy,
                                       const MemoryQuestion& question, const Model& model,
                                       const NamedProgram* program, const ModelPart* part) {
  const int ranks =
      strategy.SplitOf(question.workers / ReplicaRanks(options) * options.cp, options.dp_shard).ranks;
  const UnitShards shards =
      PlanUnitShards(model, strategy, options, {.ranks = ranks}, program != nullptr ? part : nullptr,
                     program != nullptr && program->row.divides_backward);
  StateOnRank state = StateOf(strategy, question.optimizer, ranks, shards.plan);
  if (program != nullptr) PSRING_RETURN_IF_ERROR(AddStages(*program, part->place, options, state));
  return MemoryNeedOf(options, model, SamplesOf(options, question), question.max_batch, state,
                      question.device);
}

// `options` with these numbers of ranks, and as many samples in a step.
TrainingOptions Divided(TrainingOptions options, const std::string& strategy, int pp, int tp, int cp) {
  options.micro_batches = options.micro_batches * pp * tp * cp / ReplicaRanks(options);
  if (pp != options.pp) options.cuts.clear();
  if (cp != options.cp) options.rank_order.clear();
  options.strategy = strategy;
  options.pp = pp;
  options.tp = tp;
  options.cp = cp;
  if (pp == 1) options.program = TrainingOptions().program;
  if (ReplicaRanks(options) == 1) options.rank_order.clear();
  return options;
}

// The flags that turn `given` into `layout`.
std::string FlagsOf(const TrainingOptions& given, const TrainingOptions& layout) {
  std::vector<std::string> flags;
  if (layout.strategy != given.strategy) flags.push_back(absl::StrCat("--strategy ", layout.strategy));
  if (layout.pp != given.pp) flags.push_back(absl::StrCat("--pp ", layout.pp));
  if (layout.tp != given.tp) flags.push_back(absl::StrCat("--tp ", layout.tp));
  if (layout.cp != given.cp) flags.push_back(absl::StrCat("--cp ", layout.cp));
  if (layout.micro_batches != given.micro_batches) {
    flags.push_back(absl::StrCat("--micro_batches ", layout.micro_batches));
  }
  if (layout.cuts != given.cuts) flags.push_back(Tr("without $0", "--cuts"));
  if (layout.program != given.program) flags.push_back(Tr("without $0", "--program"));
  if (layout.rank_order != given.rank_order) flags.push_back(Tr("without $0", "--rank_order"));
  return absl::StrJoin(flags, " ");
}

// Of a micro-batch, all stages together. Each boundary is passed by activations and by their gradient.
double SentByStages(const TrainingOptions& options, const Model& model, const std::vector<LayerRange>& stages,
                    DType type) {
  double bytes = 0;
  for (const LayerRange& stage : stages) {
    bytes += model.SentBytes(stage, options.batch, options.recompute);
    if (stage.first == 0) continue;
    bytes += 2. * options.batch * static_cast<double>(model.BoundaryElements(stage.first) * SizeOf(type));
  }
  return bytes;
}

// Of tensors that the first and the last stage have a copy of.
double TiedElements(const Model& model, const std::vector<LayerRange>& stages) {
  const std::vector<ReadyRange> parameters = model.LayerParameters();
  const auto uses = [&](const LayerRange& stage, const Tensor& tensor) {
    for (size_t l = stage.first; l < stage.end; ++l) {
      const ReadyRange& own = parameters[l];
      if (own.first <= tensor.first && tensor.first < own.first + own.count) return true;
    }
    return false;
  };
  size_t elements = 0;
  for (const Tensor& tensor : model.parameters().tensors()) {
    const bool is_tied = stages.size() > 1 && uses(stages.front(), tensor) && uses(stages.back(), tensor);
    elements += is_tied ? tensor.space : 0;
  }
  return static_cast<double>(elements);
}

// The elements that a rank sends in an update, as a part of its gradient's. `replicas`: that add it up.
double GradientPart(const TrainingOptions& options, const StrategyRow& strategy, int replicas) {
  const double wire = options.wire == "float32" ? 1 : .5;
  if (strategy.has_parameters_on_servers()) return wire;
  if (!strategy.uses_group) return 0;
  return 2 * (1 - 1. / replicas) * strategy.exchanges_per_step() *
         strategy.SentPart(wire, options.micro_batches, options.reshard == "forward",
                           strategy.SplitOf(replicas, options.dp_shard));
}

struct Candidate {
  TrainingOptions options;
  StrategyRow strategy;
  double sent;
};

}  // namespace

UnitShards PlanUnitShards(const Model& model, const StrategyRow& strategy, const TrainingOptions& options,
                          const ShardPlace& place, const ModelPart* part, bool divides_backward) {
  UnitShards shards;
  if (!strategy.shards_gradients || place.ranks == 1) return shards;
  const std::vector<ReadyRange> complete = model.CompleteAfterLayers();
  const std::vector<LayerRange> stages = part != nullptr ? part->stages : std::vector<LayerRange>();
  shards.buckets =
      UnitBuckets(model, part != nullptr ? part->cut_points : model.CutPoints(), options.recompute);
  if (part != nullptr) shards.buckets = CutBuckets(shards.buckets, complete, stages, part->tied);
  const StepUnits units = PlanUnits(complete, shards.buckets, stages);
  const std::vector<bool> beside = UsedBesideOthers(
      units, BucketsOfLayers(model.LayerParameters(), shards.buckets), shards.buckets.size());
  std::vector<bool> gradients_beside = beside;
  if (part != nullptr) {
    shards.plan.whole = WithTied(units, shards.buckets, part->tied);
    for (size_t bucket = 0; bucket < beside.size(); ++bucket) {
      gradients_beside[bucket] = beside[bucket] || shards.plan.whole[bucket];
    }
    shards.plan.aside = UnitPasses::AsideElements(model, shards.buckets, shards.plan.whole,
                                                  options.micro_batches, divides_backward);
  }
  shards.sharded = ShardBuckets(shards.buckets, place.rank, place.ranks);
  // One is reduced while the next one is computed.
  shards.plan.gradient = PlanBlocks(shards.sharded, gradients_beside, /*turns=*/2);
  shards.plan.gradient.elements += shards.plan.aside;
  if (strategy.shards_weights) {
    const std::vector<bool> all(shards.buckets.size(), true);
    const bool reshards = options.reshard == "forward";
    shards.plan.weights = PlanBlocks(shards.sharded, reshards ? beside : all, /*turns=*/2);
  }
  return shards;
}

StateOnRank StateOf(const StrategyRow& strategy, const OptimizerConfig& optimizer, int shard_ranks,
                    const ShardPlan& shards) {
  return {.optimizer = strategy.has_parameters_on_servers() ? nullptr : &optimizer,
          .has_tables = !strategy.uses_servers,
          .shards = strategy.shards_updates ? shard_ranks : 1,
          .weight_elements = shards.weights.elements,
          .gradient_elements = shards.gradient.elements,
          .unit_elements = shards.weights.elements - shards.weights.parts + shards.gradient.elements -
                           shards.gradient.parts};
}

absl::Status AddStages(const NamedProgram& program, const PipelinePlace& place,
                       const TrainingOptions& options, StateOnRank& state) {
  PSRING_ASSIGN_OR_RETURN(const RankPlans plans,
                          PlansOfRank(program, place, ModelCut::WholeStages(place.stages()),
                                      options.micro_batches, {.one_copy_stream = options.copy_streams == 1}));
  state.slots = plans.slots();
  state.divides_backward = program.row.divides_backward;
  if (!plans.versions.has_value()) return absl::OkStatus();
  state.older_versions = plans.versions->older();
  state.updates = plans.versions->updates();
  return absl::OkStatus();
}

absl::StatusOr<MemoryNeed> MostNeeded(const TrainingOptions& options, const StrategyRow& strategy,
                                      const MemoryQuestion& question) {
  const MakeModel make = MakerOf(options, question);
  if (ReplicaRanks(options) == 1) {
    PSRING_ASSIGN_OR_RETURN(const std::unique_ptr<Model> model, make({}));
    return NeedOfModel(options, strategy, question, *model, nullptr, nullptr);
  }
  PipelinePlace place{.positions = options.pp};
  std::optional<NamedProgram> program;
  std::vector<size_t> cuts;
  if (options.pp > 1) {
    PSRING_ASSIGN_OR_RETURN(program, FindPipelineProgram(options.program));
    place.chunks = program->chunks;
    PSRING_ASSIGN_OR_RETURN(cuts, CutsOf(options, make, place.stages()));
  }
  const TensorPlace tensors{.ranks = options.tp, .divides_rows = options.sequence_parallel};
  MemoryNeed most;
  for (; place.position < options.pp; ++place.position) {
    PSRING_ASSIGN_OR_RETURN(const ModelPart part, CutModel(make, cuts, place, tensors));
    PSRING_ASSIGN_OR_RETURN(const MemoryNeed need,
                            NeedOfModel(options, strategy, question, *part.model,
                                        program.has_value() ? &*program : nullptr, &part));
    if (need.total() > most.total()) most = need;
  }
  return most;
}

absl::StatusOr<double> SentInStep(const TrainingOptions& options, const StrategyRow& strategy,
                                  const MemoryQuestion& question) {
  const MakeModel make = MakerOf(options, question);
  PSRING_ASSIGN_OR_RETURN(const std::unique_ptr<Model> model,
                          make({.ranks = options.tp, .divides_rows = options.sequence_parallel}));
  std::vector<size_t> cuts;
  if (options.pp > 1) {
    PSRING_ASSIGN_OR_RETURN(const NamedProgram program, FindPipelineProgram(options.program));
    PSRING_ASSIGN_OR_RETURN(cuts, CutsOf(options, make, options.pp * program.chunks));
  }
  PSRING_ASSIGN_OR_RETURN(const std::vector<LayerRange> stages, StagesBetween(*model, cuts));
  const int replicas = question.workers / ReplicaRanks(options) * options.cp;
  const double tied = TiedElements(*model, stages),
               gradients = static_cast<double>(model->parameters().count()) + tied;
  const double bytes =
      SentByStages(options, *model, stages, question.ops.activations()) * options.micro_batches +
      sizeof(float) * UpdatesOfStep(options) *
          (2 * tied + GradientPart(options, strategy, replicas) * gradients);
  return bytes / options.pp;
}

std::vector<std::string> LayoutsThatFit(
    const TrainingOptions& options, const MemoryQuestion& question, size_t bytes,
    const std::function<absl::Status(const TrainingOptions&, const StrategyRow&)>& check) {
  constexpr size_t kMaxShown = 3;
  constexpr int kMinPositions = 1024;  // of a rank: shorter sequences have small activations
  std::vector<Candidate> candidates;
  StrategyTable strategies;  // the user's, and those that shard the state of the model
  if (absl::StatusOr<StrategyRow> own = FindStrategy(options.strategy); own.ok()) {
    strategies.push_back(*std::move(own));
  }
  for (const StrategyRow& row : StrategyRows()) {
    if (row.shards_updates && row.name != options.strategy) strategies.push_back(row);
  }
  const auto add = [&](const StrategyRow& strategy, int pp, int tp, int cp) {
    const int before = ReplicaRanks(options);
    if (question.workers % (pp * tp * cp) != 0 || options.micro_batches * pp * tp * cp % before != 0) return;
    const TrainingOptions divided = Divided(options, strategy.name, pp, tp, cp);
    if (divided == options || (strategy.shards_updates && pp * tp == question.workers)) return;
    if (!check(divided, strategy).ok()) return;
    const absl::StatusOr<double> sent = SentInStep(divided, strategy, question);
    if (sent.ok()) candidates.push_back({divided, strategy, *sent});
  };
  for (int cp = options.cp; cp <= question.workers; cp += options.cp) {
    if (cp > options.cp && question.samples.labels / cp < kMinPositions) break;
    for (const StrategyRow& strategy : strategies) {
      for (int pp = 1; pp <= question.workers; ++pp) {
        for (int tp = 1; question.workers % pp == 0 && tp <= question.workers / pp; ++tp) {
          add(strategy, pp, tp, cp);
        }
      }
    }
  }
  std::ranges::stable_sort(candidates, {}, &Candidate::sent);
  std::vector<std::string> fitting;
  for (const Candidate& candidate : candidates) {
    if (fitting.size() == kMaxShown) break;
    const absl::StatusOr<MemoryNeed> need = MostNeeded(candidate.options, candidate.strategy, question);
    if (!need.ok() || need->total() > bytes) continue;
    fitting.push_back(Tr("$0 ($1 per worker, which sends $2 a step)", FlagsOf(options, candidate.options),
                         MebibytesText(need->total()), MebibytesText(static_cast<size_t>(candidate.sent))));
  }
  return fitting;
}

absl::Status CheckShares(
    const MemoryNeed& need, const std::vector<MemoryShare>& shares, const TrainingOptions& options,
    const MemoryQuestion& question,
    const std::function<absl::Status(const TrainingOptions&, const StrategyRow&)>& check) {
  const std::string device = question.device.name();
  size_t each = SIZE_MAX;  // what fits into all shares if every rank needs it
  bool fits = true;
  for (const MemoryShare& share : shares) {
    each = std::min(each, share.memory.free / static_cast<size_t>(share.ranks));
    fits = fits && CheckMemory(need, share, question.max_batch, device).ok();
  }
  if (fits) return absl::OkStatus();
  std::string remedy;
  if (question.workers > 1) {
    const std::vector<std::string> others = LayoutsThatFit(options, question, each, check);
    remedy = others.empty() ? Tr("; no layout of $0 workers fits", question.workers)
                            : Tr("; layouts of $0 workers that fit, those that send least first: $1",
                                 question.workers, absl::StrJoin(others, "; "));
  }
  for (const MemoryShare& share : shares) {
    PSRING_RETURN_IF_ERROR(CheckMemory(need, share, question.max_batch, device, remedy));
  }
  return absl::OkStatus();
}

}  // namespace psring
