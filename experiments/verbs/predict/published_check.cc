#include "experiments/verbs/predict/published_check.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/check.h"
#include "common/workloads/changes.h"

namespace psring {
namespace {

double PublishedSeconds(const PublishedSystem& system, const PublishedModel& model, const PublishedRow& row) {
  return system.seconds ? row.published : row.gpus * model.batch / row.published;
}

PredictCase CaseOf(const PublishedSystem& system, int gpus) {
  return {.strategy = *FindStrategy(system.servers ? "ps-sync" : "ring"),
          .workers = gpus,
          .servers = system.servers ? gpus / system.cluster.gpus_per_node : 0};
}

std::string RowsText(const std::vector<LeftOutRow>& rows, const char* unit, double factor, int digits,
                     double model_factor) {
  std::string text = absl::StrFormat(
      "| case | published, %s a step | predicted | range | error | in range |\n|---|---|---|---|---|---|\n",
      unit);
  for (const LeftOutRow& row : rows) {
    const Interval range = row.Range(model_factor);
    absl::StrAppendFormat(&text, "| %s | %.*f | %.*f | %.*f to %.*f | %+.1f%% | %s |\n", row.label, digits,
                          factor * row.measured, digits, factor * row.predicted, digits, factor * range.low,
                          digits, factor * range.high, 100 * row.error(),
                          row.Holds(model_factor) ? "yes" : "**no**");
  }
  return text;
}

std::string SystemText(const LeftOutSystem& left_out) {
  const PublishedSystem& system = *left_out.system;
  std::string text = absl::StrFormat("\n## %s: %s\n\n%s. %s, %s. %s\n\n", system.name, system.title,
                                     system.source, system.gpu, system.network(), system.remark);
  absl::StrAppend(&text, "Expected from the other systems: ", ConstantsText(left_out.expected),
                  "; fitted to this one: ", ConstantsText(system.constants), ".\n\n");
  return text + RowsText(left_out.rows, "ms", 1e3, 1, kModelFactor);
}

// All rows of a training for given constants. Remembers the last ones, because a fit asks row by row.
class TrainingSteps {
 public:
  TrainingSteps(const PublishedTraining& training, TrainingPredictor predictor)
      : training_(training), predictor_(std::move(predictor)) {}

  absl::StatusOr<std::vector<double>> At(const Constants& constants, bool is_bound = true) {
    if (is_bound && constants == last_ && !steps_.empty()) return steps_;
    Cluster cluster = training_.cluster;
    PredictOptions options;
    Apply(constants, cluster, options);
    PSRING_ASSIGN_OR_RETURN(std::vector<double> steps,
                            predictor_.Predict(cluster, options.variation.cv, is_bound));
    if (is_bound) {
      last_ = constants;
      steps_ = steps;
    }
    return steps;
  }

 private:
  const PublishedTraining& training_;
  const TrainingPredictor predictor_;
  Constants last_;
  std::vector<double> steps_;
};

Constants FittedTo(const PublishedTraining& training) {
  absl::StatusOr<TrainingPredictor> predictor = TrainingPredictor::Of(training);
  PSRING_CHECK(predictor.ok());  // published trainings are constant
  TrainingSteps steps(training, *std::move(predictor));
  std::vector<FitRow> rows;
  for (size_t i = 1; i < training.rows.size(); ++i) {
    rows.push_back({.label = NameOf(training.rows[i]),
                    .size = training.rows[i].workers,
                    .measured = training.rows[i].seconds,
                    .predict = [&steps, i](const Constants& constants) -> absl::StatusOr<double> {
                      PSRING_ASSIGN_OR_RETURN(const std::vector<double> all, steps.At(constants));
                      return all[i - 1];
                    }});
  }
  // Exchanges that computation hides take a change of several times to be felt.
  return Fit(rows, FittedCauses(), {Constants{{"fraction", .1}}}).value();
}

}  // namespace

Interval LeftOutRow::Range(double model_factor) const {
  const Interval ratios = RatiosOf(logs, ModelError(differences, model_factor));
  return {predicted / ratios.high, predicted / ratios.low};
}

bool LeftOutRow::Holds(double model_factor) const {
  const Interval range = Range(model_factor);
  return range.low <= measured && measured <= range.high;
}

absl::StatusOr<std::vector<FitRow>> RowsOf(const PublishedSystem& system) {
  std::vector<FitRow> rows;
  for (const PublishedModel& model : system.models) {
    const bool exchange = model.exchange_mib > 0;
    Workload workload;
    if (exchange) {
      workload.tensors = {
          {.name = model.workload, .bytes = static_cast<int64_t>(model.exchange_mib * (1 << 20))}};
    } else {
      PSRING_ASSIGN_OR_RETURN(workload, LoadWorkload(model.workload));
      workload = Faster(workload,
                        workload.compute_ms() / (1e3 * PublishedSeconds(system, model, model.rows.front())));
    }
    workload.batch = model.batch;
    if (system.partition_mb > 0) {
      workload = InPieces(workload, static_cast<int64_t>(system.partition_mb * (1 << 20)));
    }
    if (system.after_backward) workload = AfterBackward(std::move(workload));
    for (size_t i = exchange ? 0 : 1; i < model.rows.size(); ++i) {
      const PublishedRow row = model.rows[i];
      rows.push_back(
          {.label = absl::StrCat(model.workload, ", ", row.gpus, " GPUs"),
           .size = row.gpus,
           .measured = PublishedSeconds(system, model, row),
           .predict = PredictedStepOf(workload, CaseOf(system, row.gpus), system.cluster, system.options)});
    }
  }
  return rows;
}

absl::StatusOr<LeftOutSystem> LeaveOut(const PublishedSystem& system) {
  const double rdma = system.rdma ? 1 : 0;
  const Causes causes = CausesOf(system.cluster, rdma, &system);
  LeftOutSystem left_out{.system = &system, .expected = GuessesOf(causes, 1).front()};
  PSRING_ASSIGN_OR_RETURN(const std::vector<FitRow> rows, RowsOf(system));
  for (const FitRow& row : rows) {
    std::vector<double> seconds, logs;  // logs: of speeds
    for (const Constants& guess : GuessesOf(causes, ShapeOf(system.cluster, row.size).nodes)) {
      PSRING_ASSIGN_OR_RETURN(seconds.emplace_back(), row.predict(guess));
      logs.push_back(std::log(seconds.front() / seconds.back()));
    }
    const Situation situation{.gpu = system.gpu,
                              .rdma = rdma,
                              .point = CaseOf(system, row.size),
                              .options = system.options,
                              .cluster = system.cluster};
    left_out.rows.push_back({.label = row.label,
                             .measured = row.measured,
                             .predicted = seconds.front(),
                             .logs = std::move(logs),
                             .differences = Differences(situation, &system).size()});
  }
  return left_out;
}

const std::vector<Constants>& FittedTrainings() {
  static const auto& fitted = *[] {
    auto* const all = new std::vector<Constants>();
    for (const PublishedTraining& training : PublishedTrainings()) all->push_back(FittedTo(training));
    return all;
  }();
  return fitted;
}

bool Gathers(const PublishedTraining& training) { return ShardingStrategy(training.strategy).shards_weights; }

absl::StatusOr<LeftOutSystem> LeaveOut(const PublishedTraining& training, bool walks) {
  const Causes causes = CausesOfLayouts(training.cluster, /*rdma=*/1, Gathers(training), &training);
  LeftOutSystem left_out{.expected = GuessesOf(causes, 1).front()};
  PSRING_ASSIGN_OR_RETURN(TrainingPredictor predictor, TrainingPredictor::Of(training));
  TrainingSteps steps(training, std::move(predictor));
  PSRING_ASSIGN_OR_RETURN(std::vector<double> expected, steps.At(left_out.expected));
  if (walks) {
    PSRING_ASSIGN_OR_RETURN(expected, steps.At(left_out.expected, /*is_bound=*/false));
  }
  for (size_t i = 0; i < expected.size(); ++i) {
    const PublishedLayout& row = training.rows[i + 1];
    std::vector<double> seconds, logs;  // logs: of speeds
    for (const Constants& guess : GuessesOf(causes, ShapeOf(training.cluster, row.workers).nodes)) {
      PSRING_ASSIGN_OR_RETURN(const std::vector<double> all, steps.At(guess));
      seconds.push_back(all[i]);
      logs.push_back(std::log(seconds.front() / seconds.back()));
    }
    left_out.rows.push_back(
        {.label = NameOf(row), .measured = row.seconds, .predicted = expected[i], .logs = std::move(logs)});
  }
  return left_out;
}

double LayoutModelFactor() {
  static const double factor = [] {
    std::vector<LeftOutSystem> all;
    for (const PublishedTraining& training : PublishedTrainings()) {
      all.push_back(LeaveOut(training, /*walks=*/false).value());
    }
    return SmallestModelFactor(all);
  }();
  return factor;
}

LeftOutSummary SummaryOf(const std::vector<LeftOutSystem>& systems, double model_factor) {
  std::vector<double> errors, widths;
  LeftOutSummary summary;
  for (const LeftOutSystem& left_out : systems) {
    for (const LeftOutRow& row : left_out.rows) {
      errors.push_back(std::abs(row.error()));
      const Interval range = row.Range(model_factor);
      widths.push_back(range.high / range.low);
      summary.coverage += row.Holds(model_factor) ? 1 : 0;
    }
  }
  PSRING_CHECK(!errors.empty());
  summary.rows = errors.size();
  summary.coverage /= static_cast<double>(errors.size());
  summary.median_error = Quantile(errors, 0.5);
  summary.worst_error = *std::ranges::max_element(errors);
  summary.median_width = Quantile(widths, 0.5);
  return summary;
}

double SmallestModelFactor(const std::vector<LeftOutSystem>& systems) {
  constexpr int kMaxPercent = 100;
  std::vector<LeftOutRow> rows;
  for (const LeftOutSystem& left_out : systems)
    rows.insert(rows.end(), left_out.rows.begin(), left_out.rows.end());
  const auto wanted = static_cast<std::ptrdiff_t>(9 * rows.size() / 10);
  for (int percent = 1; percent < kMaxPercent; ++percent) {
    const double factor = 1 + percent / 100.0;
    if (std::ranges::count_if(rows, [&](const LeftOutRow& row) { return row.Holds(factor); }) >= wanted)
      return factor;
  }
  return 1 + kMaxPercent / 100.0;
}

std::string PublishedText(const std::vector<LeftOutSystem>& systems) {
  std::string text =
      "# Published systems, each predicted from the others\n\nWritten by `./run predict --published`. Every "
      "predicted figure is *simulated*; the published ones\nare measurements by others.\n\nThe first row of "
      "each model, on one machine, sets its computing time and is not listed; exchanges compute nothing. All "
      "others\nare predicted with "
      "the constants of the other systems, as if this one were unknown (leave one system out): the "
      "weighted distribution of their\nfitted constants gives the prediction and its range. The fit of a "
      "system assumes that rows are accurate to 5% and that\nconstants are near their initial values, so a "
      "constant that the rows do not determine keeps its initial value.\n";
  for (const LeftOutSystem& left_out : systems) text += SystemText(left_out);
  const LeftOutSummary all = SummaryOf(systems);
  absl::StrAppendFormat(
      &text,
      "\n## All rows\n\n%d rows: median error %.1f%%, worst %.1f%%. %.0f%% are in their "
      "ranges, whose median width (upper over lower end) is %.2f.\n"
      "The model's own error, a factor of %.2f, is the smallest, in steps of 0.01, with which the ranges "
      "hold 9 of 10 rows, rounded\ndown to whole rows.\n\n"
      "These runs do not show what causes a loss: `compute_cv` stands for everything that makes a "
      "synchronous step wait for its\nslowest machine, `fraction` for everything that a program "
      "loses of its link, and `node_loss` for what it loses as machines\nare added.\n",
      all.rows, 100 * all.median_error, 100 * all.worst_error, 100 * all.coverage, all.median_width,
      SmallestModelFactor(systems));
  return text;
}

std::string PublishedLayoutsText(const std::vector<LeftOutSystem>& trainings) {
  const double factor = LayoutModelFactor();
  std::string text =
      "\n# Published layouts\n\nSteps of sharded, pipelined and tensor-parallel training, predicted as by "
      "`predict --layouts auto`. The first row of each table\nsets the speed of matrix products and is not "
      "listed. Constants and ranges are those of the other trainings and of the systems above.\n";
  for (size_t i = 0; i < trainings.size(); ++i) {
    const PublishedTraining& training = PublishedTrainings()[i];
    absl::StrAppendFormat(&text, "\n## %s\n\n%s\n\nExpected from the others: %s; fitted to this one: %s.\n\n",
                          training.title, SourceText(training), ConstantsText(trainings[i].expected),
                          ConstantsText(FittedTrainings()[i]));
    text += RowsText(trainings[i].rows, "s", 1, 2, factor);
  }
  const LeftOutSummary all = SummaryOf(trainings, factor);
  absl::StrAppendFormat(
      &text,
      "\n%d rows: median error %.1f%%, worst %.1f%%. %.0f%% are in their ranges, whose median width (upper "
      "over "
      "lower end) is %.2f, with a\nmodel error of a factor of %.2f, the smallest that holds 9 of 10 rows. "
      "Wide "
      "matrices compute faster, because elementwise operations\non the memory's rate take a smaller part of "
      "their time. ZeRO-3 lost on many devices what FSDP hides behind computation.\n",
      all.rows, 100 * all.median_error, 100 * all.worst_error, 100 * all.coverage, all.median_width, factor);
  return text;
}

absl::StatusOr<std::string> CheckPublishedRuns(
    const std::function<absl::Status(const std::string& name)>& begin) {
  std::vector<LeftOutSystem> systems;
  for (const PublishedSystem& system : PublishedSystems()) {
    PSRING_RETURN_IF_ERROR(begin(system.name));
    PSRING_ASSIGN_OR_RETURN(systems.emplace_back(), LeaveOut(system));
  }
  PSRING_RETURN_IF_ERROR(begin("layouts"));
  std::vector<LeftOutSystem> trainings;
  for (const PublishedTraining& training : PublishedTrainings()) {
    PSRING_ASSIGN_OR_RETURN(trainings.emplace_back(), LeaveOut(training, /*walks=*/true));
  }
  return PublishedText(systems) + PublishedLayoutsText(trainings);
}

}  // namespace psring
