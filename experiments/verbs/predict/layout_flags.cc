// The flags of psring predict --layouts.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/check.h"
#include "common/cli/command_line.h"
#include "common/text/translate.h"
#include "common/text/units.h"
#include "common/workloads/devices.h"
#include "experiments/verbs/predict/layout_answer.h"
#include "experiments/verbs/predict/pipeline_flags.h"

namespace psring {
namespace {

constexpr char kDefaultCluster[] = "dgx-h100", kDefaultDevice[] = "H100", kSearched[] = "auto";
constexpr int kMaxNamedWorkers = 1 << 20;

// Those that --layouts names; none: they are searched.
absl::StatusOr<std::vector<Layout>> NamedLayouts(const std::string& text) {
  std::vector<Layout> layouts;
  if (text == kSearched) return layouts;
  for (const absl::string_view name : absl::StrSplit(text, ',')) {
    const absl::StatusOr<Layout> layout = ParseLayout(name, kMaxNamedWorkers);
    if (!layout.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("--layouts: ", layout.status().message()));
    }
    if (std::ranges::find(layouts, *layout) != layouts.end()) {
      return absl::InvalidArgumentError(Tr("$0 names $1 twice; name it once", "--layouts", layout->name()));
    }
    layouts.push_back(*layout);
  }
  return layouts;
}

// What restricts the candidates.
absl::StatusOr<LayoutChoice> ChoiceOf(const RawPredictFlags& raw, const PredictFlags& flags) {
  LayoutChoice choice{.context_parallel = raw.context_parallel, .micro_batches = raw.micro_batches};
  PSRING_ASSIGN_OR_RETURN(choice.layouts, NamedLayouts(raw.layouts));
  for (const Layout& layout : choice.layouts) {
    if (layout.workers() == flags.workers.front()) continue;
    return absl::InvalidArgumentError(
        Tr("--layouts: $0 has $1 workers, not $2; name layouts with equally many workers", layout.name(),
           layout.workers(), flags.workers.front()));
  }
  if (raw.strategies.empty()) return choice;
  const StrategyTable& all = ShardingStrategies();
  for (const std::string& name : flags.strategies) {
    const absl::StatusOr<StrategyRow> row = FindStrategy(name, flags.strategies);
    if (!row.ok()) return row.status();
    if (std::ranges::find(all, row->name, &StrategyRow::name) == all.end()) {
      return absl::InvalidArgumentError(
          Tr("--layouts: $0 is not a strategy of the replicas; use one of $1", name,
             absl::StrJoin(all, ", ", [](std::string* out, const StrategyRow& one) { *out += one.name; })));
    }
    choice.strategies.push_back(row->name);
  }
  return choice;
}

// That each layout that is named is possible.
absl::Status CheckNamed(const PredictFlags& flags) {
  PSRING_ASSIGN_OR_RETURN(LayoutQuestion question, QuestionOf(flags));
  const std::vector<Layout>& named = flags.layouts.layouts;
  const auto all_lack = [&](int Layout::*axis) {
    return !named.empty() && std::ranges::all_of(named, [&](const Layout& one) { return one.*axis == 1; });
  };
  if (flags.sequence_parallel && all_lack(&Layout::tp)) {
    return InvalidTr(
        "--sequence_parallel needs a layout that divides matrices; add --layouts tp2, for example, or "
        "omit it");
  }
  if (!flags.layouts.context_parallel.empty() && all_lack(&Layout::cp)) {
    return InvalidTr(
        "--context_parallel needs a layout that divides sequences; add --layouts cp2, for example, or "
        "omit it");
  }
  for (const Layout& layout : flags.layouts.layouts) {
    if (layout.cp > 1 && flags.sequence_parallel) {
      return absl::InvalidArgumentError(Tr("$0 and $1 exclude each other; omit one of them",
                                           absl::StrCat("--layouts ", layout.name()), "--sequence_parallel"));
    }
    question.choice.layouts = {layout};
    if (!LayoutCandidates(question).empty()) continue;
    return absl::InvalidArgumentError(
        Tr("--layouts $0 does not divide the $1 heads, $2 tokens, $3 blocks of layers or $4 samples of $5, "
           "or nodes of $6 devices; use another layout, --batch or --micro_batches",
           layout.name(), question.model.heads, question.model.tokens, question.model.layers.size(),
           question.global_batch, question.model.name, question.cluster.gpus_per_node));
  }
  return absl::OkStatus();
}

}  // namespace

void AddLayoutFlags(CLI::App& verb, RawPredictFlags& raw) {
  const char* group = "Layouts";
  verb.add_option(
          "--layouts", raw.layouts,
          absl::StrCat(
              "auto: search replicas (dp), stages (pp), tensor parallelism (tp), context parallelism (cp, "
              "of sequences of which each device keeps at least ",
              kMinDividedTokens,
              " tokens), zero1, zero2 and fsdp "
              "(fsdp of 8: --dp_shard 8), programs and micro-batches of a transformer on --workers "
              "devices, and show the best five "
              "that fit into their memory. Or compare these, such as dp4,dp2xcp2. --batch times --workers "
              "is the global batch; --strategies and --micro_batches restrict both. Default: "
              "llama_8b on 8 devices of dgx-h100"))
      ->group(group)
      ->option_text("NAME,...|auto");
  verb.add_option("--memory", raw.memory, "Memory of a device for --layouts, such as 80GB [that of --device]")
      ->group(group)
      ->option_text("BYTES")
      ->check(ParsedBy(ParseByteSize));
  verb.add_flag("--sequence_parallel", raw.sequence_parallel,
                "For --layouts: tensor-parallel devices divide the tokens between matrices, too")
      ->group(group);
  verb.add_option("--context_parallel", raw.context_parallel,
                  "For --layouts with cp: what attention exchanges: ring, contiguous or ulysses [ring, and "
                  "ulysses if cp divides the heads]")
      ->group(group)
      ->option_text("KIND")
      ->check(OneOf(ContextParallelNames()));
}

RawPredictFlags WithLayoutDefaults(RawPredictFlags raw) {
  if (raw.layouts.empty()) return raw;
  if (raw.workload.empty()) raw.workload = "llama_8b";
  if (raw.workers.empty()) {
    const absl::StatusOr<std::vector<Layout>> named = NamedLayouts(raw.layouts);  // ChoiceOf has its error
    raw.workers = named.ok() && !named->empty() ? absl::StrCat(named->front().workers()) : "8";
  }
  if (raw.link.empty() && raw.cluster.empty() && raw.profile.empty()) {
    raw.cluster = kDefaultCluster;
    if (raw.device.empty() && raw.compute_speedup == 1) raw.device = kDefaultDevice;
  }
  return raw;
}

absl::Status UnderstandLayoutSearch(const RawPredictFlags& raw, PredictFlags& flags) {
  if (raw.layouts.empty()) {
    for (const auto& [given, name] : {std::pair(raw.sequence_parallel, "--sequence_parallel"),
                                      {!raw.context_parallel.empty(), "--context_parallel"},
                                      {!raw.memory.empty(), "--memory"}}) {
      if (!given) continue;
      return absl::InvalidArgumentError(Tr("$0 needs --layouts: auto, or names such as dp4,dp2xcp2", name));
    }
    return absl::OkStatus();
  }
  const RawPredictFlags standard;
  std::vector<GivenFlag> excluded = {
      {raw.pp > 0, "--pp"},
      {raw.wire != standard.wire, "--wire"},
      {raw.compute_varies != standard.compute_varies, "--compute_varies"},
      {raw.servers != standard.servers, "--servers"},
      {raw.server_placement != standard.server_placement, "--server_placement"},
      {raw.ps_schedule != standard.ps_schedule, "--ps_schedule"},
      {!raw.server_wire.empty(), "--server_wire"},
      {raw.server_add_ns.has_value(), "--server_add_ns"},
      {raw.server_update_ns.has_value(), "--server_update_ns"},
      {raw.server_worker_ns.has_value(), "--server_worker_ns"},
      {raw.bucket_mb != standard.bucket_mb, "--bucket_mb"},
      {raw.seed != standard.seed, "--seed"},
      {raw.system != standard.system && raw.system != "none", absl::StrCat("--system ", raw.system)},
      {raw.network != standard.network, "--network"},
      {raw.window_mb.has_value(), "--window_mb"},
      {!raw.connection.empty(), "--connection"},
      {!raw.barrier.empty(), "--barrier"}};
  for (const std::vector<GivenFlag>& others : {FlagsOfPipelines(raw), FlagsOfReplicas(raw)}) {
    excluded.insert(excluded.end(), others.begin(), others.end());
  }
  for (const auto& [given, name] : excluded) {
    if (!given || name == "--micro_batches") continue;
    return absl::InvalidArgumentError(
        Tr("$0 and $1 exclude each other; omit one of them", "--layouts", name));
  }
  if (flags.workers.size() != 1) {
    return absl::InvalidArgumentError(Tr("--layouts needs one number of --workers, such as 1024"));
  }
  flags.sequence_parallel = raw.sequence_parallel;
  flags.memory_bytes = static_cast<double>(ParseByteSize(raw.memory).value_or(0));
  if (raw.memory.empty()) flags.memory_bytes = MostMemoryOf(flags.workload.device);
  if (flags.memory_bytes <= 0) {
    return absl::InvalidArgumentError(Tr("--layouts needs the memory of a device, such as --memory 80GB"));
  }
  PSRING_RETURN_IF_ERROR(LayoutModelOf(flags.workload).status());
  PSRING_ASSIGN_OR_RETURN(flags.layouts, ChoiceOf(raw, flags));
  return CheckNamed(flags);
}

}  // namespace psring
