#include "experiments/design/layouts.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <map>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/check.h"
#include "common/base/errors.h"
#include "common/text/translate.h"
#include "experiments/design/plan.h"
#include "trainer/programs/cuts.h"
#include "trainer/programs/pipeline_flags.h"

namespace psring {
namespace {

constexpr int kMaxDefaultMicroBatches = 4096;

// `training` in `layout`; its replicas share `micro_batches`. A pipeline has a program, and is cut at `cuts`.
TrainingOptions InLayout(const CompareOptions& options, TrainingOptions training, const Layout& layout,
                         const std::string& program, int micro_batches, const std::string& cuts) {
  training.micro_batches = micro_batches / layout.dp;
  training.tp = layout.tp;
  training.sequence_parallel = training.sequence_parallel && layout.tp > 1;
  training.cp = layout.cp;
  if (layout.cp == 1) training.context_parallel = TrainingOptions().context_parallel;
  if (layout.replica_ranks() > 1) training.rank_order = options.rank_order;
  if (layout.pp == 1) return training;
  training.pp = layout.pp;
  training.program = program;
  training.cuts = cuts;
  return training;
}

// Those of a step in `layout`: without a pipeline only the first number is compared.
std::vector<int> MicroBatchesOf(const CompareOptions& options, const Layout& layout) {
  if (layout.pp > 1) return options.micro_batches;
  return {options.micro_batches.front()};
}

// The values of --cuts in `layout`.
std::vector<std::string> CutsOf(const CompareOptions& options, const Layout& layout, const Probe& probe) {
  if (options.cuts != kAllCuts || layout.pp == 1) return {options.cuts};
  std::vector<std::string> cuts;
  const size_t all = probe.cuts.size(), count = std::min(all, kMaxCuts);
  for (size_t i = 0; i < count; ++i) {
    cuts.push_back(absl::StrCat(probe.cuts[count == 1 ? 0 : i * (all - 1) / (count - 1)]));
  }
  return cuts;
}

// With kAllCuts a pipeline has one cut.
absl::Status CheckAllCuts(const Layout& layout, const std::string& program) {
  PSRING_ASSIGN_OR_RETURN(const NamedProgram named, FindPipelineProgram(program));
  if (layout.pp == 1 || layout.pp * named.chunks == 2) return absl::OkStatus();
  return InvalidTr("--cuts all compares the places of one cut, but $0 $1 has $2 stages; name their layers",
                   layout.name(), program, layout.pp * named.chunks);
}

// Those that are compared beside the references.
absl::StatusOr<std::vector<StrategyRow>> StrategiesOf(const CompareOptions& options) {
  std::vector<StrategyRow> compared;
  for (const std::string& name : options.strategies) {
    if (name == "single" || name == "none") continue;
    PSRING_ASSIGN_OR_RETURN(compared.emplace_back(), FindStrategy(name));
  }
  if (!compared.empty()) return compared;
  return InvalidTr("layouts are compared with strategies that send gradients, such as ring; name one, not $0",
                   absl::StrJoin(options.strategies, Tr(", ")));
}

// InvalidArgument: flags or the strategy do not suit `layout`.
absl::Status CheckLayout(const CompareOptions& options, const StrategyRow& strategy, const Layout& layout,
                         const std::string& program) {
  const bool all_cuts = options.cuts == kAllCuts;
  if (all_cuts) PSRING_RETURN_IF_ERROR(CheckAllCuts(layout, program));
  const int most = std::max(layout.dp, std::ranges::max(MicroBatchesOf(options, layout)));
  return CheckPipelineFlags(
      InLayout(options, options.training, layout, program, most, all_cuts ? "" : options.cuts), strategy,
      layout.workers());
}

absl::Status CheckTensorRanks(int ranks, const Probe& probe) {
  if (ranks == 1 || !probe.tensor_ranks || std::ranges::count(*probe.tensor_ranks, ranks) > 0)
    return absl::OkStatus();
  return InvalidTr("this model supports only --tp $0", absl::StrJoin(*probe.tensor_ranks, Tr(" or ")));
}

std::vector<std::pair<Layout, std::string>> LayoutsInPrograms(const CompareOptions& options) {
  std::vector<std::pair<Layout, std::string>> all;
  for (const Layout& layout : options.layouts) {
    for (const std::string& program : options.programs) all.emplace_back(layout, program);
  }
  return all;
}

// Of several strategies and programs, each must suit another one, a program in a pipeline. InvalidArgument:
// why one does not.
absl::Status CheckCombinations(const CompareOptions& options, const std::vector<StrategyRow>& strategies) {
  std::map<std::string, std::vector<absl::Status>> checked;  // by strategy, and by program
  for (const StrategyRow& strategy : strategies) {
    for (const auto& [layout, program] : LayoutsInPrograms(options)) {
      const absl::Status status = CheckLayout(options, strategy, layout, program);
      checked[strategy.name].push_back(status);
      if (layout.pp > 1) checked[program].push_back(status);
    }
  }
  for (const auto& [name, statuses] : checked) {
    if (std::ranges::none_of(statuses, &absl::Status::ok)) return statuses.front();
  }
  return absl::OkStatus();
}

// Layouts of --layouts auto, and each combination of several strategies and programs, are not the user's
// choice. InvalidArgument: why one is left out.
absl::Status CheckTried(const CompareOptions& options, const StrategyRow& strategy, const Layout& layout,
                        const std::string& program, const Probe& probe) {
  if (layout.replica_ranks() == 1) return absl::OkStatus();
  if (!options.tries_layouts) {
    return options.strategies.size() > 1 ? CheckLayout(options, strategy, layout, program) : absl::OkStatus();
  }
  PSRING_ASSIGN_OR_RETURN(const NamedProgram named, FindPipelineProgram(program));
  const int stages = layout.pp * named.chunks, most = static_cast<int>(probe.cuts.size()) + 1;
  if (layout.pp > 1 && stages > most) return InvalidTr("the model can be cut into at most $0 stages", most);
  PSRING_RETURN_IF_ERROR(CheckTensorRanks(layout.tp, probe));
  return CheckLayout(options, strategy, layout, program);
}

}  // namespace

std::vector<Layout> SupportedLayouts(int workers) {
  // The axes on which a replica is divided.
  constexpr int Layout::*kAxes[] = {&Layout::pp, &Layout::tp, &Layout::cp};
  std::vector<Layout> layouts = {{.dp = workers}};
  for (int Layout::*const axis : kAxes) {
    const std::vector<Layout> undivided = layouts;
    for (const Layout& layout : undivided) {
      for (int ranks = 2; ranks <= layout.dp; ++ranks) {
        if (layout.dp % ranks != 0) continue;
        layouts.push_back(layout);
        layouts.back().dp /= ranks;
        layouts.back().*axis = ranks;
      }
    }
  }
  std::ranges::stable_sort(layouts, std::greater<>(), &Layout::dp);
  return layouts;
}

std::vector<std::string> LayoutNotes(const CompareOptions& options, const Probe& probe) {
  std::vector<std::string> notes = {
      Tr("every layout computes the same $0 samples per step (strong scaling); --global_batch sets another "
         "number",
         options.training.global_batch)};
  if (options.cuts == kAllCuts) {
    notes.push_back(Tr("--cuts all: $0 of the $1 layers before which two stages can be cut, evenly spread",
                       std::min(probe.cuts.size(), kMaxCuts), probe.cuts.size()));
  }
  std::map<std::string, std::vector<std::string>> left_out;  // by reason
  const auto strategies = StrategiesOf(options).value_or(std::vector<StrategyRow>());
  for (const StrategyRow& strategy : strategies) {
    for (const auto& [layout, program] : LayoutsInPrograms(options)) {
      const absl::Status tried = CheckTried(options, strategy, layout, program, probe);
      if (tried.ok()) continue;
      const bool one = layout.pp == 1 || options.programs.size() == 1;
      std::vector<std::string>& names = left_out[std::string(tried.message())];
      const std::string name = absl::StrCat(strategies.size() > 1 ? strategy.name + " " : "", layout.name(),
                                            one ? "" : " ", one ? "" : program);
      if (std::ranges::count(names, name) == 0) names.push_back(name);
    }
  }
  for (const auto& [folder, reason] : probe.too_large)
    notes.push_back(Tr("--layouts auto leaves out $0", reason));
  for (const auto& [reason, names] : left_out) {
    const std::string all = absl::StrJoin(names, ", ");
    notes.push_back(options.tries_layouts ? Tr("--layouts auto leaves out $0: $1", all, reason)
                                          : Tr("not compared: $0: $1", all, reason));
  }
  return notes;
}

absl::StatusOr<std::vector<Layout>> ParseLayouts(const std::string& text) {
  std::vector<Layout> layouts;
  for (const absl::string_view name : absl::StrSplit(text, ',')) {
    const absl::StatusOr<Layout> layout = ParseLayout(name, kMaxWorkers);
    if (!layout.ok()) return InvalidArgument("--layouts: ", layout.status().message());
    if (std::ranges::find(layouts, *layout) != layouts.end()) {
      return InvalidTr("$0 names $1 twice; name it once", "--layouts", layout->name());
    }
    layouts.push_back(*layout);
  }
  return layouts;
}

int DefaultMicroBatches(const std::vector<Layout>& layouts) {
  int least = 1, each = 1;
  for (const Layout& layout : layouts) {
    if (layout.pp > 1) least = std::max(least, kMicroBatchesPerRank * layout.pp);
    const int together = std::lcm(each, layout.dp);
    if (together <= kMaxDefaultMicroBatches) each = together;
  }
  return (least + each - 1) / each * each;
}

absl::Status CheckPartsOf(const TrainingOptions& training, const Probe& probe) {
  PSRING_RETURN_IF_ERROR(CheckTensorRanks(training.tp, probe));
  if (training.pp == 1 || !probe.cut_points) return absl::OkStatus();
  PSRING_ASSIGN_OR_RETURN(const NamedProgram program, FindPipelineProgram(training.program));
  const int stages = training.pp * program.chunks;
  PSRING_RETURN_IF_ERROR(CheckStageCount(*probe.cut_points, stages));
  PSRING_ASSIGN_OR_RETURN(const std::vector<size_t> cuts, ParseCuts(training.cuts, stages));
  return CheckCutPoints(*probe.cut_points, cuts);
}

bool LayoutsLearnDifferently(const CompareOptions& options) {
  const auto references = [](const std::string& name) { return name == "single" || name == "none"; };
  const auto several = std::ssize(options.strategies) - std::ranges::count_if(options.strategies, references);
  return several > 1 || std::ranges::any_of(LayoutsInPrograms(options), [](const auto& one) {
           const absl::StatusOr<NamedProgram> program = FindStepProgram(one.second);
           return one.first.pp > 1 && program.ok() && program->row.asynchronous;
         });
}

absl::Status CheckLayouts(const CompareOptions& options) {
  const TrainingOptions& training = options.training;
  if (options.layouts.empty()) {
    PSRING_ASSIGN_OR_RETURN(
        const StrategyRow first,
        FindStrategy(options.strategies.empty() ? training.strategy : options.strategies.front()));
    return CheckPipelineFlags(training, first, options.workers.front());
  }
  if (training.clock == "virtual") {
    return InvalidTr("--clock virtual has no model of layouts; omit it, or --layouts");
  }
  if (training.context_parallel != TrainingOptions().context_parallel &&
      std::ranges::none_of(options.layouts, [](const Layout& layout) { return layout.cp > 1; })) {
    return InvalidTr(
        "--context_parallel needs a layout that divides sequences; add --layouts cp2, for example, or "
        "omit it");
  }
  PSRING_ASSIGN_OR_RETURN(const std::vector<StrategyRow> strategies, StrategiesOf(options));
  for (const std::string& program : options.programs) {
    PSRING_RETURN_IF_ERROR(FindPipelineProgram(program).status());
  }
  if (strategies.size() > 1 && !options.tries_layouts) {
    PSRING_RETURN_IF_ERROR(CheckCombinations(options, strategies));
  } else {
    for (const auto& [layout, program] : LayoutsInPrograms(options)) {
      if (options.tries_layouts && layout.replica_ranks() > 1) continue;  // CheckTried
      PSRING_RETURN_IF_ERROR(CheckLayout(options, strategies.front(), layout, program));
    }
  }
  for (const Layout& layout : options.layouts) {
    for (const int count : MicroBatchesOf(options, layout)) {
      if (count % layout.dp == 0) continue;
      return InvalidTr(
          "--micro_batches $0: the $1 replicas of $2 cannot share them equally; use a multiple of $1, "
          "such as $3, or omit $2",
          count, layout.dp, layout.name(), (count / layout.dp + 1) * layout.dp);
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<Configuration>> LayoutConfigurations(const CompareOptions& options,
                                                                const TrainingOptions& training,
                                                                const Probe& probe, int cores) {
  if (options.cuts == kAllCuts && probe.cuts.empty()) {
    return InvalidTr("this model cannot be cut into stages; omit --pp");
  }
  std::vector<Configuration> configurations;
  const auto add = [&](const std::string& strategy, const Layout& layout, const std::string& program,
                       int micro_batches) -> absl::Status {
    for (const std::string& cuts : CutsOf(options, layout, probe)) {
      TrainingOptions of_one = InLayout(options, training, layout, program, micro_batches, cuts);
      for (const int copy_streams : options.copy_streams) {
        if (layout.pp > 1) of_one.copy_streams = copy_streams;
        for (const int servers : options.servers) {
          for (const std::string& wire : options.server_wires) {
            of_one.servers = servers;
            of_one.server_wire = wire;
            PSRING_ASSIGN_OR_RETURN(Configuration configuration,
                                    MakeConfiguration(strategy, layout.workers(), of_one, probe, cores));
            configuration.names_micro_batches = options.micro_batches.size() > 1;
            configuration.names_cuts = options.cuts == kAllCuts && layout.pp > 1;
            if (!probe.too_large.contains(configuration.folder())) AddIfNew(configuration, configurations);
          }
        }
      }
    }
    return absl::OkStatus();
  };
  const int first = options.micro_batches.front();
  const std::string& program = options.programs.front();
  PSRING_RETURN_IF_ERROR(add("single", Layout(), program, first));
  for (const Layout& layout : options.layouts) {
    if (layout.replica_ranks() == 1) PSRING_RETURN_IF_ERROR(add("none", layout, program, first));
  }
  PSRING_ASSIGN_OR_RETURN(const std::vector<StrategyRow> strategies, StrategiesOf(options));
  for (const StrategyRow& strategy : strategies) {
    for (const auto& [layout, compared] : LayoutsInPrograms(options)) {
      if (!CheckTried(options, strategy, layout, compared, probe).ok()) continue;
      for (const int count : MicroBatchesOf(options, layout)) {
        PSRING_RETURN_IF_ERROR(add(strategy.name, layout, compared, count));
      }
    }
  }
  std::ranges::stable_sort(configurations, {}, &Configuration::workers);
  return configurations;
}

}  // namespace psring
