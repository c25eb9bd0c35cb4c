#include "experiments/verbs/predict/calibrate_run.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/check.h"
#include "common/io/csv.h"
#include "common/measure/wires.h"
#include "common/text/units.h"
#include "experiments/costs/bench_exchanges.h"
#include "experiments/design/estimate.h"

namespace psring {
namespace {

constexpr double kMaxPieces = 100'000;
constexpr char kDefaultLinkMissing[] = "the run's rows have no link_mbps; write --link with the links' rate";

// `otherwise`: the value of an empty field, and of a column that the file does not have.
absl::StatusOr<double> NumberOf(CsvReader& file, const char* column, double most, double otherwise) {
  if (file.Field(column).text.empty()) return otherwise;
  return file.Number(column, 0, most);
}
absl::StatusOr<int> CountOf(const CsvReader& file, const char* column, int most, int otherwise) {
  if (file.Field(column).text.empty()) return otherwise;
  PSRING_ASSIGN_OR_RETURN(const int64_t count, file.WholeNumber(column, 0, most));
  return static_cast<int>(count);
}

absl::StatusOr<RunStep> StepOf(CsvReader& file) {
  constexpr int kMaxWorkers = 1 << 20;  // as predict's flags
  constexpr double kMaxMs = 3.6e6, kMaxParameters = 1e12, kMaxMbps = 1e8, kMaxBucketMb = 1e6;
  const std::string& placement = file.Field("placement").text;
  RunStep step{.strategy = file.Field("strategy").text,
               .placement = placement.empty() ? "rank0" : placement,
               .is_cut = !file.Field("program").text.empty()};
  PSRING_ASSIGN_OR_RETURN(step.workers, CountOf(file, "workers", kMaxWorkers, 0));
  PSRING_ASSIGN_OR_RETURN(step.servers, CountOf(file, "servers", kMaxWorkers, 0));
  PSRING_ASSIGN_OR_RETURN(const double step_ms, NumberOf(file, "step_ms", kMaxMs, 0));
  PSRING_ASSIGN_OR_RETURN(const double compute_ms, NumberOf(file, "compute_ms", kMaxMs, 0));
  PSRING_ASSIGN_OR_RETURN(const double parameters, NumberOf(file, "parameters", kMaxParameters, 0));
  PSRING_ASSIGN_OR_RETURN(step.bucket_mb, NumberOf(file, "bucket_mb", kMaxBucketMb, 25));
  PSRING_ASSIGN_OR_RETURN(const double link_mbps, NumberOf(file, "link_mbps", kMaxMbps, 0));
  PSRING_ASSIGN_OR_RETURN(step.batch, CountOf(file, "batch_per_worker", 1 << 20, 1));
  step.step_s = 1e-3 * step_ms;
  step.compute_s = 1e-3 * compute_ms;
  step.bytes = 4 * parameters;
  step.link_bytes_per_s = 1e6 / 8 * link_mbps;
  return step;
}

// Buckets that are ready evenly over backward.
Workload EvenWorkload(const RunStep& step, double compute_s) {
  const double piece = std::max(0.25, step.bucket_mb) * (1 << 20);
  const int count = static_cast<int>(std::clamp(std::ceil(step.bytes / piece), 1.0, kMaxPieces));
  Workload workload{.name = "measured",
                    .device = "measured",
                    .batch = std::max(1, step.batch),
                    .forward_ms = 1e3 * compute_s / 3,
                    .backward_ms = 2e3 * compute_s / 3};
  const auto values = static_cast<int64_t>(step.bytes / 4);
  for (int i = 0; i < count; ++i) {
    workload.tensors.push_back({.name = absl::StrCat("bucket", i),
                                .bytes = 4 * (values * (i + 1) / count - values * i / count),
                                .ready_ms = workload.backward_ms * (i + 1) / count});
  }
  return workload;
}

std::vector<std::string> NamesFor(const CalibrateInputs& inputs, const StrategyRow& strategy) {
  if (!inputs.fitted.empty()) return inputs.fitted;
  return {"fraction", strategy.uses_servers ? "server_worker_ns" : "latency_us"};
}

std::string FlagsOf(const Constants& constants) {
  std::string flags;
  for (const auto& [name, value] : constants) {
    if (name == "latency_us" || name == "barrier_us") {
      absl::StrAppendFormat(&flags, " --%s %.3gus", name.substr(0, name.size() - 3), value);
    } else if (name == "compute_cv") {
      absl::StrAppendFormat(&flags, " --compute_varies normal:%.3g", value);
    } else {
      absl::StrAppendFormat(&flags, " --%s %.3g", name, value);
    }
  }
  return flags + " --system none";  // they stand for all losses
}

// The exchange of one gradient.
absl::StatusOr<StepSeconds> ExchangeOf(const CalibrateInputs& inputs, const PredictCase& point,
                                       const RunStep& step, const Cluster& cluster) {
  if (step.per_node > 1 && cluster.gpus_per_node != step.per_node) {
    return absl::InvalidArgumentError(absl::StrCat("its machines had ", step.per_node,
                                                   " processes each; add --gpus_per_node ", step.per_node,
                                                   " and --intra with the rate inside a machine"));
  }
  return [=, options = inputs.options, bytes = step.bytes](const Constants& constants) {
    Cluster network = cluster;
    PredictOptions fitted = options;
    Apply(constants, network, fitted);
    return Predictor({.tensors = {{.name = "exchange", .bytes = 4}}}, fitted)
        .ExchangeSeconds(point, network, bytes);
  };
}

// `compute_s`: of the step.
absl::StatusOr<StepSeconds> TrainingStepOf(const CalibrateInputs& inputs, const PredictCase& point,
                                           const RunStep& step, double compute_s, const Cluster& cluster) {
  if (inputs.workload && !(inputs.workload->compute_ms() > 0)) {
    return absl::InvalidArgumentError(
        "the times of --workload are 0; its steps cannot be scaled to the run's");
  }
  if (cluster.link_bytes_per_s <= 0) return absl::InvalidArgumentError(kDefaultLinkMissing);
  PredictOptions options = inputs.options;
  options.buckets = {.first_mb = std::min(1.0, step.bucket_mb), .others_mb = step.bucket_mb};
  if (step.servers > 0) options.place = PlaceOf(step.placement);
  return PredictedStepOf(inputs.workload
                             ? Faster(*inputs.workload, inputs.workload->compute_ms() / (1e3 * compute_s))
                             : EvenWorkload(step, compute_s),
                         point, cluster, options);
}

// The step time of `none` with as many workers, else the row's compute_s.
double ComputeOf(const CalibrateInputs& inputs, const RunStep& step) {
  for (const RunStep& other : inputs.steps) {
    if (other.strategy == "none" && !other.is_cut && other.workers == step.workers) return other.step_s;
  }
  return step.compute_s;
}

// The rows with the most workers are withheld.
absl::StatusOr<std::vector<FitRow>> FitRowsOf(const CalibrateInputs& inputs, const StrategyRow& strategy) {
  std::vector<FitRow> rows;
  int most = 0;
  for (const RunStep& step : inputs.steps) {
    if (step.strategy != strategy.name || step.is_cut || step.workers < 2) continue;
    const double compute_s = ComputeOf(inputs, step);
    if (!step.exchange_only && !(compute_s > 0)) continue;
    const PredictCase point = {.strategy = strategy, .workers = step.workers, .servers = step.servers};
    Cluster cluster = inputs.cluster;
    if (cluster.link_bytes_per_s <= 0) cluster.link_bytes_per_s = step.link_bytes_per_s;
    FitRow row{.label = strategy.name, .size = step.workers, .measured = step.step_s};
    if (step.exchange_only) {
      absl::StrAppend(&row.label, " ", ByteSizeText(static_cast<uint64_t>(step.bytes)));
      PSRING_ASSIGN_OR_RETURN(row.predict, ExchangeOf(inputs, point, step, cluster));
    } else {
      PSRING_ASSIGN_OR_RETURN(row.predict, TrainingStepOf(inputs, point, step, compute_s, cluster));
    }
    most = std::max(most, row.size);
    rows.push_back(std::move(row));
  }
  for (FitRow& row : rows) row.withheld = row.size == most;
  return rows;
}

}  // namespace

absl::StatusOr<std::vector<RunStep>> ParseRunSteps(const std::string& csv, const std::string& server_wire) {
  CsvReader file(csv);
  PSRING_RETURN_IF_ERROR(file.ReadHeader());
  const std::vector<std::string>& columns = file.columns();
  for (const char* needed : {"strategy", "workers", "step_ms"}) {
    if (std::find(columns.begin(), columns.end(), needed) == columns.end())
      return absl::InvalidArgumentError(absl::StrCat("it has no column ", needed));
  }
  std::vector<RunStep> steps;
  while (true) {
    PSRING_ASSIGN_OR_RETURN(const bool any, file.NextRow());
    if (!any) break;
    if (file.Field("basis").text == "simulated") continue;
    // With --local_aggregation the speed within machines, which the run does not have, matters too.
    PSRING_ASSIGN_OR_RETURN(const double workers_per_push, NumberOf(file, "workers_per_push", 1 << 20, 1));
    if (workers_per_push > 1) continue;
    PSRING_ASSIGN_OR_RETURN(RunStep step, StepOf(file));
    const std::string& wire = file.Field("wire").text;
    const bool over_grpc = absl::StrContains(wire, kGrpcWire);
    if (step.servers > 0 && !wire.empty() && over_grpc != (server_wire == "grpc")) continue;
    if (step.workers >= 1 && step.step_s > 0) steps.push_back(std::move(step));
  }
  if (steps.empty()) return absl::InvalidArgumentError("it has no row with a measured step_ms");
  return steps;
}

absl::StatusOr<std::vector<RunStep>> ParseBenchSteps(const std::string& json,
                                                     const std::string& server_wire) {
  PSRING_ASSIGN_OR_RETURN(const BenchExchanges bench, ParseBenchExchanges(json, "it"));
  if (bench.link_bytes_per_s <= 0) {
    return absl::InvalidArgumentError(
        "it is a benchmark of one machine, whose processes share the loopback; run psring bench --nnodes");
  }
  std::vector<RunStep> steps;
  for (const BenchExchange& one : bench.exchanges) {
    if (one.transport != "tcp" || one.bytes < 4) continue;
    if (one.uses_server && one.server_wire != server_wire) continue;
    steps.push_back({.strategy = one.uses_server ? "ps-sync" : one.algorithm,
                     .placement = "rank0",
                     .workers = one.workers,
                     .servers = one.uses_server ? 1 : 0,
                     .step_s = one.seconds,
                     .bytes = one.bytes,
                     .link_bytes_per_s = bench.link_bytes_per_s,
                     .exchange_only = true,
                     .per_node = bench.per_node});
  }
  if (steps.empty()) {
    return absl::InvalidArgumentError("it has no all-reduce or server round over TCP to fit the model to");
  }
  return steps;
}

absl::StatusOr<std::string> CalibrationText(const CalibrateInputs& inputs) {
  std::string text =
      absl::StrFormat("%-19s%8s%13s%14s%9s\n", "strategy", "workers", "measured ms", "predicted ms", "error");
  std::string flags;
  for (const StrategyRow& strategy : inputs.strategies) {
    PSRING_ASSIGN_OR_RETURN(const std::vector<FitRow> rows, FitRowsOf(inputs, strategy));
    if (std::ranges::all_of(rows, &FitRow::withheld)) continue;
    PSRING_ASSIGN_OR_RETURN(const CheckedFit fit, FitAndCheck(rows, NamesFor(inputs, strategy)));
    for (const CheckedRow& row : fit.rows) {
      absl::StrAppendFormat(&text, "%-19s%8d%13.2f%14.2f%+8.1f%%  %s\n", row.label, row.size,
                            1e3 * row.measured, 1e3 * row.predicted, 100 * row.error(),
                            row.withheld ? "withheld" : "fitted");
    }
    absl::StrAppend(&flags, "- ", strategy.name, ": without the withheld rows ", ConstantsText(fit.without),
                    "; over all rows ", ConstantsText(fit.all), ". To use them:", FlagsOf(fit.all), "\n");
  }
  const auto cut = std::ranges::count_if(inputs.steps, &RunStep::is_cut);
  const std::string omitted = cut > 0 ? absl::StrCat("Rows of pipelines (--pp) are not used (", cut,
                                                     "): their workers also wait for one another's stages.")
                                      : "";
  if (flags.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "no strategy was run with two numbers of workers above 1, so none can be withheld; run compare or "
        "bench with --workers 2,4, for example",
        omitted.empty() ? "" : ". ", omitted));
  }
  return absl::StrCat(
      "Predictions are simulated; steps are measured. The largest number of workers of each "
      "strategy is withheld\nfrom the fit.\n\n",
      text, "\n", flags, omitted, omitted.empty() ? "" : "\n");
}

}  // namespace psring
