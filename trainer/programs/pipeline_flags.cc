#include "trainer/programs/pipeline_flags.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/check.h"
#include "common/base/errors.h"
#include "common/cli/command_line.h"
#include "common/text/translate.h"
#include "trainer/models/table/model_table.h"
#include "trainer/programs/mesh.h"

namespace psring {
namespace {

constexpr int kMaxLayers = 1 << 16;
constexpr int64_t kMaxStagePasses = int64_t{1} << 20;  // every rank plans all: about 1 GB

const GivenFlag* FirstGiven(const std::vector<GivenFlag>& flags) {
  const auto flag = std::ranges::find_if(flags, &GivenFlag::given);
  return flag == flags.end() ? nullptr : &*flag;
}

// What needs the whole model on each rank. Of 16 bits a rank has rounding errors of its part only, not of the
// model that a checkpoint contains.
std::vector<GivenFlag> OfWholeModels(const TrainingOptions& o) {
  const TrainingOptions standard;
  return {{o.cuda_graph, "--cuda_graph"},
          {o.clock == "virtual", "--clock virtual"},
          {o.local_aggregation, "--local_aggregation"},
          {o.sync_batch_norm, "--sync_batch_norm"},
          {o.reference_workers > 1, "--reference_workers"},
          {o.straggler != standard.straggler, "--straggler"},
          {o.jitter_ms != standard.jitter_ms, "--jitter_ms"},
          {o.on_worker_loss == "continue", "--on_worker_loss continue"},
          {o.wire != standard.wire && (Checkpoints(o) || !o.resume.empty()),
           absl::StrCat("--wire ", o.wire, Tr(" with checkpoints"))}};
}

// `workers` are a mesh of replicas, of which the strategy must allow several.
absl::Status CheckReplicas(const TrainingOptions& o, const StrategyRow& strategy, int workers) {
  PSRING_ASSIGN_OR_RETURN(const Mesh mesh, Mesh::Create(workers, o.pp, o.rank_order, o.tp, o.cp));
  if (!strategy.single_process || mesh.replicas() == 1) return absl::OkStatus();
  std::vector<std::string> axes;
  if (o.pp > 1) axes.push_back(absl::StrCat("--pp ", o.pp));
  if (o.tp > 1) axes.push_back(absl::StrCat("--tp ", o.tp));
  if (o.cp > 1) axes.push_back(absl::StrCat("--cp ", o.cp));
  return InvalidTr(
      "--strategy $0 has one replica of the model, but $1 workers with $4 have $3; use --workers $2, or an "
      "all-reduce strategy such as ring",
      strategy.name, workers, ReplicaRanks(o), mesh.replicas(), absl::StrJoin(axes, " "));
}

std::vector<std::string> Transformers() {
  std::vector<std::string> names;
  for (const ModelRow& row : ModelRows()) {
    if (row.size.heads != ModelSize::kFixed) names.emplace_back(row.name);
  }
  return names;
}

// Their first and last stages share a tensor.
bool IsTransformer(const TrainingOptions& o) {
  const absl::StatusOr<const ModelRow*> row = FindModelRow(o.model);
  return o.workload.empty() && row.ok() && (*row)->size.heads != ModelSize::kFixed;
}

// All ranks of a replica take the same steps: no server drops a gradient.
bool TakesEveryStep(const StrategyRow& strategy) { return !strategy.uses_group && !strategy.drops_gradients; }

absl::Status CheckTensorFlags(const TrainingOptions& o, const StrategyRow& strategy) {
  const absl::StatusOr<NamedProgram> program = FindStepProgram(o.program);
  std::vector<GivenFlag> wrong = OfWholeModels(o);
  // Weight gradients that follow later would not be computed while the gradients of inputs are added up.
  const bool divides_backward = o.pp > 1 && program.ok() && program->row.divides_backward;
  // Sums within layers are not proved beside updates.
  const bool has_no_flush = o.pp > 1 && program.ok() && program->row.asynchronous;
  wrong.insert(wrong.begin(), {{divides_backward || has_no_flush, absl::StrCat("--program ", o.program)},
                               {strategy.uses_servers && o.clip_norm > 0,
                                absl::StrCat(strategy.name, Tr(" with --clip_norm"))}});
  if (const GivenFlag* const flag = FirstGiven(wrong); flag != nullptr) {
    return InvalidTr("--tp and $0 exclude each other; omit one of them", flag->name);
  }
  // Servers of different shares would add up the gradients of what each of them has in different orders.
  const bool other_servers = strategy.uses_servers && (!TakesEveryStep(strategy) || strategy.asynchronous());
  if (strategy.replicates || other_servers) {
    return InvalidTr(
        "--tp does not support --strategy $0; use an all-reduce strategy such as ring or zero1, ps-sync, or "
        "single with one replica",
        strategy.name);
  }
  const std::string& backend = o.backend.empty() ? strategy.backend : o.backend;
  if (backend == "mpi" || backend == "nccl") {
    return InvalidTr(
        "--tp does not support $0, which has one call in progress at a time; choose native or gloo", backend);
  }
  if (o.sequence_parallel && backend == "gloo") {
    return InvalidTr("--sequence_parallel does not support gloo, which has no reduce-scatter; choose native");
  }
  PSRING_ASSIGN_OR_RETURN(const ModelRow* const row, FindModelRow(o.model));
  if (!IsTransformer(o)) {
    return InvalidTr("--tp divides the matrices of transformers ($0); omit it for $1",
                     absl::StrJoin(Transformers(), ", "),
                     o.workload.empty() ? o.model : absl::StrCat("--workload ", o.workload));
  }
  const int heads = o.heads > 0 ? o.heads : row->size.heads;
  const int context = o.context > 0 ? o.context : row->size.context;
  std::vector<int> possible;
  for (int ranks = 2; ranks <= heads; ++ranks) {
    if (heads % ranks == 0 && (!o.sequence_parallel || context % ranks == 0)) possible.push_back(ranks);
  }
  const std::string use = possible.empty() ? "1" : absl::StrJoin(possible, Tr(" or "));
  if (heads % o.tp != 0) {
    return InvalidTr("--tp $0 does not divide the $1 heads of $2; use --tp $3, or other --heads", o.tp, heads,
                     o.model, use);
  }
  if (!o.sequence_parallel || context % o.tp == 0) return absl::OkStatus();
  return InvalidTr(
      "--sequence_parallel: --tp $0 does not divide the context of $1 tokens; use --tp $2, another "
      "--context, or omit --sequence_parallel",
      o.tp, context, use);
}

absl::Status CheckContext(const TrainingOptions& o, int context) {
  const int chunks_per_rank = ContextParallelOf(o.context_parallel).chunks_per_rank;
  const auto chunks_of = [&](int64_t ranks) { return ranks * chunks_per_rank; };
  const int64_t chunks = chunks_of(o.cp);
  if (context % chunks == 0) return absl::OkStatus();
  std::vector<int64_t> possible;
  for (int64_t ranks = 2; chunks_of(ranks) <= context; ++ranks) {
    if (context % chunks_of(ranks) == 0 && (possible.empty() || ranks <= o.cp)) possible = {ranks};
  }
  const std::string text =
      Tr("--cp $0 cuts a sequence into $1 equal chunks, but --context is $2; use --context $3", o.cp, chunks,
         context, (context / chunks + 1) * chunks);
  return absl::InvalidArgumentError(
      possible.empty() ? text : absl::StrCat(text, Tr(", or --$1 $0", possible[0], "cp")));
}

absl::Status CheckSequenceFlags(const TrainingOptions& o, const StrategyRow& strategy) {
  std::vector<GivenFlag> wrong = OfWholeModels(o);
  wrong.insert(wrong.begin(), {o.sequence_parallel, "--sequence_parallel"});
  if (const GivenFlag* const flag = FirstGiven(wrong); flag != nullptr) {
    return InvalidTr("--cp and $0 exclude each other; omit one of them", flag->name);
  }
  if (!strategy.uses_group || strategy.uses_servers) {
    return InvalidTr(
        "--cp does not support --strategy $0: the ranks of a sequence add up their gradients; use an "
        "all-reduce strategy such as ring, zero1 or fsdp",
        strategy.name);
  }
  const std::string& backend = o.backend.empty() ? strategy.backend : o.backend;
  if (backend == "mpi" || backend == "nccl") {
    return InvalidTr(
        "--cp does not support $0, which has one call in progress at a time; choose native or gloo", backend);
  }
  PSRING_ASSIGN_OR_RETURN(const ModelRow* const row, FindModelRow(o.model));
  if (row->size.context != ModelSize::kFixed && o.workload.empty()) {
    const int heads = (o.heads > 0 ? o.heads : row->size.heads) / o.tp;  // of each rank
    if (!ContextParallelOf(o.context_parallel).uses_ring && heads % o.cp != 0) {
      return InvalidTr(
          "--context_parallel ulysses: --cp $0 does not divide the $1 heads of each worker; use "
          "--context_parallel ring, or other --heads",
          o.cp, heads);
    }
    return CheckContext(o, o.context > 0 ? o.context : row->size.context);
  }
  return InvalidTr("--cp divides the sequences of transformers ($0); omit it for $1",
                   absl::StrJoin(Transformers(), ", "),
                   o.workload.empty() ? o.model : absl::StrCat("--workload ", o.workload));
}

}  // namespace

void AddPrograms(CLI::App& app) {
  std::vector<std::string> names;
  for (const ProgramRow& row : ProgramRows()) {
    if (!row.one_rank) names.push_back(row.display_name());
  }
  CLI::Option* const program = app.get_option("--program");
  program->description(absl::StrCat(program->get_description(), " ", absl::StrJoin(names, ", ")));
}

absl::StatusOr<NamedProgram> FindPipelineProgram(const std::string& name) {
  absl::StatusOr<NamedProgram> program = FindStepProgram(name);
  if (!program.ok()) return Prefixed(program.status(), "--program: ");
  if (!program->row.one_rank) return program;
  return InvalidTr("program $0 does not cut the model; use another --program, or omit --pp", name);
}

bool UpdatesWithoutFlush(const TrainingOptions& o) {
  const absl::StatusOr<NamedProgram> program = FindStepProgram(o.program);
  return o.pp > 1 && program.ok() && program->row.asynchronous;
}

std::string UpdateRuleOf(const TrainingOptions& o, const std::string& strategy) {
  return UpdatesWithoutFlush(o) ? kWithoutFlush : strategy;
}

TrainingOptions WithoutFlush(TrainingOptions options) {
  const auto row = std::ranges::find_if(ProgramRows(), &ProgramRow::asynchronous);
  if (UpdatesWithoutFlush(options) || row == ProgramRows().end()) return options;
  options.pp = 2;
  options.program = row->name;
  return options;
}

int TiedEvery(const TrainingOptions& o) {
  const absl::StatusOr<const ModelRow*> row = FindModelRow(o.model);
  const bool shares = o.workload.empty() && row.ok() && (*row)->size.heads != ModelSize::kFixed;
  if (!shares || !UpdatesWithoutFlush(o)) return 0;
  const absl::StatusOr<StepProgram> program = MakeStepProgram(*FindStepProgram(o.program), o.pp, 1);
  return program.ok() ? program->update_every : 0;
}

int UpdatesOfStep(const TrainingOptions& o) {
  if (!UpdatesWithoutFlush(o)) return 1;
  const absl::StatusOr<StepProgram> program =
      MakeStepProgram(*FindStepProgram(o.program), o.pp, o.micro_batches);
  return program.ok() ? program->updates() : 1;
}

// A stage updates its weights while others compute with theirs.
absl::Status CheckWithoutFlush(const TrainingOptions& o, const StrategyRow& strategy) {
  const std::vector<GivenFlag> wrong = {
      {strategy.uses_servers || strategy.shards_updates, absl::StrCat("--strategy ", strategy.name)},
      {o.clip_norm > 0, "--clip_norm"},
      {o.wire != TrainingOptions().wire, "--wire"}};
  const GivenFlag* const flag = FirstGiven(wrong);
  if (!UpdatesWithoutFlush(o) || flag == nullptr) return absl::OkStatus();
  return InvalidTr(
      "--program $0 updates each stage on its own and does not support $1; use an all-reduce strategy such "
      "as ring without --clip_norm and --wire, or --program 1f1b",
      o.program, flag->name);
}

absl::StatusOr<std::vector<size_t>> ParseCuts(const std::string& cuts, int stages) {
  if (cuts.empty()) return std::vector<size_t>();
  PSRING_ASSIGN_OR_RETURN(const std::vector<int> layers, ParseCounts(cuts, kMaxLayers));
  const bool ascending = std::ranges::adjacent_find(layers, std::greater_equal<>()) == layers.end();
  if (ascending && static_cast<int>(layers.size()) == stages - 1) {
    return std::vector<size_t>(layers.begin(), layers.end());
  }
  return InvalidTr("--cuts $0: $1 stages need $2 cuts, in ascending order", cuts, stages, stages - 1);
}

absl::Status CheckBesidePp(bool has_pp, const std::vector<GivenFlag>& need_pp,
                           const std::vector<GivenFlag>& exclude_pp) {
  const GivenFlag* const flag = FirstGiven(has_pp ? exclude_pp : need_pp);
  if (flag == nullptr) return absl::OkStatus();
  return absl::InvalidArgumentError(has_pp
                                        ? Tr("--pp and $0 exclude each other; omit one of them", flag->name)
                                        : Tr("$0 needs --pp, the number of a pipeline's stages", flag->name));
}

absl::Status CheckRankOrder(const std::string& rank_order, bool divides_replica) {
  if (rank_order.empty() || divides_replica) return absl::OkStatus();
  return InvalidTr(
      "--rank_order needs --pp, --tp or --cp, by which several workers hold one replica of the model");
}

absl::Status CheckPipelineFlags(const TrainingOptions& o, const StrategyRow& strategy, int workers) {
  const TrainingOptions standard;
  std::vector<GivenFlag> wrong = OfWholeModels(o);
  // A server sees the gradient of its stages only, and asynchronous replicas are at different steps.
  wrong.insert(
      wrong.end(),
      {{strategy.uses_servers && o.clip_norm > 0, absl::StrCat(strategy.name, Tr(" with --clip_norm"))},
       {strategy.asynchronous() && Checkpoints(o), absl::StrCat(strategy.name, Tr(" with checkpoints"))}});
  PSRING_RETURN_IF_ERROR(CheckBesidePp(o.pp > 1,
                                       {{o.program != standard.program, "--program"},
                                        {!o.cuts.empty(), "--cuts"},
                                        {o.copy_streams != standard.copy_streams, "--copy_streams"}},
                                       wrong));
  PSRING_RETURN_IF_ERROR(CheckRankOrder(o.rank_order, ReplicaRanks(o) > 1));
  if (o.cp == 1 && o.context_parallel != standard.context_parallel) {
    return InvalidTr("--context_parallel needs --cp, the ranks that divide a sequence");
  }
  if (o.sequence_parallel && o.tp == 1) {
    return InvalidTr("--sequence_parallel needs --tp, the number of workers that divide matrices and tokens");
  }
  if (o.tp > 1) PSRING_RETURN_IF_ERROR(CheckTensorFlags(o, strategy));
  if (o.cp > 1) PSRING_RETURN_IF_ERROR(CheckSequenceFlags(o, strategy));
  if (o.pp == 1) return std::max(o.tp, o.cp) == 1 ? absl::OkStatus() : CheckReplicas(o, strategy, workers);
  PSRING_ASSIGN_OR_RETURN(const NamedProgram program, FindPipelineProgram(o.program));
  PSRING_RETURN_IF_ERROR(ParseCuts(o.cuts, o.pp * program.chunks).status());
  PSRING_RETURN_IF_ERROR(CheckWithoutFlush(o, strategy));
  if (o.recompute && program.row.divides_backward) {
    return InvalidTr(
        "--recompute and --program $0 exclude each other: its weight gradients follow later and need all "
        "activations; omit --recompute, or use 1f1b",
        o.program);
  }
  if (strategy.replicates || (strategy.uses_servers && !TakesEveryStep(strategy))) {
    return InvalidTr(
        "--pp does not support --strategy $0; use an all-reduce strategy such as ring, or ps-sync, "
        "ps-ssp:K or ps-async",
        strategy.name);
  }
  if (strategy.asynchronous() && IsTransformer(o) && workers > ReplicaRanks(o)) {
    return InvalidTr(
        "--pp does not support --strategy $0 for $1: its first and last stages share a tensor, and their "
        "servers would add the replicas' gradients to it in different orders; use ps-sync",
        strategy.name, o.model);
  }
  const std::string& backend = o.backend.empty() ? strategy.backend : o.backend;
  if (backend == "mpi" && strategy.algorithm != "default") {
    return InvalidTr(
        "--pp with --backend mpi and --strategy $0: MPI's all-reduce with a chosen algorithm would block the "
        "messages between stages; use --strategy mpi",
        strategy.name);
  }
  if (HasTables(o)) {
    return InvalidTr("--pp does not support the tables of $0; omit it, or use another --model", o.model);
  }
  if (int64_t{o.pp} * program.chunks * o.micro_batches > kMaxStagePasses) {
    return InvalidTr(
        "--pp $0 with --program $1 and --micro_batches $2: a step has at most $3 forward passes of stages; "
        "use fewer micro-batches",
        o.pp, o.program, o.micro_batches, kMaxStagePasses);
  }
  return CheckReplicas(o, strategy, workers);
}

namespace {

absl::Status CheckDpShard(const TrainingOptions& o, const StrategyRow& strategy, int replicas) {
  if (!strategy.shards_updates || o.clock == "virtual") {
    return InvalidTr(
        "--dp_shard is for zero1, zero2 and fsdp; omit it for $0",
        strategy.shards_updates ? "--clock virtual" : absl::StrCat("--strategy ", strategy.name));
  }
  if (replicas > 1 && replicas % o.dp_shard == 0) return absl::OkStatus();
  std::vector<int> possible;
  for (int ranks = 2; ranks <= replicas; ++ranks) {
    if (replicas % ranks == 0) possible.push_back(ranks);
  }
  if (possible.empty()) {
    return InvalidTr(
        "--dp_shard $0 needs several replicas of the model; use more "
        "--workers, or omit it",
        o.dp_shard);
  }
  return InvalidTr("--dp_shard $0 does not divide $1 replicas; use --dp_shard $2", o.dp_shard, replicas,
                   absl::StrJoin(possible, Tr(" or ")));
}

}  // namespace

absl::Status CheckShardFlags(const TrainingOptions& o, const StrategyRow& strategy, int replicas) {
  if (o.dp_shard > 0) PSRING_RETURN_IF_ERROR(CheckDpShard(o, strategy, replicas));
  const std::vector<GivenFlag> wrong = {{o.cuda_graph, "--cuda_graph"},
                                        {o.wire != TrainingOptions().wire, "--wire"},
                                        {o.clock == "virtual", "--clock virtual"}};
  const GivenFlag* const flag = FirstGiven(wrong);
  if (!strategy.shards_gradients || flag == nullptr) return absl::OkStatus();
  return InvalidTr("--strategy $0 does not support $1; omit it", strategy.name, flag->name);
}

}  // namespace psring
