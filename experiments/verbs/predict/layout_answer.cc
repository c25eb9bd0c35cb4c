#include "experiments/verbs/predict/layout_answer.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <numbers>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/check.h"
#include "common/base/wall_time.h"
#include "common/cli/wrap.h"
#include "common/io/csv.h"
#include "common/measure/trace.h"
#include "common/text/translate.h"
#include "experiments/engine/programs.h"
#include "experiments/run_folder/recorded_run.h"
#include "experiments/run_folder/run_claim.h"
#include "experiments/run_folder/run_folder.h"
#include "experiments/simulator/compute_variation.h"
#include "experiments/verbs/predict/causes.h"
#include "experiments/verbs/predict/published_check.h"
#include "experiments/verbs/predict/report.h"
#include "trainer/programs/pipeline_flags.h"

namespace psring {
namespace {

constexpr size_t kShown = 5;

std::string Percent(double share) { return absl::StrFormat("%.1f", 100 * share); }
std::string Gigabytes(double bytes) { return absl::StrFormat("%.2f", 1e-9 * bytes); }

double SamplesPerSecond(const LayoutQuestion& question, const FoundLayout& found) {
  return static_cast<double>(question.global_batch) / found.price.step_s;
}

std::vector<Constants> GuessesFor(const PredictFlags& flags, bool gathers) {
  Causes causes = CausesOfLayouts(flags.cluster, flags.rdma, gathers);
  if (flags.system == "none") causes.clear();
  for (const std::string& name : flags.given) causes.erase(name);
  return GuessesOf(causes, ShapeOf(flags.cluster, flags.workers.front()).nodes);
}

LayoutQuestion Guessed(const LayoutQuestion& question, const Constants& guess) {
  Cluster cluster = question.cluster;
  PredictOptions options;
  Apply(guess, cluster, options);
  const int nodes = ShapeOf(cluster, question.workers).nodes;
  return Assuming(question, cluster, ExpectedMaximum(options.variation, nodes));
}

absl::StatusOr<RangedLayout> RangeOf(const PredictFlags& flags, const LayoutQuestion& question,
                                     FoundLayout found, const CheckStop& check) {
  const bool gathers = found.candidate.gathers();
  RangedLayout ranged{.found = std::move(found), .gathers = gathers, .logs = {}};
  const LayoutCandidate& candidate = ranged.found.candidate;
  PSRING_ASSIGN_OR_RETURN(const LayoutStages stages, StagesOf(question.model, candidate));
  for (const Constants& guess : GuessesFor(flags, gathers)) {
    PSRING_RETURN_IF_ERROR(check());
    PSRING_ASSIGN_OR_RETURN(const LayoutPrice price, PriceOf(Guessed(question, guess), candidate, stages));
    ranged.logs.push_back(std::log(ranged.found.price.step_s / price.step_s));
  }
  return ranged;
}

std::string SpeedTable(const LayoutQuestion& question, const std::vector<RangedLayout>& best, double error) {
  const std::vector<HeadedColumn> columns = {{TrNoop("layout|"), 22},          {TrNoop("program|"), 14},
                                             {TrNoop("micro-|batches"), 11},   {TrNoop("samples|/s"), 9},
                                             {TrNoop("range of|9 in 10"), 15}, {TrNoop("step|ms"), 9},
                                             {TrNoop("bubble|%"), 7},          {TrNoop("exposed|%"), 8},
                                             {TrNoop("GB in|a node"), 7},      {TrNoop("GB be-|tween"), 7}};
  std::vector<std::vector<std::string>> lines;
  for (const RangedLayout& ranged : best) {
    const FoundLayout& found = ranged.found;
    const LayoutCandidate& of = found.candidate;
    const Interval ratios = RatiosOf(ranged.logs, error);
    const double speed = SamplesPerSecond(question, found);
    lines.push_back({of.layout(), of.pp > 1 ? of.program.name() : "",
                     absl::StrCat(of.micro_batches, " x ", of.samples), ShortCount(speed),
                     absl::StrCat(ShortCount(speed * ratios.low), "-", ShortCount(speed * ratios.high)),
                     Milliseconds(found.price.step_s), Percent(found.price.bubble),
                     Percent(found.price.exposed), Gigabytes(found.price.sent.inside),
                     Gigabytes(found.price.sent.between)});
  }
  return HeadedTable(columns, lines);
}

std::string MemoryTable(const std::vector<RangedLayout>& best) {
  constexpr double kGiB = 1 << 30;
  const std::vector<HeadedColumn> columns = {{TrNoop("layout|"), 26},         {TrNoop("weights|GiB"), 11},
                                             {TrNoop("gradients|GiB"), 11},   {TrNoop("optimizer|GiB"), 11},
                                             {TrNoop("activations|GiB"), 13}, {TrNoop("total|GiB"), 11}};
  std::vector<std::vector<std::string>> lines;
  for (const auto& [found, gathers, logs] : best) {
    const auto& [state, activations] = found.memory;
    std::vector<std::string> line = {found.candidate.layout()};
    for (const double bytes :
         {state.weights, state.gradients, state.optimizer, activations, found.memory.total()}) {
      line.push_back(absl::StrFormat("%.2f", bytes / kGiB));
    }
    lines.push_back(std::move(line));
  }
  return HeadedTable(columns, lines);
}

// A line for each layout, in their order. Times and bytes are of a step.
std::string LayoutsCsv(const LayoutQuestion& question, const std::vector<FoundLayout>& best) {
  std::string text = CsvLine({"layout", "program", "strategy", "dp_shard", "context_parallel",
                              "micro_batches", "samples", "samples_per_s", "step_ms", "bubble_fraction",
                              "exposed_fraction", "sent_inside_bytes", "sent_between_bytes", "weights_bytes",
                              "gradients_bytes", "optimizer_bytes", "activations_bytes"});
  for (const auto& [of, memory, price] : best) {
    const Layout layout{.dp = of.dp, .pp = of.pp, .tp = of.tp, .cp = of.cp};
    std::vector<std::string> fields = {layout.name(),
                                       of.program.name(),
                                       of.strategy->name,
                                       absl::StrCat(of.dp_shard),
                                       of.cp > 1 ? of.context_parallel : "",
                                       absl::StrCat(of.micro_batches),
                                       absl::StrCat(of.samples)};
    for (const double figure :
         {static_cast<double>(question.global_batch) / price.step_s, 1e3 * price.step_s, price.bubble,
          price.exposed, price.sent.inside, price.sent.between, memory.state.weights, memory.state.gradients,
          memory.state.optimizer, memory.activations}) {
      fields.push_back(absl::StrFormat("%.12g", figure));
    }
    text += CsvLine(fields);
  }
  return text;
}

// What would have to change for another layout to be fastest. `gathering`: as for FindLayouts.
absl::StatusOr<std::string> WhatWouldChangeIt(const LayoutQuestion& question, const LayoutQuestion& gathering,
                                              const std::vector<FoundLayout>& best,
                                              const std::optional<FoundLayout>& with_more_memory,
                                              const CheckStop& check) {
  std::string text;
  const bool between = ShapeOf(question.cluster, question.workers).nodes > 1;
  PSRING_ASSIGN_OR_RETURN(const std::optional<OtherBest> other,
                          OtherBestWithLinks(question, best, between, check, &gathering));
  if (other) {
    text += FasterWithLinks(question.cluster, question.workers, other->factor,
                            best[other->index].candidate.layout());
  }
  if (with_more_memory) {
    text += Tr(" With $0 per device, $1 would be faster: $2 samples/s.",
               GibibytesText(with_more_memory->memory.total()), with_more_memory->candidate.layout(),
               ShortCount(SamplesPerSecond(question, *with_more_memory)));
  }
  if (text.empty()) {
    text =
        Tr(" More memory does not change this, nor do links from 1/$0 to $0 times as fast change which of "
           "these is fastest.",
           kMaxRateFactor);
  }
  return text;
}

}  // namespace

Interval RatioOf(const RangedLayout& one, const RangedLayout& other, double error) {
  const double factor = other.found.price.step_s / one.found.price.step_s;
  std::vector<double> logs = one.logs;
  if (one.gathers == other.gathers) {
    for (size_t i = 0; i < logs.size(); ++i) logs[i] -= other.logs[i];
  } else {
    for (size_t i = 1; i < other.logs.size(); ++i) logs.push_back(-other.logs[i]);
  }
  const Interval ratios = RatiosOf(logs, std::numbers::sqrt2 * error);
  return {factor * ratios.low, factor * ratios.high};
}

absl::StatusOr<LayoutQuestion> QuestionOf(const PredictFlags& flags) {
  LayoutQuestion question{.cluster = flags.cluster,
                          .workers = flags.workers.front(),
                          .global_batch = int64_t{flags.workers.front()} * flags.workload.batch,
                          .choice = flags.layouts};
  PSRING_ASSIGN_OR_RETURN(question.model, LayoutModelOf(flags.workload));
  question.model.sequence_parallel = flags.sequence_parallel;
  return question;
}

std::string WhatIsNotTrained(const LayoutQuestion& question, const std::vector<FoundLayout>& best) {
  std::vector<std::string> rejected;
  std::string reason;
  for (const auto& [candidate, memory, price] : best) {
    TrainingOptions options;
    options.micro_batches = candidate.micro_batches;
    options.model = "gpt-nano";  // stands for any transformer
    options.heads = question.model.heads;
    if (question.model.sixteen_bits) options.precision = "bfloat16";
    options.tp = candidate.tp;
    options.cp = candidate.cp;
    if (candidate.cp > 1) options.context_parallel = candidate.context_parallel;
    options.sequence_parallel = question.model.sequence_parallel && candidate.tp > 1;
    options.context = static_cast<int>(question.model.tokens);
    options.pp = candidate.pp;
    if (candidate.pp > 1) options.program = candidate.program.name();
    const absl::Status status = CheckPipelineFlags(options, *candidate.strategy, question.workers);
    if (status.ok()) continue;
    if (rejected.empty()) reason = std::string(status.message());
    rejected.push_back(candidate.layout());
  }
  if (rejected.empty()) return "";
  return Tr(" psring train cannot run $0 (the first: $1).", absl::StrJoin(rejected, ", "), reason);
}

absl::StatusOr<LayoutsReport> ReportOfLayouts(const PredictFlags& flags, const CheckStop& check) {
  PSRING_ASSIGN_OR_RETURN(const LayoutQuestion question, QuestionOf(flags));
  // With what programs of each family are expected to lose.
  const LayoutQuestion expected = Guessed(question, GuessesFor(flags, /*gathers=*/false).front()),
                       gathering = Guessed(question, GuessesFor(flags, /*gathers=*/true).front());
  PSRING_ASSIGN_OR_RETURN(const LayoutAnswer answer,
                          FindLayouts(expected, flags.memory_bytes, kShown, check, &gathering));
  std::vector<RangedLayout> best;
  for (const FoundLayout& found : answer.best) {
    PSRING_ASSIGN_OR_RETURN(best.emplace_back(), RangeOf(flags, question, found, check));
  }
  const std::vector<std::string> outside =
      LayoutDifferences(flags.workload.device, flags.cluster, question.workers);
  const double error = ModelError(outside.size(), LayoutModelFactor());
  const double tokens = question.model.tokens;
  std::string text = Wrap(
      Tr("Layouts of $0 devices for $1: $2 billion parameters, $3, Adam; $4 samples of $5 tokens a step.",
         question.workers, question.model.name,
         absl::StrFormat("%.2f", 1e-9 * static_cast<double>(flags.workload.bytes()) / 4),
         question.model.sixteen_bits ? Tr("16 bits with float32 master weights") : "float32",
         question.global_batch, tokens),
      "");
  absl::StrAppend(&text, Wrap(Tr("Computing: $0.", flags.workload.device), ""),
                  Wrap(Tr("Cluster: $0.", NetworkText(question.cluster)), ""),
                  Wrap(Tr("$0 of $1 candidates fit into $2 per device; $3 were simulated, which suffices for "
                          "the best $4.",
                          answer.fitting, answer.candidates, GibibytesText(flags.memory_bytes), answer.walked,
                          best.size()),
                       ""),
                  "\n", SpeedTable(question, best, error), "\n", MemoryTable(best), "\n");
  if (!answer.too_large.empty()) {
    text += Wrap(Tr("These need more memory: $0.",
                    absl::StrJoin(answer.too_large, Tr(", "),
                                  [](std::string* out, const Layout& layout) { *out += layout.name(); })),
                 "");
  }
  text += Wrap(
      Tr("micro-batches: of a replica in a step, times their samples. bubble: the part of the step in which "
         "a device waits for another stage; exposed: for bytes, with tp and cp those within layers included. "
         "GB: that a device sends inside its node, and one of a node's cards to other nodes, in a step. "
         "Memory is that of the rank with the most, without dropout masks, attention scores and what "
         "libraries allocate. Each axis is simulated by itself. The ranges hold 9 of 10 published steps of "
         "such layouts, each predicted from what other trainings lost."),
      "");
  if (!outside.empty()) {
    text += Wrap(Tr("Extrapolated, so the ranges are wider: $0.", absl::StrJoin(outside, Tr("; "))), "");
  }
  const double speed = SamplesPerSecond(question, best.front().found);
  const std::string winner = best.front().found.candidate.layout();
  std::string verdict = Tr("Verdict (simulated): ");
  if (best.size() == 1) {
    verdict += Tr("$0 is fastest: $1 samples/s, $2 tokens/s.", winner, ShortCount(speed),
                  ShortCount(speed * tokens));
  } else {
    const double factor = best[1].found.price.step_s / best.front().found.price.step_s;
    const Interval range = RatioOf(best.front(), best[1], error);
    const std::string next = best[1].found.candidate.layout(),
                      ratio = Tr("$0 ($1 to $2)", absl::StrFormat("%.2f", factor),
                                 absl::StrFormat("%.2f", range.low), absl::StrFormat("%.2f", range.high));
    verdict += range.low > kEqualSteps
                   ? Tr("$0 is fastest: $1 samples/s, $2 tokens/s. It is $3 times as fast as the next, $4.",
                        winner, ShortCount(speed), ShortCount(speed * tokens), ratio, next)
                   : Tr("no difference is shown between $0, $1 samples/s or $2 tokens/s, and $3: factor $4.",
                        winner, ShortCount(speed), ShortCount(speed * tokens), next, ratio);
  }
  std::vector<FoundLayout> found;
  for (RangedLayout& ranged : best) found.push_back(std::move(ranged.found));
  PSRING_ASSIGN_OR_RETURN(const std::string change,
                          WhatWouldChangeIt(expected, gathering, found, answer.with_more_memory, check));
  return LayoutsReport{
      .text = absl::StrCat(text, "\n", Wrap(verdict + change + WhatIsNotTrained(question, found), "")),
      .csv = LayoutsCsv(question, found)};
}

absl::StatusOr<Manifest> BeginManifest(const PredictFlags& flags) {
  PSRING_ASSIGN_OR_RETURN(const Binaries binaries, FindBinaries());
  Manifest manifest{.verb = "predict",
                    .command_line = flags.command_line,
                    .started_utc = Iso8601(WallNow()),
                    .machine = DescribeMachine(),
                    .plan = {}};
  PSRING_ASSIGN_OR_RETURN(manifest.provenance, DescribeProvenance(binaries.all(), flags.files));
  return manifest;
}

absl::Status SearchLayouts(const PredictFlags& flags, const Interrupt& interrupt, Display& display) {
  const int64_t begin = MonotonicNanos();
  std::unique_ptr<RunClaim> claim;
  Manifest manifest;
  if (!flags.out.empty()) {
    PSRING_ASSIGN_OR_RETURN(claim, RunClaim::Make(flags.out, "predict", WallNow()));
    PSRING_ASSIGN_OR_RETURN(manifest, BeginManifest(flags));
  }
  display.Redraw("searching layouts");
  PSRING_ASSIGN_OR_RETURN(const LayoutsReport report,
                          ReportOfLayouts(flags, [&] { return interrupt.Check(); }));
  display.Clear();
  display.SayLines(report.text);
  if (claim == nullptr) return absl::OkStatus();
  PSRING_ASSIGN_OR_RETURN(const RunFolder folder, RunFolder::Open(*claim));
  manifest.run_id = folder.run_id();
  PSRING_RETURN_IF_ERROR(folder.Write("layouts.csv", report.csv));
  PSRING_RETURN_IF_ERROR(folder.Write("predict.txt", report.text));
  manifest.wall_s = 1e-9 * static_cast<double>(MonotonicNanos() - begin);
  PSRING_RETURN_IF_ERROR(folder.WriteManifest(manifest));
  display.SayLines(Tr("results: layouts.csv, predict.txt and manifest.json in $0", folder.path()));
  return absl::OkStatus();
}

}  // namespace psring
