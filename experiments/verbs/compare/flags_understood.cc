// Turns parsed flags into the verbs' options; contradictions are one-line errors.
#include <algorithm>
#include <climits>
#include <filesystem>
#include <utility>

#include "CLI/CLI.hpp"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/check.h"
#include "common/base/errors.h"
#include "common/cli/command_line.h"
#include "common/cli/delays.h"
#include "common/cuda/cuda_device.h"
#include "common/net/address.h"
#include "common/text/translate.h"
#include "experiments/design/launches.h"
#include "experiments/design/plan.h"
#include "experiments/design/rates.h"
#include "experiments/verbs/compare/compare.h"
#include "experiments/verbs/compare/prepare.h"
#include "trainer/programs/mesh.h"
#include "trainer/programs/pipeline_flags.h"

namespace psring {
namespace {

constexpr double kLinkOfCpus = 1e9;  // bit/s

// What a comparison trains if no model is named. On the default link a ring's exchange takes about as long as
// a step computes, and more than half of it is hidden, so several workers pay; one server's takes several
// times as long. One step of warm-up leaves time for the trainings, whose evaluations take seconds.
constexpr char kDefaultModel[] = "cnn";
constexpr int kDefaultBatch = 48, kDefaultWarmup = 1;

// `raw` with that model, and with the flags that choose it in `settled`.
RawExperimentFlags WithDefaultModel(RawExperimentFlags raw) {
  const auto given = [](const CLI::Option* option) { return option != nullptr && option->count() > 0; };
  TrainingOptions& training = raw.flags.options.training;
  // On a virtual clock, one core computes the gradients of all workers.
  if (given(raw.model) || !training.workload.empty() || training.clock == "virtual") return raw;
  training.model = kDefaultModel;
  raw.flags.settled = {absl::StrCat("--model=", training.model)};
  if (!given(raw.batch) && training.global_batch == 0) {
    training.batch = kDefaultBatch;
    raw.flags.settled.push_back(absl::StrCat("--batch=", training.batch));
  }
  if (training.warmup_steps == 0) {
    training.warmup_steps = kDefaultWarmup;
    raw.flags.settled.push_back(absl::StrCat("--warmup_steps=", training.warmup_steps));
  }
  return raw;
}

// By default a comparison runs on a virtual cluster with a rate that two cores can carry, except on GPUs,
// which have faster links, and with shared memory.
double DefaultLink(const RawExperimentFlags& raw, const std::vector<int>& workers) {
  if (raw.flags.nodes.several()) return 0;
  if (raw.flags.link.shaping == "none" || raw.flags.options.training.transport == "shm") return 0;
  const int gpus = CudaDeviceCount();
  return gpus == 0 || DeviceForAll(raw.flags.options.training, workers, gpus) == "cpu" ? kLinkOfCpus : 0;
}

template <typename Item>
absl::Status CheckNamedOnce(const std::string& flag, const std::vector<Item>& items) {
  for (auto item = items.begin(); item != items.end(); ++item) {
    if (std::find(items.begin(), item, *item) == item) continue;
    return InvalidTr("$0 names $1 twice; name it once", flag, *item);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<double>> ParseRates(const std::string& flag, absl::string_view list) {
  std::vector<double> rates;
  for (absl::string_view text : absl::StrSplit(list, ',')) {
    double rate = 0;
    if (!absl::SimpleAtod(text, &rate)) return InvalidArgument(flag, ": '", text, "'");
    rates.push_back(rate);
  }
  PSRING_RETURN_IF_ERROR(CheckNamedOnce(flag, rates));
  return rates;
}

absl::Status UnderstandRates(const RawExperimentFlags& raw, CompareOptions& options) {
  if (!raw.lrs.empty()) {
    PSRING_ASSIGN_OR_RETURN(options.lrs, ParseRates("--lr", raw.lrs));
    if (options.lrs.size() == 1) options.training.lr = options.lrs.front();
  }
  if (!raw.tune.empty()) {
    if (options.lrs.size() > 1) {
      return InvalidTr("--tune multiplies one rate per strategy; give one --lr or none, or omit --tune");
    }
    const size_t colon = raw.tune.find(':');
    PSRING_ASSIGN_OR_RETURN(
        options.lr_factors,
        ParseRates("--tune", colon == std::string::npos ? "0.5,1,2" : raw.tune.substr(colon + 1)));
    if (options.lr_factors.size() < 2) {
      return InvalidTr("--tune needs at least two rates; write lr:0.5,1,2");
    }
  }
  if (CountOfRates(options) == 0) return absl::OkStatus();
  if (!options.training.evaluate) {
    return InvalidTr("$0 selects a rate by accuracy, but nothing is evaluated; omit $1",
                     raw.tune.empty() ? "--lr with several rates" : "--tune",
                     options.training.workload.empty() ? "--no_eval" : "--workload");
  }
  if (options.training.validation == 0) options.training.validation = kValidationSamples;
  return absl::OkStatus();
}

absl::Status UnderstandScale(ExperimentFlags& flags) {
  TrainingOptions& training = flags.options.training;
  if (flags.link.scale == 1) return absl::OkStatus();
  training.time_scale = flags.link.scale;
  if (flags.link_is_default) {
    return InvalidTr(
        "--scale is for links that this machine cannot carry; add --link with their rate, such as 10gbit");
  }
  if (training.workload.empty()) {
    return InvalidTr(
        "--scale slows links and replayed computing, but a model computes at its own speed; add --workload");
  }
  if (training.compute_speedup / flags.link.scale < 1e-3) {
    return absl::InvalidArgumentError(
        "--compute_speedup divided by --scale is below 0.001; use a lower --scale");
  }
  if (training.jitter_ms != "none") {
    return absl::InvalidArgumentError("--scale does not slow the delays of --jitter_ms; omit one of them");
  }
  return absl::OkStatus();
}

absl::Status UnderstandLike(const RawExperimentFlags& raw, TrainingOptions& training) {
  if (raw.like.empty()) return absl::OkStatus();
  if (training.clock != "virtual") return InvalidTr("--like is for --clock virtual; give both");
  const std::string trace = absl::StrCat(kTracePrefix, raw.like);
  if (training.compute_ms.empty()) training.compute_ms = trace;
  if (training.network_ms == "none") training.network_ms = trace;
  PSRING_ASSIGN_OR_RETURN(const std::vector<LaunchNote> launches, ListLaunches(raw.like));
  for (const LaunchNote& launch : launches) {
    if (training.straggler == "none") training.straggler = FlagOf(launch, "--straggler", "none");
    if (training.jitter_ms == "none") training.jitter_ms = FlagOf(launch, "--jitter_ms", "none");
  }
  return absl::OkStatus();
}

// The part that both verbs share.
absl::StatusOr<ExperimentFlags> Understand(const RawExperimentFlags& raw,
                                           const std::vector<std::string>& command_line) {
  ExperimentFlags flags = raw.flags;
  flags.command_line = command_line;
  if (const std::string& bind = flags.nodes.network.bind; IsWildcard(bind)) {
    return InvalidTr("--bind $0 names no machine; give the address at which the others reach this one", bind);
  }
  CompareOptions& options = flags.options;
  PSRING_RETURN_IF_ERROR(ApplyModel(options.training));
  PSRING_RETURN_IF_ERROR(ApplyWorkload(options.training));
  if (options.training.global_batch > 0 && !options.training.workload.empty()) {
    return InvalidTr(
        "--global_batch: the times of --workload were recorded for its own batch; omit one of them");
  }
  if (!raw.strategies.empty()) options.strategies = absl::StrSplit(raw.strategies, ',');
  options.workers = DefaultWorkers(raw.flags.options.training, CudaDeviceCount());
  if (!raw.workers.empty()) {
    PSRING_ASSIGN_OR_RETURN(options.workers, ParseCounts(raw.workers, kMaxLogicalWorkers));
  }
  options.servers = {raw.flags.options.training.servers};
  if (!raw.servers.empty()) {
    PSRING_ASSIGN_OR_RETURN(options.servers, ParseCounts(raw.servers, kMaxServers));
  }
  options.server_wires = {raw.flags.options.training.server_wire};
  if (!raw.server_wires.empty()) options.server_wires = absl::StrSplit(raw.server_wires, ',');
  PSRING_RETURN_IF_ERROR(CheckNamedOnce("--workers", options.workers));
  PSRING_RETURN_IF_ERROR(CheckNamedOnce("--servers", options.servers));
  flags.link_is_default = raw.link == "auto";
  if (flags.link_is_default) {
    flags.link.bits_per_s = DefaultLink(raw, options.workers);
  } else {
    PSRING_ASSIGN_OR_RETURN(flags.link.bits_per_s, ParseLink(raw.link));
  }
  PSRING_ASSIGN_OR_RETURN(flags.link.latency_s, ParseLatency(raw.latency));
  PSRING_RETURN_IF_ERROR(CheckLink(flags.link));
  PSRING_RETURN_IF_ERROR(UnderstandScale(flags));
  if (flags.link.wanted() && options.training.transport == "shm") {
    return InvalidTr(
        "machines of a virtual cluster share no memory; omit --transport shm, or --link and --latency");
  }
  flags.transport_given = raw.transport != nullptr && raw.transport->count() > 0;
  if (!raw.time_budget.empty()) {
    PSRING_ASSIGN_OR_RETURN(options.time_budget_s, ParseSeconds(raw.time_budget));
    options.time_budget_given = true;
  }
  if (options.target_accuracy > 0 && !options.training.evaluate) {
    return InvalidTr("--target_accuracy needs evaluations; omit --no_eval");
  }
  PSRING_RETURN_IF_ERROR(UnderstandRates(raw, options));
  PSRING_RETURN_IF_ERROR(UnderstandLike(raw, options.training));
  return flags;
}

// The flags that --preset stands for.
absl::StatusOr<RawExperimentFlags> WithPreset(RawExperimentFlags raw) {
  if (raw.preset.empty()) return raw;
  TrainingOptions& training = raw.flags.options.training;
  PSRING_ASSIGN_OR_RETURN(const Layout layout, ParseLayout(raw.preset, kMaxLogicalWorkers));
  const char* const also = training.pp > 1                ? "--pp"
                           : training.tp > 1              ? "--tp"
                           : training.cp > 1              ? "--cp"
                           : !training.rank_order.empty() ? "--rank_order"
                           : !raw.workers.empty()         ? "--workers"
                           : raw.flags.nodes.several()    ? "--nnodes"
                                                          : nullptr;
  // The ranks of a replica are neighbours.
  std::vector<std::string> axes;
  for (const auto& [name, ranks] : {std::pair("tp", layout.tp), {"cp", layout.cp}, {"pp", layout.pp}}) {
    if (ranks > 1) axes.emplace_back(name);
  }
  axes.emplace_back("dp");
  const std::string order = axes.size() == 1 ? "" : absl::StrJoin(axes, ",");
  if (also != nullptr) {
    return InvalidTr("--preset $0 stands for --workers $1$2$3$4; omit it, or $5", raw.preset,
                     layout.workers(), layout.pp > 1 ? absl::StrCat(" --pp ", layout.pp) : "",
                     absl::StrCat(layout.tp > 1 ? absl::StrCat(" --tp ", layout.tp) : "",
                                  layout.cp > 1 ? absl::StrCat(" --cp ", layout.cp) : ""),
                     !order.empty() ? absl::StrCat(" --rank_order ", order) : "", also);
  }
  raw.workers = absl::StrCat(layout.workers());
  training.pp = layout.pp;
  training.tp = layout.tp;
  training.cp = layout.cp;
  training.rank_order = order;
  return raw;
}

// The cases of --layouts, or of --pp with each number of workers; and the one global batch of all.
absl::Status UnderstandLayouts(const RawExperimentFlags& raw, CompareOptions& options) {
  TrainingOptions& training = options.training;
  if (!raw.programs.empty()) options.programs = absl::StrSplit(raw.programs, ',');
  if (!raw.micro_batches.empty()) {
    PSRING_ASSIGN_OR_RETURN(options.micro_batches, ParseCounts(raw.micro_batches, INT_MAX));
  }
  if (!raw.copy_streams.empty()) {
    PSRING_ASSIGN_OR_RETURN(options.copy_streams, ParseCounts(raw.copy_streams, /*most=*/2));
  }
  PSRING_RETURN_IF_ERROR(CheckNamedOnce("--copy_streams", options.copy_streams));
  PSRING_RETURN_IF_ERROR(CheckNamedOnce("--program", options.programs));
  PSRING_RETURN_IF_ERROR(CheckNamedOnce("--micro_batches", options.micro_batches));
  options.tries_layouts = raw.layouts == kAutoLayouts;
  if (options.tries_layouts) {
    if (options.workers.size() != 1 || options.workers.front() < 2) {
      return InvalidTr(
          "--layouts auto needs one number of --workers, at least 2; add --workers 4, for example");
    }
    options.layouts = SupportedLayouts(options.workers.front());
  } else if (!raw.layouts.empty()) {
    if (!raw.workers.empty()) {
      return InvalidTr("--layouts $0 sets the workers; omit --workers, or use --layouts auto", raw.layouts);
    }
    PSRING_ASSIGN_OR_RETURN(options.layouts, ParseLayouts(raw.layouts));
  } else if (training.pp > 1) {
    for (const int workers : options.workers) {
      PSRING_ASSIGN_OR_RETURN(const Mesh mesh, Mesh::Create(workers, training.pp, training.rank_order));
      options.layouts.push_back({.dp = mesh.replicas(), .pp = mesh.positions()});
    }
  }
  const auto any_layout = [&](auto is) { return std::ranges::any_of(options.layouts, is); };
  const bool any_is_cut = any_layout([](const Layout& one) { return one.pp > 1; });
  const bool any_has_order =
      ReplicaRanks(training) > 1 || any_layout([](const Layout& one) { return one.replica_ranks() > 1; });
  const bool other_program = !options.layouts.empty() && options.programs != CompareOptions().programs;
  PSRING_RETURN_IF_ERROR(CheckBesidePp(any_is_cut,
                                       {{!training.cuts.empty(), "--cuts"},
                                        {!raw.copy_streams.empty(), "--copy_streams"},
                                        {other_program, "--program"}},
                                       {}));
  PSRING_RETURN_IF_ERROR(CheckRankOrder(training.rank_order, any_has_order));
  if (training.sequence_parallel && !any_layout([](const Layout& one) { return one.tp > 1; })) {
    return InvalidTr(
        "--sequence_parallel needs a layout that divides matrices; add --layouts tp2, for example, or omit "
        "it");
  }
  if (options.layouts.empty()) {
    if (options.programs.size() > 1 || options.micro_batches.size() > 1) {
      return InvalidTr("several values of $0 need a pipeline; add --pp or --layouts, or give one value",
                       options.programs.size() > 1 ? "--program" : "--micro_batches");
    }
    training.program = options.programs.front();
    if (!options.micro_batches.empty()) training.micro_batches = options.micro_batches.front();
    return absl::OkStatus();
  }
  const bool by_time = !LayoutsLearnDifferently(options);
  if (!by_time && CountOfRates(options) > 0) {
    return InvalidTr("layouts are compared at one learning rate; omit $0",
                     raw.tune.empty() ? Tr("all of --lr but one") : "--tune");
  }
  if (by_time && (options.target_accuracy > 0 || CountOfRates(options) > 0)) {
    return InvalidTr("layouts are compared by time only, because they train the same weights; omit $0",
                     options.target_accuracy > 0 ? "--target_accuracy"
                     : raw.tune.empty()          ? Tr("all of --lr but one")
                                                 : "--tune");
  }
  if (options.micro_batches.size() > 1 && !training.workload.empty()) {
    return InvalidTr(
        "several --micro_batches of one global batch have different sizes, but the times of --workload were "
        "recorded for its own batch; name one number");
  }
  if (options.micro_batches.empty()) options.micro_batches = {DefaultMicroBatches(options.layouts)};
  if (options.strategies.empty()) options.strategies = {"ring"};
  options.workers.clear();
  for (const Layout& layout : options.layouts) {
    if (std::ranges::count(options.workers, layout.workers()) == 0)
      options.workers.push_back(layout.workers());
  }
  if (training.global_batch == 0)
    training.global_batch = int64_t{training.batch} * std::ranges::max(options.micro_batches);
  if (by_time) training.evaluate = false;
  // Configurations have their own; what is prepared is a step of one process.
  training.micro_batches = options.micro_batches.front();
  options.rank_order = std::exchange(training.rank_order, "");
  options.cuts = std::exchange(training.cuts, "");
  training.pp = 1;
  return absl::OkStatus();
}

void ResolveDevice(ExperimentFlags& flags) {
  const int gpus = CudaDeviceCount();
  TrainingOptions& training = flags.options.training;
  // Each machine has its own GPUs.
  const std::vector<int> workers =
      flags.nodes.several() ? std::vector<int>{flags.nodes.layout().per_node * training.ranks_per_process}
                            : flags.options.workers;
  const std::string device = DeviceForAll(training, workers, gpus);
  if (device != training.device && gpus > 0) {
    const std::string counted = Tr(gpus == 1 ? TrNoop("1 GPU") : TrNoop("$0 GPUs"), gpus);
    Note("psring", Tr("$0 are fewer than the workers, so all run on the CPU; to share GPUs, use --device "
                      "cuda --oversubscribe",
                      counted));
  }
  training.device = device;
}

bool HasStream(const ExperimentFlags& flags) {
  return std::ranges::count(flags.options.server_wires, "stream") > 0;
}

// On one machine without links, `auto` is shared memory, which no wire carries.
absl::Status CheckServerWire(const ExperimentFlags& flags) {
  const bool shares =
      flags.options.training.transport == "auto" && !flags.nodes.several() && !flags.link.wanted();
  if (!HasStream(flags) || !shares) return absl::OkStatus();
  return InvalidTr(
      "--server_wire stream has no effect on one machine, where workers and servers share memory; add "
      "--transport tcp");
}

// Whether this process reads the folder of --resume: node 0 does; the other nodes may not have it, and use
// the flags that they were started with.
bool RunIsHere(const RawExperimentFlags& raw) {
  NodesOptions nodes = raw.flags.nodes;
  std::error_code error;
  return !UseLauncher(raw.launcher, nodes).ok() || nodes.node == 0 ||
         std::filesystem::exists(raw.resume, error);
}

}  // namespace

absl::StatusOr<ExperimentFlags> UnderstandCompare(const RawExperimentFlags& asked,
                                                  const std::vector<std::string>& command_line) {
  if (!asked.resume.empty() && RunIsHere(asked)) return ResumedFlags(asked, command_line);
  const RawExperimentFlags raw = WithDefaultModel(asked);
  PSRING_ASSIGN_OR_RETURN(ExperimentFlags flags, Understand(raw, command_line));
  PSRING_RETURN_IF_ERROR(UnderstandNodes(raw.launcher, flags));
  if (flags.nodes.several()) {
    const NodeLayout layout = flags.nodes.layout();
    const std::vector<int> all = WorkersOnNodes(layout, flags.options.training.ranks_per_process);
    if (raw.workers.empty()) flags.options.workers = all;
    // As in training; on one machine, TCP represents a network.
    if (!flags.transport_given) flags.options.training.transport = "auto";
  } else if (flags.nodes.per_node > 0) {
    return InvalidTr("--nproc_per_node is for several machines; give --nnodes or omit it");
  }
  // A straggler matters only if other workers wait for it.
  if (raw.workers.empty() && !flags.nodes.several() && flags.options.training.straggler != "none") {
    flags.options.workers = {4};
  }
  PSRING_RETURN_IF_ERROR(UnderstandLayouts(raw, flags.options));
  if (flags.nodes.several() || !GoesBeyondOneGpu(flags.options, CudaDeviceCount())) ResolveDevice(flags);
  TrainingOptions checked = flags.options.training;
  checked.steps = 0;              // of the cost part: it does not contradict --samples or --epochs
  checked.reference_workers = 1;  // CheckCompareOptions knows the strategies
  if (HasStream(flags)) checked.server_wire = "stream";
  PSRING_RETURN_IF_ERROR(ValidateTrainingOptions(checked));
  PSRING_RETURN_IF_ERROR(CheckServerWire(flags));
  if (flags.predict && checked.clock == "virtual") {
    return InvalidTr("--predict compares a measured run with the simulator; omit --clock virtual");
  }
  if (flags.predict && flags.link.bits_per_s <= 0) {
    return InvalidTr("--predict needs links with a known rate; add --link 1gbit");
  }
  return flags;
}

absl::StatusOr<ExperimentFlags> UnderstandTrain(const RawExperimentFlags& given,
                                                const std::vector<std::string>& command_line) {
  PSRING_ASSIGN_OR_RETURN(const RawExperimentFlags raw, WithPreset(given));
  PSRING_ASSIGN_OR_RETURN(ExperimentFlags flags, Understand(raw, command_line));
  PSRING_RETURN_IF_ERROR(UnderstandNodes(raw.launcher, flags));
  if (flags.nodes.per_node > 0 && !raw.workers.empty()) {
    return InvalidTr("--workers and --nproc_per_node exclude each other; omit one of them");
  }
  if (raw.workers.empty()) {
    flags.options.workers = {flags.nodes.layout().capacity() * raw.flags.options.training.ranks_per_process};
  }
  if (flags.options.strategies.empty()) {
    const int ranks = ReplicaRanks(flags.options.training);
    const bool several = (ranks > 1 || !raw.preset.empty()) && flags.options.workers.front() > ranks;
    const bool adds_up = several || flags.options.training.cp > 1;
    flags.options.strategies = {adds_up ? "ring" : "single"};
    if (adds_up) flags.settled.push_back(kSettledRing);
  }
  ResolveDevice(flags);
  if (flags.options.strategies.size() > 1 || flags.options.workers.size() > 1) {
    return InvalidTr("train takes one strategy and one number of workers; for several use psring compare");
  }
  flags.options.training.strategy = flags.options.strategies.front();
  PSRING_ASSIGN_OR_RETURN(const StrategyRow strategy, FindStrategy(flags.options.training.strategy));
  PSRING_RETURN_IF_ERROR(CheckPipelineFlags(flags.options.training, strategy, flags.options.workers.front()));
  SetBatch(flags.options.workers.front(), flags.options.training);
  PSRING_RETURN_IF_ERROR(ValidateTrainingOptions(flags.options.training));
  PSRING_RETURN_IF_ERROR(CheckServerWire(flags));
  return flags;
}

}  // namespace psring
