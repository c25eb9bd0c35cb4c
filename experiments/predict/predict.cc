#include "experiments/predict/predict.h"

#include <algorithm>
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
#include "experiments/engine/programs.h"
#include "experiments/predict/calibrate_run.h"
#include "experiments/predict/published_check.h"
#include "experiments/predict/report.h"
#include "experiments/report/page.h"
#include "experiments/runs/recorded_run.h"
#include "experiments/runs/run_claim.h"
#include "experiments/runs/run_folder.h"
#include "experiments/theory/machine_profile.h"
#include "ring_worker/schedules/schedule.h"

namespace psring {
namespace {

// Finds a strategy, or an all-reduce algorithm without a strategy, by name.
// `given`: all names of --strategies.
absl::StatusOr<StrategyRow> Find(const std::string& name, const std::vector<std::string>& given = {}) {
  absl::StatusOr<StrategyRow> strategy = FindStrategy(name, given);
  if (!strategy.ok() && FindSchedule(name) != nullptr) strategy = AllReduceRow(name);
  if (strategy.ok()) PSRING_RETURN_IF_ERROR(CheckStrategy(*strategy));
  return strategy;
}

class PredictionRun {
 public:
  PredictionRun(const PredictFlags& flags, const Interrupt& interrupt, Display& display)
      : flags_(flags), interrupt_(interrupt), display_(display), predictor_(flags.workload, flags.options) {
    report_.predictor = &predictor_;
    report_.cluster = flags_.cluster;
    report_.servers_per_node = flags_.servers_per_node;
  }

  // Fits the model to a measured run. Called instead of Run.
  absl::Status Calibrate() {
    std::error_code error;  // ReadFile reports it
    const bool folder = std::filesystem::is_directory(flags_.calibrate, error);
    const std::string in_folder = flags_.calibrate + "/bench.json";
    const bool bench =
        folder ? std::filesystem::exists(in_folder, error) : absl::EndsWith(flags_.calibrate, ".json");
    const std::string path = !folder ? flags_.calibrate
                             : bench ? in_folder
                                     : flags_.calibrate + "/summary.csv";
    PSRING_ASSIGN_OR_RETURN(const std::string text_of_run, ReadFile(path, kMaxRecordBytes));
    const auto named = [&](const absl::Status& status) {
      return absl::Status(status.code(), absl::StrCat("--calibrate ", path, ": ", status.message()));
    };
    absl::StatusOr<std::vector<RunStep>> steps =
        bench ? ParseBenchExchanges(text_of_run) : ParseRunSteps(text_of_run);
    if (!steps.ok()) return named(steps.status());
    CalibrateInputs inputs{.steps = *std::move(steps),
                           .cluster = flags_.cluster,
                           .options = flags_.options,
                           .fitted = flags_.fitted};
    if (flags_.workload_given) inputs.workload = flags_.workload;
    std::set<std::string> names;
    for (const RunStep& step : inputs.steps) {
      if (!names.insert(step.strategy).second) continue;
      absl::StatusOr<StrategyRow> strategy = Find(step.strategy);
      if (strategy.ok() && strategy->communicates()) inputs.strategies.push_back(*std::move(strategy));
    }
    absl::StatusOr<std::string> text = CalibrationText(inputs);
    if (!text.ok()) return named(text.status());
    display_.SayLines(*text);
    return absl::OkStatus();
  }

  absl::Status Run() {
    PSRING_ASSIGN_OR_RETURN(const Binaries binaries, FindBinaries());
    std::vector<std::string> names = flags_.strategies;
    PSRING_RETURN_IF_ERROR(UseCanonicalStrategies(names));
    std::vector<StrategyRow> strategies;
    for (const std::string& name : names) {
      PSRING_ASSIGN_OR_RETURN(strategies.emplace_back(), Find(name, names));
    }
    PSRING_RETURN_IF_ERROR(ReadProfile());
    PSRING_ASSIGN_OR_RETURN(const std::unique_ptr<RunClaim> claim,
                            RunClaim::Make(flags_.out, "predict", WallNow()));
    const int64_t begin = MonotonicNanos();
    Manifest manifest{.verb = "predict",
                      .command_line = flags_.command_line,
                      .started_utc = Iso8601(WallNow()),
                      .machine = DescribeMachine(),
                      .plan = {}};
    PSRING_ASSIGN_OR_RETURN(manifest.provenance, DescribeProvenance(binaries.all(), flags_.files));
    const std::vector<PredictCase> cases = CasesOf(strategies);
    if (cases.empty()) {
      return absl::InvalidArgumentError(
          Tr("nothing to predict: a single process does not communicate, and colocated servers need at least "
             "as many workers"));
    }
    for (const PredictCase& point : cases) PSRING_RETURN_IF_ERROR(PredictRow(point));
    PSRING_RETURN_IF_ERROR(MatchServers(strategies));
    PSRING_RETURN_IF_ERROR(FindFastestBySize(strategies));
    display_.Clear();
    PSRING_ASSIGN_OR_RETURN(const RunFolder folder, RunFolder::Open(*claim));
    report_.run_id = manifest.run_id = folder.run_id();
    std::vector<std::vector<Cell>> rows;
    for (const PredictedRow& row : report_.rows) rows.push_back(PredictedCells(report_, row));
    PSRING_RETURN_IF_ERROR(folder.Write("summary.csv", CellsCsv(rows)));
    PSRING_RETURN_IF_ERROR(folder.Write("summary.json", CellsJson(rows)));
    const auto text = [&] { return PredictText(report_); };
    PSRING_RETURN_IF_ERROR(folder.Write("predict.txt", InLanguage(Language::kEnglish, text)));
    PSRING_RETURN_IF_ERROR(folder.Write("predict.zh.txt", InLanguage(Language::kChinese, text)));
    manifest.wall_s = 1e-9 * static_cast<double>(MonotonicNanos() - begin);
    PSRING_RETURN_IF_ERROR(folder.WriteManifest(manifest));
    PSRING_RETURN_IF_ERROR(WriteRunReport(folder.path()));
    display_.SayLines(
        absl::StrCat(text(), "\n",
                     Tr("results: $0/report.html, and in the same folder summary.csv, summary.json, "
                        "predict.txt, manifest.json\nrepeat: $1 predict --config $0/config.toml",
                        folder.path(), CommandName())));
    return absl::OkStatus();
  }

 private:
  absl::Status ReadProfile() {
    if (flags_.profile.empty()) return absl::OkStatus();
    PSRING_ASSIGN_OR_RETURN(const MachineProfile profile, LoadMachineProfile(flags_.profile));
    report_.cluster.latency_s = profile.latency_s.value;
    report_.cluster.server_add_s_per_byte = profile.add_s_per_byte.value;
    report_.notes.push_back(Describe(profile));
    return absl::OkStatus();
  }

  std::vector<PredictCase> CasesOf(const std::vector<StrategyRow>& strategies) const {
    std::vector<PredictCase> cases;
    for (const int workers : flags_.workers) {
      for (const StrategyRow& strategy : strategies) {
        if (strategy.single_process && workers > 1) continue;
        if (flags_.workload.compute_ms() == 0 && !strategy.communicates()) continue;  // nothing to simulate
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

  // A case with the constants of the published system used for it, if any.
  struct Calibrated {
    Situation situation;
    const PublishedSystem* nearest;
    Constants used;
    Cluster cluster;
    PredictOptions options;
  };
  absl::StatusOr<Calibrated> CalibrationOf(const PredictCase& point) const {
    Calibrated it{.situation = {.gpu = flags_.workload.device,
                                .rdma = flags_.rdma,
                                .point = point,
                                .options = flags_.options,
                                .cluster = report_.cluster},
                  .nearest = nullptr,
                  .cluster = report_.cluster,
                  .options = flags_.options};
    if (flags_.system == "none" || !point.strategy.communicates()) return it;
    it.nearest = &NearestSystem(it.situation);
    bool use = SameEnvironment(it.situation, *it.nearest);
    if (flags_.system != "auto") {
      PSRING_ASSIGN_OR_RETURN(const PublishedSystem* named, FindSystem(flags_.system));
      if (named->servers == point.strategy.uses_servers) {
        it.nearest = named;
        use = true;
      }
    }
    for (const auto& [name, value] : it.nearest->constants) {
      if (use && !flags_.given.contains(name)) it.used[name] = value;
    }
    Apply(it.used, it.cluster, it.options);
    return it;
  }

  absl::Status PredictRow(const PredictCase& point) {
    PredictedRow row{.point = point};
    PSRING_ASSIGN_OR_RETURN(Calibrated calibrated, CalibrationOf(point));
    Predictor predictor(flags_.workload, calibrated.options);
    row.situation = std::move(calibrated.situation);
    row.nearest = calibrated.nearest;
    row.used = std::move(calibrated.used);
    const double one_step_s = 1e-3 * flags_.workload.compute_ms();
    row.single_samples_per_s = flags_.workload.batch / one_step_s;
    PSRING_RETURN_IF_ERROR(Progress(absl::StrCat("simulating ", row.name(), " x ", point.workers)));
    for (const NetworkGuess& guess : kNetworkGuesses) {
      PSRING_ASSIGN_OR_RETURN(row.guesses.emplace_back(),
                              predictor.Predict(point, Guessed(calibrated.cluster, guess)));
    }
    report_.rows.push_back(std::move(row));
    return absl::OkStatus();
  }

  absl::StatusOr<Prediction> PredictOnce(const PredictCase& point) const {
    PSRING_ASSIGN_OR_RETURN(const Calibrated calibrated, CalibrationOf(point));
    return Predictor(flags_.workload, calibrated.options).Predict(point, calibrated.cluster);
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
      PSRING_ASSIGN_OR_RETURN(const Prediction goal,
                              PredictOnce({.strategy = *all_reduce, .workers = workers}));
      const auto matches = [&](int servers) -> absl::StatusOr<bool> {
        PSRING_ASSIGN_OR_RETURN(const Prediction with, PredictOnce({*server, workers, servers}));
        return with.step <= 1.005 * goal.step;
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
    std::vector<PredictCase> cases;
    for (const PredictCase& point : CasesOf(strategies)) {
      if (point.workers == workers && point.strategy.communicates() && point.strategy.synchronous) {
        cases.push_back(point);
      }
    }
    if (cases.size() < 2) return absl::OkStatus();
    for (int exponent = 10; exponent <= 30; exponent += 2) {
      const double bytes = std::exp2(exponent);
      PSRING_RETURN_IF_ERROR(Progress(absl::StrFormat("exchanges of %.0f bytes", bytes)));
      double least = INFINITY;
      const PredictCase* fastest = nullptr;
      for (const PredictCase& point : cases) {
        PSRING_ASSIGN_OR_RETURN(const Calibrated calibrated, CalibrationOf(point));
        const Predictor predictor(flags_.workload, calibrated.options);
        PSRING_ASSIGN_OR_RETURN(const double seconds,
                                predictor.ExchangeSeconds(point, calibrated.cluster, bytes));
        if (seconds < least * (1 - 1e-6)) {
          least = seconds;
          fastest = &point;
        }
      }
      if (fastest != nullptr) report_.findings.fastest_by_size.emplace_back(bytes, *fastest);
    }
    return absl::OkStatus();
  }

  const PredictFlags& flags_;
  const Interrupt& interrupt_;
  Display& display_;
  Predictor predictor_;
  PredictReport report_;
};

int CheckPublished(const Interrupt& interrupt, Display& display) {
  std::vector<CheckedSystem> systems;
  for (const PublishedSystem& system : PublishedSystems()) {
    display.Redraw(absl::StrCat("fitting ", system.name));
    if (const absl::Status status = interrupt.Check(); !status.ok())
      return ReportFailure("predict", status, display);
    absl::StatusOr<CheckedSystem> checked = CheckSystem(system);
    if (!checked.ok()) return ReportFailure("predict", checked.status(), display);
    systems.push_back(*std::move(checked));
  }
  display.Clear();
  display.SayLines(PublishedText(systems));
  return 0;
}

}  // namespace

int RunPredict(const PredictFlags& flags, const Interrupt& interrupt, Display& display) {
  if (flags.published) return CheckPublished(interrupt, display);
  if (!flags.calibrate.empty()) {
    const absl::Status status = PredictionRun(flags, interrupt, display).Calibrate();
    return status.ok() ? 0 : ReportFailure("predict", status, display);
  }
  const absl::Status status = PredictionRun(flags, interrupt, display).Run();
  return status.ok() ? 0 : ReportFailure("predict", status, display);
}

}  // namespace psring
