#include "experiments/predict/calibrate_run.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/check.h"
#include "common/base/read_file.h"
#include "common/base/units.h"
#include "common/io/csv.h"
#include "common/io/json_object.h"
#include "experiments/plan/estimate.h"

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
  RunStep step{.strategy = file.Field("strategy").text, .placement = placement.empty() ? "rank0" : placement};
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

class Calibration {
 public:
  explicit Calibration(const CalibrateInputs& inputs) : inputs_(inputs) {}

  absl::StatusOr<std::string> Text() {
    std::string text = absl::StrFormat("%-19s%8s%13s%14s%9s\n", "strategy", "workers", "measured ms",
                                       "predicted ms", "error");
    std::string flags;
    bool any = false;
    for (const StrategyRow& strategy : inputs_.strategies) {
      PSRING_ASSIGN_OR_RETURN(const std::vector<FitRow> rows, RowsOf(strategy));
      std::set<int> sizes;
      for (const FitRow& row : rows) sizes.insert(row.size);
      if (sizes.size() < 2) continue;
      any = true;
      std::vector<FitRow> kept;
      for (const FitRow& row : rows) {
        if (row.size != *sizes.rbegin()) kept.push_back(row);
      }
      const std::vector<std::string> names = NamesFor(strategy);
      PSRING_ASSIGN_OR_RETURN(const Constants without, Fit(kept, names));
      PSRING_ASSIGN_OR_RETURN(const Constants all, Fit(rows, names));
      for (const FitRow& row : rows) {
        PSRING_ASSIGN_OR_RETURN(const double predicted, row.predict(without));
        absl::StrAppendFormat(&text, "%-19s%8d%13.2f%14.2f%+8.1f%%  %s\n", row.label, row.size,
                              1e3 * row.measured, 1e3 * predicted, 100 * (predicted / row.measured - 1),
                              row.size == *sizes.rbegin() ? "withheld" : "fitted");
      }
      absl::StrAppend(&flags, "- ", strategy.name, ": without the withheld rows ", ConstantsText(without),
                      "; over all rows ", ConstantsText(all), ". To use them:", FlagsOf(all), "\n");
    }
    if (!any) {
      return absl::InvalidArgumentError(
          "no strategy was run with two numbers of workers above 1, so none can be withheld; run compare or "
          "bench with --workers 2,4, for example");
    }
    return absl::StrCat(
        "Predictions are simulated; steps are measured. The largest number of workers of each "
        "strategy is withheld\nfrom the fit.\n\n",
        text, "\n", flags);
  }

 private:
  std::vector<std::string> NamesFor(const StrategyRow& strategy) const {
    if (!inputs_.fitted.empty()) return inputs_.fitted;
    return strategy.uses_servers ? std::vector<std::string>{"fraction", "server_worker_ns"}
                                 : std::vector<std::string>{"fraction", "latency_us"};
  }

  static std::string FlagsOf(const Constants& constants) {
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
    return flags;
  }

  // The step time of `none` with as many workers, else the row's compute_s.
  double ComputeOf(const RunStep& step) const {
    for (const RunStep& other : inputs_.steps) {
      if (other.strategy == "none" && other.workers == step.workers) return other.step_s;
    }
    return step.compute_s;
  }

  // The exchange of one gradient.
  absl::StatusOr<FitRow> ExchangeRow(const StrategyRow& strategy, const RunStep& step) const {
    Cluster cluster = inputs_.cluster;
    if (cluster.link_bytes_per_s <= 0) cluster.link_bytes_per_s = step.link_bytes_per_s;
    if (step.per_node > 1 && cluster.gpus_per_node != step.per_node) {
      return absl::InvalidArgumentError(absl::StrCat("its machines had ", step.per_node,
                                                     " processes each; add --gpus_per_node ", step.per_node,
                                                     " and --intra with the rate inside a machine"));
    }
    const PredictCase point = {.strategy = strategy, .workers = step.workers, .servers = step.servers};
    const auto predict = [options = inputs_.options, cluster, point,
                          bytes = step.bytes](const Constants& constants) -> absl::StatusOr<double> {
      Cluster network = cluster;
      PredictOptions of_constants = options;
      Apply(constants, network, of_constants);
      return Predictor({.tensors = {{.name = "exchange", .bytes = 4}}}, of_constants)
          .ExchangeSeconds(point, network, bytes);
    };
    return FitRow{.label = absl::StrCat(strategy.name, " ", ByteSizeText(static_cast<uint64_t>(step.bytes))),
                  .size = step.workers,
                  .measured = step.step_s,
                  .predict = predict};
  }

  absl::StatusOr<std::vector<FitRow>> RowsOf(const StrategyRow& strategy) const {
    std::vector<FitRow> rows;
    for (const RunStep& step : inputs_.steps) {
      if (step.strategy != strategy.name || step.workers < 2) continue;
      if (step.exchange_only) {
        PSRING_ASSIGN_OR_RETURN(rows.emplace_back(), ExchangeRow(strategy, step));
        continue;
      }
      const double compute = ComputeOf(step);
      if (!(compute > 0)) continue;
      if (inputs_.workload && !(inputs_.workload->compute_ms() > 0)) {
        return absl::InvalidArgumentError(
            "the times of --workload are 0; its steps cannot be scaled to the run's");
      }
      Workload workload = inputs_.workload
                              ? Faster(*inputs_.workload, inputs_.workload->compute_ms() / (1e3 * compute))
                              : EvenWorkload(step, compute);
      Cluster cluster = inputs_.cluster;
      if (cluster.link_bytes_per_s <= 0) cluster.link_bytes_per_s = step.link_bytes_per_s;
      if (cluster.link_bytes_per_s <= 0) return absl::InvalidArgumentError(kDefaultLinkMissing);
      PredictOptions options = inputs_.options;
      options.buckets = {.first_mb = std::min(1.0, step.bucket_mb), .others_mb = step.bucket_mb};
      if (step.servers > 0) options.place = PlaceOf(step.placement);
      const PredictCase point = {.strategy = strategy, .workers = step.workers, .servers = step.servers};
      const auto predict = [=](const Constants& constants) -> absl::StatusOr<double> {
        Cluster network = cluster;
        PredictOptions of_constants = options;
        Apply(constants, network, of_constants);
        Predictor predictor(workload, of_constants);
        PSRING_ASSIGN_OR_RETURN(const Prediction prediction, predictor.Predict(point, network));
        return prediction.step;
      };
      rows.push_back(
          {.label = strategy.name, .size = step.workers, .measured = step.step_s, .predict = predict});
    }
    return rows;
  }

  const CalibrateInputs& inputs_;
};

}  // namespace

absl::StatusOr<std::vector<RunStep>> ParseRunSteps(const std::string& csv) {
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
    if (step.workers >= 1 && step.step_s > 0) steps.push_back(std::move(step));
  }
  if (steps.empty()) return absl::InvalidArgumentError("it has no row with a measured step_ms");
  return steps;
}

absl::StatusOr<std::vector<RunStep>> ParseBenchExchanges(const std::string& text) {
  constexpr size_t kMaxRows = 1 << 20, kMaxNameBytes = 4096;
  constexpr int kMaxWorkers = 1 << 20;
  constexpr double kMaxBytes = 1e15, kMaxUs = 3.6e12, kMaxMbPerS = 1e8;
  PSRING_ASSIGN_OR_RETURN(const JsonObject json, JsonObject::Parse(text, kMaxRecordBytes, "it"));
  if (!json.Has("network")) {
    return absl::InvalidArgumentError(
        "it is a benchmark of one machine, whose processes share the loopback; run psring bench --nnodes");
  }
  PSRING_ASSIGN_OR_RETURN(const JsonObject network, json.Object("network"));
  PSRING_ASSIGN_OR_RETURN(const double mb_per_s, network.Number("mb_per_s", 0, kMaxMbPerS));
  PSRING_ASSIGN_OR_RETURN(const int per_node, network.WholeNumber("nproc_per_node", 1, kMaxWorkers));
  PSRING_ASSIGN_OR_RETURN(const std::vector<JsonObject> rows, json.Objects("results", kMaxRows));
  std::vector<RunStep> steps;
  for (const JsonObject& row : rows) {
    const auto is = [&](const char* key, const char* value) {
      return row.Text(key, kMaxNameBytes).value_or("") == value;
    };
    const bool reduces = is("collective", "all_reduce") && is("backend", "native");
    if (!is("transport", "tcp") || !is("type", "float") ||
        !(reduces || (is("collective", "ps_push_pull") && is("algorithm", "sync")))) {
      continue;
    }
    const absl::StatusOr<JsonObject> figures = row.Object("out_of_place");
    if (!figures.ok()) continue;  // null: not measured
    RunStep step{.placement = "rank0", .exchange_only = true, .per_node = per_node};
    PSRING_ASSIGN_OR_RETURN(step.strategy, row.Text("algorithm", kMaxNameBytes));
    if (!reduces) step.strategy = "ps-sync";
    step.servers = reduces ? 0 : 1;
    PSRING_ASSIGN_OR_RETURN(step.workers, row.WholeNumber("workers", 1, kMaxWorkers));
    PSRING_ASSIGN_OR_RETURN(step.bytes, row.Number("size", 0, kMaxBytes));
    PSRING_ASSIGN_OR_RETURN(const double time_us, figures->NumberOrNull("time", 0, kMaxUs));
    step.step_s = 1e-6 * time_us;
    step.link_bytes_per_s = 1e6 * mb_per_s;
    if (step.bytes >= 4 && step.step_s > 0) steps.push_back(std::move(step));
  }
  if (steps.empty()) {
    return absl::InvalidArgumentError("it has no all-reduce or server round over TCP to fit the model to");
  }
  return steps;
}

absl::StatusOr<std::string> CalibrationText(const CalibrateInputs& inputs) {
  return Calibration(inputs).Text();
}

}  // namespace psring
