#include "experiments/verbs/predict/predict.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <memory>
#include <set>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/check.h"
#include "common/base/read_file.h"
#include "common/base/wall_time.h"
#include "common/io/files.h"
#include "common/measure/trace.h"
#include "common/text/translate.h"
#include "experiments/engine/failure.h"
#include "experiments/page/page.h"
#include "experiments/run_folder/recorded_run.h"
#include "experiments/run_folder/run_claim.h"
#include "experiments/run_folder/run_folder.h"
#include "experiments/verbs/predict/calibrate_run.h"
#include "experiments/verbs/predict/causes.h"
#include "experiments/verbs/predict/layout_answer.h"
#include "experiments/verbs/predict/published_check.h"
#include "experiments/verbs/predict/report.h"
#include "ring_worker/schedules/schedule.h"

namespace psring {
namespace {

// Finds a strategy, or an all-reduce algorithm without a strategy, by name.
// `given`: all names of --strategies.
absl::StatusOr<StrategyRow> Find(const std::string& name, const std::vector<std::string>& given = {}) {
  absl::StatusOr<StrategyRow> strategy = FindStrategy(name, given);
  const ScheduleRow* const schedule = FindSchedule(name);
  if (!strategy.ok() && schedule != nullptr && schedule->offers(Collective::kAllReduce)) {
    strategy = AllReduceRow(name);
  }
  if (strategy.ok()) PSRING_RETURN_IF_ERROR(CheckStrategy(*strategy));
  return strategy;
}

// Fits the model to a measured run. Called instead of a prediction.
absl::Status Calibrate(const PredictFlags& flags, Display& display) {
  std::error_code error;  // ReadFile reports it
  const std::string in_folder = flags.calibrate + "/bench.json";
  const bool folder = std::filesystem::is_directory(flags.calibrate, error);
  const bool bench =
      folder ? std::filesystem::exists(in_folder, error) : absl::EndsWith(flags.calibrate, ".json");
  const std::string path = !folder ? flags.calibrate : bench ? in_folder : flags.calibrate + "/summary.csv";
  PSRING_ASSIGN_OR_RETURN(const std::string text_of_run, ReadFile(path, kMaxRecordBytes));
  const auto named = [&](const absl::Status& status) {
    return absl::Status(status.code(), absl::StrCat("--calibrate ", path, ": ", status.message()));
  };
  absl::StatusOr<std::vector<RunStep>> steps =
      bench ? ParseBenchSteps(text_of_run, flags.server_wire) : ParseRunSteps(text_of_run, flags.server_wire);
  if (!steps.ok()) return named(steps.status());
  CalibrateInputs inputs{
      .steps = *std::move(steps), .cluster = flags.cluster, .options = flags.options, .fitted = flags.fitted};
  if (flags.workload_given) inputs.workload = flags.workload;
  std::set<std::string> names;
  for (const RunStep& step : inputs.steps) {
    if (!names.insert(step.strategy).second) continue;
    absl::StatusOr<StrategyRow> strategy = Find(step.strategy);
    if (strategy.ok() && strategy->communicates()) inputs.strategies.push_back(*std::move(strategy));
  }
  const absl::StatusOr<std::string> text = CalibrationText(inputs);
  if (!text.ok()) return named(text.status());
  display.SayLines(*text);
  return absl::OkStatus();
}

absl::Status CheckPublished(const Interrupt& interrupt, Display& display) {
  PSRING_ASSIGN_OR_RETURN(const std::string text, CheckPublishedRuns([&](const std::string& name) {
                            display.Redraw(absl::StrCat("predicting ", name));
                            return interrupt.Check();
                          }));
  display.Clear();
  display.SayLines(text);
  return absl::OkStatus();
}

class PredictionRun {
 public:
  PredictionRun(const PredictFlags& flags, const Interrupt& interrupt, Display& display)
      : flags_(flags),
        interrupt_(interrupt),
        display_(display),
        workload_(flags.pipeline ? DataParallelShare(flags.workload, *flags.pipeline) : flags.workload),
        predictor_(workload_, flags.options) {
    report_.predictor = &predictor_;
    report_.micro_batch = &flags_.workload;
    report_.cluster = flags_.cluster;
    report_.servers_per_node = flags_.servers_per_node;
    if (flags_.profile) {
      report_.cluster.latency_s = flags_.profile->latency_s.value;
      report_.cluster.server_add_s_per_byte = flags_.profile->add_s_per_byte.value;
      report_.notes.push_back(Describe(*flags_.profile));
    }
    if (flags_.system == "auto") NoteWhatIsKnown();
  }

  absl::Status Run() {
    std::vector<std::string> names = flags_.strategies;
    PSRING_RETURN_IF_ERROR(UseCanonicalStrategies(names));
    std::vector<StrategyRow> strategies;
    for (const std::string& name : names) {
      PSRING_ASSIGN_OR_RETURN(strategies.emplace_back(), Find(name, names));
    }
    if (flags_.pipeline && (strategies.size() > 1 || !strategies[0].uses_group)) {
      return absl::InvalidArgumentError(
          Tr("--pp: the replicas of a pipeline are synchronized by one all-reduce; use --strategies ring"));
    }
    PSRING_ASSIGN_OR_RETURN(const std::unique_ptr<RunClaim> claim,
                            RunClaim::Make(flags_.out, "predict", WallNow()));
    const int64_t begin = MonotonicNanos();
    PSRING_ASSIGN_OR_RETURN(Manifest manifest, BeginManifest(flags_));
    const std::vector<PredictCase> cases = CasesOf(strategies);
    if (cases.empty()) {
      return absl::InvalidArgumentError(
          Tr("nothing to predict: a single process does not communicate, and colocated servers need at least "
             "as many workers"));
    }
    for (const PredictCase& point : cases) PSRING_RETURN_IF_ERROR(PredictRow(point));
    PSRING_RETURN_IF_ERROR(MatchServers(strategies));
    PSRING_RETURN_IF_ERROR(FindFastestBySize(strategies));
    PSRING_RETURN_IF_ERROR(FindSufficientRate());
    if (flags_.pipeline) PSRING_RETURN_IF_ERROR(PredictPipelines(strategies[0]));
    display_.Clear();
    PSRING_ASSIGN_OR_RETURN(const RunFolder folder, RunFolder::Open(*claim));
    report_.run_id = manifest.run_id = folder.run_id();
    std::vector<std::vector<Cell>> rows;
    for (size_t i = 0; i < report_.rows.size(); ++i) {
      rows.push_back(PredictedCells(report_, report_.rows[i]));
      if (flags_.pipeline) rows.push_back(PipelineCells(report_, i));
    }
    PSRING_RETURN_IF_ERROR(folder.Write("summary.csv", CellsCsv(rows)));
    PSRING_RETURN_IF_ERROR(folder.Write("summary.json", CellsJson(rows)));
    const auto text = [&] { return PredictText(report_); };
    PSRING_RETURN_IF_ERROR(folder.Write("predict.txt", InLanguage(Language::kEnglish, text)));
    PSRING_RETURN_IF_ERROR(folder.Write("predict.zh.txt", InLanguage(Language::kChinese, text)));
    manifest.wall_s = 1e-9 * (MonotonicNanos() - begin);
    PSRING_RETURN_IF_ERROR(folder.WriteManifest(manifest));
    PSRING_RETURN_IF_ERROR(WriteRunReport(folder.path()));
    display_.SayLines(
        absl::StrCat(PredictText(report_), "\n",
                     Tr("results: $0/report.html, and in the same folder summary.csv, summary.json, "
                        "predict.txt, manifest.json\nrepeat: $1 predict --config $0/config.toml",
                        folder.path(), CommandName())));
    return absl::OkStatus();
  }

 private:
  std::vector<PredictCase> CasesOf(const std::vector<StrategyRow>& strategies) const {
    std::vector<PredictCase> cases;
    for (const int workers : flags_.workers) {
      for (const StrategyRow& strategy : strategies) {
        if (strategy.single_process && workers > 1) continue;
        if (workload_.compute_ms() == 0 && !strategy.communicates()) continue;  // nothing to simulate
        if (!strategy.uses_servers) {
          cases.push_back({.strategy = strategy, .workers = workers});
          continue;
        }
        const int nodes = ShapeOf(flags_.cluster, workers).nodes;
        const int most = flags_.options.local_aggregation ? nodes : workers;
        for (const int servers : flags_.servers_per_node ? std::vector<int>{nodes} : flags_.servers) {
          if (flags_.options.place == ServerPlace::kColocated && servers > most) continue;
          cases.push_back({.strategy = strategy, .workers = workers, .servers = servers});
        }
      }
    }
    return cases;
  }

  absl::Status Progress(const std::string& doing) {
    display_.Redraw(doing);
    return interrupt_.Check();
  }

  // The same for all strategies.
  Causes CausesFor(const Cluster& cluster) const {
    Causes causes;
    if (flags_.system == "auto") {
      causes = CausesOf(cluster, flags_.rdma);
    } else if (flags_.system != "none") {
      causes = CausesLike(**FindSystem(flags_.system), cluster, flags_.rdma);  // UnderstandPredict found it
    }
    for (const std::string& name : flags_.given) causes.erase(name);
    if (flags_.window_mb) causes["window_mb"] = {*flags_.window_mb, *flags_.window_mb, *flags_.window_mb};
    if (flags_.system != "none" && flags_.profile) {
      // The interval of the measurement, if it is bounded.
      const auto& [latency_s, interval] = flags_.profile->latency_s;
      causes["latency_us"] = {1e6 * std::max(interval.low, latency_s / 2), 1e6 * latency_s,
                              1e6 * std::min(interval.high, 2 * latency_s)};
    }
    return causes;
  }

  void NoteWhatIsKnown() {
    Cluster unknown = report_.cluster;
    if (flags_.given.contains("latency_us")) unknown.latency_s = Cluster().latency_s;
    const std::string known =
        KnownText(flags_.given, CausesOf(unknown, flags_.rdma), CausesFor(report_.cluster));
    if (!known.empty()) report_.notes.push_back(known);
  }

  // Without predictions.
  PredictedRow RowOf(const PredictCase& point, const Cluster& cluster) const {
    const bool communicates = point.strategy.communicates();
    const int nodes = ShapeOf(cluster, point.workers).nodes;
    return {.point = point,
            .constants = communicates ? GuessesOf(CausesFor(cluster), nodes) : std::vector<Constants>(1),
            .single_samples_per_s = workload_.batch / (1e-3 * workload_.compute_ms()),
            .situation = {.gpu = flags_.workload.device,
                          .rdma = flags_.rdma,
                          .point = point,
                          .options = flags_.options,
                          .cluster = cluster},
            .system = communicates ? flags_.system : "none"};
  }

  struct Assumed {
    Cluster cluster;
    PredictOptions options;
  };
  Assumed AssumedWith(const Constants& constants, const Cluster& cluster) const {
    Assumed assumed{cluster, flags_.options};
    Apply(constants, assumed.cluster, assumed.options);
    return assumed;
  }
  absl::StatusOr<Prediction> PredictionOf(const PredictedRow& row, const Constants& constants) const {
    const Assumed assumed = AssumedWith(constants, row.situation.cluster);
    return Simulate(row.point, assumed.options, assumed.cluster);
  }

  absl::Status PredictRow(const PredictCase& point) {
    PredictedRow row = RowOf(point, report_.cluster);
    PSRING_RETURN_IF_ERROR(Progress(absl::StrCat("simulating ", row.name(), " x ", point.workers)));
    for (const Constants& guess : row.constants) {
      // Workers that do not wait for others take the mean time to compute, and latencies overlap.
      Constants same = guess;
      for (const char* name : {"compute_cv", "latency_us"}) {
        if (same.contains(name)) same[name] = row.constants.front().at(name);
      }
      if (point.strategy.asynchronous() && !row.guesses.empty() && same == row.constants.front()) {
        row.guesses.push_back(Prediction(row.expected()));
      } else {
        PSRING_ASSIGN_OR_RETURN(Prediction prediction, PredictionOf(row, guess));
        row.guesses.push_back(std::move(prediction));
      }
    }
    report_.rows.push_back(std::move(row));
    return absl::OkStatus();
  }

  absl::StatusOr<Prediction> ExpectedOf(const PredictCase& point, const Cluster& cluster) const {
    const PredictedRow row = RowOf(point, cluster);
    return PredictionOf(row, row.constants.front());
  }
  absl::StatusOr<double> SecondsOf(const PredictCase& point) const {
    PSRING_ASSIGN_OR_RETURN(const Prediction prediction, ExpectedOf(point, report_.cluster));
    return prediction.step;
  }

  // Assumes that faster links are never slower; bisection to 10%.
  absl::Status FindSufficientRate() {
    constexpr double kMaxRate = 1e13;  // bytes/s
    const std::optional<PredictionVerdict> verdict = VerdictAt(report_, MostWorkers(report_));
    if (!verdict || !DoesLittle(*verdict->winner)) return absl::OkStatus();
    const PredictedRow& winner = *verdict->winner;
    PSRING_RETURN_IF_ERROR(Progress("links that suffice"));
    const auto suffices = [&](double rate) -> absl::StatusOr<bool> {
      Cluster cluster = report_.cluster;
      cluster.link_bytes_per_s = rate;
      PSRING_ASSIGN_OR_RETURN(const Prediction there, ExpectedOf(winner.point, cluster));
      return there.samples_per_s >= 0.5 * winner.point.workers * winner.single_samples_per_s;
    };
    double low = report_.cluster.link_bytes_per_s, high = low;
    for (bool enough = false; !enough;) {
      if (high >= kMaxRate) {
        report_.findings.half_work_bits_per_s = INFINITY;
        return absl::OkStatus();
      }
      low = high;
      high *= 4;
      PSRING_ASSIGN_OR_RETURN(enough, suffices(high));
    }
    while (high > 1.1 * low) {
      const double middle = std::sqrt(low * high);
      PSRING_ASSIGN_OR_RETURN(const bool enough, suffices(middle));
      (enough ? high : low) = middle;
    }
    report_.findings.half_work_bits_per_s = 8 * high;
    return absl::OkStatus();
  }

  absl::StatusOr<Prediction> Simulate(const PredictCase& point, const PredictOptions& options,
                                      const Cluster& cluster) const {
    PSRING_ASSIGN_OR_RETURN(Prediction prediction, Predictor(workload_, options).Predict(point, cluster));
    if (flags_.pipeline) {
      // Without the samples by which some workers compute fewer than others.
      prediction.samples_per_s *= double(flags_.pipeline->micro_batches) * flags_.workload.batch /
                                  (double(flags_.pipeline->ranks) * workload_.batch);
    }
    return prediction;
  }

  // The pipeline on the devices of every row.
  absl::Status PredictPipelines(const StrategyRow& strategy) {
    PipelineCase point = *flags_.pipeline;
    point.strategy = strategy;
    Assumed with_most;
    for (const PredictedRow& row : report_.rows) {
      point.workers = row.point.workers;
      PSRING_RETURN_IF_ERROR(Progress(absl::StrCat("simulating ", point.layout())));
      with_most = AssumedWith(row.constants.front(), report_.cluster);
      PSRING_ASSIGN_OR_RETURN(PipelinePrediction prediction,
                              PredictPipeline(flags_.workload, with_most.options, point, with_most.cluster));
      report_.pipelines.push_back({point, std::move(prediction)});
    }
    return FindLinkFactor(with_most);
  }

  // Faster links favor data parallelism, which has no bubble, except if their latency decides. Bisection
  // assumes one change in each direction.
  absl::Status FindLinkFactor(const Assumed& assumed) {
    const PipelineCase& point = report_.pipelines.back().point;
    const PredictCase& copies = report_.rows.back().point;
    const bool wins = report_.pipelines.back().prediction.prediction.samples_per_s >
                      report_.rows.back().expected().samples_per_s;
    const auto wins_with = [&](double factor) -> absl::StatusOr<bool> {
      PSRING_RETURN_IF_ERROR(Progress(absl::StrFormat("links %g times as fast", factor)));
      Cluster cluster = assumed.cluster;
      (ShapeOf(cluster, point.workers).nodes > 1 ? cluster.link_bytes_per_s : cluster.intra_bytes_per_s) *=
          factor;
      PSRING_ASSIGN_OR_RETURN(const Prediction copied, Simulate(copies, assumed.options, cluster));
      PSRING_ASSIGN_OR_RETURN(const PipelinePrediction cut,
                              PredictPipeline(flags_.workload, assumed.options, point, cluster));
      return cut.prediction.samples_per_s > copied.samples_per_s;
    };
    for (const int direction : wins ? std::array{1, -1} : std::array{-1, 1}) {
      int same = 0, other = std::ilogb(kMaxLinkFactor);
      PSRING_ASSIGN_OR_RETURN(const bool wins_at_end, wins_with(std::exp2(direction * other)));
      if (wins_at_end == wins) continue;
      while (other - same > 1) {
        const int middle = same + (other - same) / 2;
        PSRING_ASSIGN_OR_RETURN(const bool wins_there, wins_with(std::exp2(direction * middle)));
        (wins_there == wins ? same : other) = middle;
      }
      report_.link_factor = std::exp2(direction * other);
      break;
    }
    return absl::OkStatus();
  }

  // Assumes that more servers are never slower; bisection finds the fewest.
  absl::Status MatchServers(const std::vector<StrategyRow>& strategies) {
    const auto first = [&](const auto& is) { return std::find_if(strategies.begin(), strategies.end(), is); };
    const auto all_reduce = first([](const StrategyRow& s) { return s.uses_group; });
    const auto server = first([](const StrategyRow& s) { return s.uses_servers && s.synchronous; });
    if (all_reduce == strategies.end() || server == strategies.end()) return absl::OkStatus();
    report_.findings.matched_strategy = all_reduce->name;
    for (const int workers : flags_.workers) {
      if (workers == 1) continue;
      PSRING_RETURN_IF_ERROR(Progress(absl::StrCat("servers to match ", all_reduce->name, " x ", workers)));
      PSRING_ASSIGN_OR_RETURN(const double goal_s, SecondsOf({.strategy = *all_reduce, .workers = workers}));
      const auto matches = [&](int servers) -> absl::StatusOr<bool> {
        PSRING_ASSIGN_OR_RETURN(const double with_s, SecondsOf({*server, workers, servers}));
        return with_s <= 1.005 * goal_s;
      };
      int low = 1, high = flags_.options.local_aggregation ? ShapeOf(flags_.cluster, workers).nodes : workers;
      PSRING_ASSIGN_OR_RETURN(const bool any, matches(high));
      while (any && low < high) {
        const int middle = low + (high - low) / 2;
        PSRING_ASSIGN_OR_RETURN(const bool enough, matches(middle));
        (enough ? high : low) = enough ? middle : middle + 1;
      }
      report_.findings.servers_to_match.emplace_back(workers, any ? low : 0);
    }
    return absl::OkStatus();
  }

  absl::Status FindFastestBySize(const std::vector<StrategyRow>& strategies) {
    const int workers = flags_.workers.back();
    if (workers == 1) return absl::OkStatus();
    std::vector<PredictCase> cases = CasesOf(strategies);
    std::erase_if(cases, [&](const auto& point) {
      return point.workers != workers || !point.strategy.communicates() || !point.strategy.synchronous;
    });
    if (cases.size() < 2) return absl::OkStatus();
    for (int exponent = 10; exponent <= 30; exponent += 2) {
      const double bytes = std::exp2(exponent);
      PSRING_RETURN_IF_ERROR(Progress(absl::StrFormat("exchanges of %.0f bytes", bytes)));
      PredictReport exchanges;
      for (const PredictCase& point : cases) {
        PSRING_ASSIGN_OR_RETURN(exchanges.rows.emplace_back(), ExchangeRow(point, bytes));
      }
      const std::optional<PredictionVerdict> verdict = VerdictAt(exchanges, workers);
      report_.findings.fastest_by_size.emplace_back(
          bytes, verdict && verdict->shown ? std::optional(verdict->winner->point) : std::nullopt);
    }
    return absl::OkStatus();
  }

  // Of one exchange without computing.
  absl::StatusOr<PredictedRow> ExchangeRow(const PredictCase& point, double bytes) const {
    PredictedRow row = RowOf(point, report_.cluster);
    Causes causes = CausesFor(report_.cluster);
    causes.erase("compute_cv");
    row.constants = GuessesOf(causes, ShapeOf(report_.cluster, point.workers).nodes);
    for (const Constants& guess : row.constants) {
      const Assumed assumed = AssumedWith(guess, report_.cluster);
      const Predictor predictor(workload_, assumed.options);
      PSRING_ASSIGN_OR_RETURN(const double seconds, predictor.ExchangeSeconds(point, assumed.cluster, bytes));
      row.guesses.push_back({.step = seconds, .samples_per_s = 1 / seconds});
    }
    return row;
  }

  const PredictFlags& flags_;
  const Interrupt& interrupt_;
  Display& display_;
  const Workload workload_;  // of a worker and step; with --pp its share of the global batch
  Predictor predictor_;
  PredictReport report_;
};

}  // namespace

int RunPredict(const PredictFlags& flags, const Interrupt& interrupt, Display& display) {
  const absl::Status status = flags.published            ? CheckPublished(interrupt, display)
                              : flags.memory_bytes > 0   ? SearchLayouts(flags, interrupt, display)
                              : !flags.calibrate.empty() ? Calibrate(flags, display)
                                                         : PredictionRun(flags, interrupt, display).Run();
  return status.ok() ? 0 : ReportFailure("predict", status, display);
}

}  // namespace psring
