#include "trainer/programs/pipeline_flags.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdint>
#include <functional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/check.h"
#include "common/cli/command_line.h"
#include "common/text/translate.h"
#include "trainer/models/table/model_table.h"
#include "trainer/programs/mesh.h"

namespace psring {
namespace {

constexpr int kMaxLayers = 1 << 16;
constexpr int64_t kMaxStagePasses = int64_t{1} << 20;  // every rank plans all: about 1 GB

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
  if (!program.ok()) {
    return absl::Status(program.status().code(), absl::StrCat("--program: ", program.status().message()));
  }
  if (!program->row.one_rank) return program;
  return absl::InvalidArgumentError(
      Tr("program $0 does not cut the model; use another --program, or omit --pp", name));
}

absl::StatusOr<std::vector<size_t>> ParseCuts(const std::string& cuts, int stages) {
  if (cuts.empty()) return std::vector<size_t>();
  PSRING_ASSIGN_OR_RETURN(const std::vector<int> layers, ParseCounts(cuts, kMaxLayers));
  const bool ascending = std::ranges::adjacent_find(layers, std::greater_equal<>()) == layers.end();
  if (ascending && static_cast<int>(layers.size()) == stages - 1) {
    return std::vector<size_t>(layers.begin(), layers.end());
  }
  return absl::InvalidArgumentError(
      Tr("--cuts $0: $1 stages need $2 cuts, in ascending order", cuts, stages, stages - 1));
}

absl::Status CheckBesidePp(bool has_pp, const std::vector<GivenFlag>& need_pp,
                           const std::vector<GivenFlag>& exclude_pp) {
  const std::vector<GivenFlag>& wrong = has_pp ? exclude_pp : need_pp;
  const auto flag = std::ranges::find_if(wrong, &GivenFlag::given);
  if (flag == wrong.end()) return absl::OkStatus();
  return absl::InvalidArgumentError(has_pp
                                        ? Tr("--pp and $0 exclude each other; omit one of them", flag->name)
                                        : Tr("$0 needs --pp, the number of a pipeline's stages", flag->name));
}

absl::Status CheckPipelineFlags(const TrainingOptions& o, const StrategyRow& strategy, int workers) {
  const TrainingOptions standard;
  PSRING_RETURN_IF_ERROR(CheckBesidePp(
      o.pp > 1,
      {{o.program != standard.program, "--program"},
       {!o.cuts.empty(), "--cuts"},
       {!o.rank_order.empty(), "--rank_order"},
       {o.copy_streams != standard.copy_streams, "--copy_streams"}},
      {{o.cuda_graph, "--cuda_graph"},
       {o.clock == "virtual", "--clock virtual"},
       {o.local_aggregation, "--local_aggregation"},
       {o.sync_batch_norm, "--sync_batch_norm"},
       {o.reference_workers > 1, "--reference_workers"},
       {o.straggler != standard.straggler, "--straggler"},
       {o.jitter_ms != standard.jitter_ms, "--jitter_ms"},
       {o.on_worker_loss == "continue", "--on_worker_loss continue"},
       // Their gradient is reduced after every micro-batch, tied tensors only after the last.
       {strategy.shards_gradients, absl::StrCat("--strategy ", strategy.name)},
       // A server sees the gradient of its stages only, and asynchronous replicas are at different steps.
       {strategy.uses_servers && o.clip_norm > 0, absl::StrCat(strategy.name, Tr(" with --clip_norm"))},
       {strategy.asynchronous() && Checkpoints(o), absl::StrCat(strategy.name, Tr(" with checkpoints"))},
       // A rank's rounding errors are of its stages, not of the model that a checkpoint contains.
       {o.wire != standard.wire && (Checkpoints(o) || !o.resume.empty()),
        absl::StrCat("--wire ", o.wire, Tr(" with checkpoints"))}}));
  if (o.pp == 1) return absl::OkStatus();
  PSRING_ASSIGN_OR_RETURN(const NamedProgram program, FindPipelineProgram(o.program));
  PSRING_RETURN_IF_ERROR(ParseCuts(o.cuts, o.pp * program.chunks).status());
  if (o.recompute && program.row.divides_backward) {
    return absl::InvalidArgumentError(
        Tr("--recompute and --program $0 exclude each other: its weight gradients follow later and need all "
           "activations; omit --recompute, or use 1f1b",
           o.program));
  }
  // All ranks of a replica take the same steps: no server may drop a gradient or share steps out.
  const bool by_step = !strategy.uses_group && !strategy.drops_gradients && !strategy.shares_steps;
  if (strategy.replicates || (strategy.uses_servers && !by_step)) {
    return absl::InvalidArgumentError(
        Tr("--pp does not support --strategy $0; use an all-reduce strategy such as ring, or ps-sync or "
           "ps-ssp:K",
           strategy.name));
  }
  const std::string& backend = o.backend.empty() ? strategy.backend : o.backend;
  if (backend == "mpi" && strategy.algorithm != "default") {
    return absl::InvalidArgumentError(Tr(
        "--pp with --backend mpi and --strategy $0: MPI's all-reduce with a chosen algorithm would block the "
        "messages between stages; use --strategy mpi",
        strategy.name));
  }
  if (HasTables(o)) {
    return absl::InvalidArgumentError(
        Tr("--pp does not support the tables of $0; omit it, or use another --model", o.model));
  }
  if (int64_t{o.pp} * program.chunks * o.micro_batches > kMaxStagePasses) {
    return absl::InvalidArgumentError(Tr(
        "--pp $0 with --program $1 and --micro_batches $2: a step has at most $3 forward passes of stages; "
        "use fewer micro-batches",
        o.pp, o.program, o.micro_batches, kMaxStagePasses));
  }
  PSRING_ASSIGN_OR_RETURN(const Mesh mesh, Mesh::Create(workers, o.pp, o.rank_order));
  if (!strategy.single_process || mesh.replicas() == 1) return absl::OkStatus();
  return absl::InvalidArgumentError(
      Tr("--strategy $0 has one replica of the model, but $1 workers with --pp $2 have $3; use --workers $2, "
         "or an all-reduce strategy such as ring",
         strategy.name, workers, o.pp, mesh.replicas()));
}

}  // namespace psring
