#include "experiments/predict/predict.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>
#include <set>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "common/base/check.h"
#include "common/io/files.h"
#include "common/measure/trace.h"
#include "experiments/compare/experiment.h"
#include "experiments/predict/published_check.h"
#include "experiments/predict/report.h"
#include "experiments/report/report_verb.h"
#include "experiments/runs/recorded_run.h"
#include "experiments/runs/run_claim.h"
#include "experiments/runs/run_files.h"
#include "experiments/texts/predict.h"
#include "experiments/theory/machine_profile.h"
#include "ring_worker/schedules/schedule.h"

namespace psring {
namespace {

// The trainer's strategies, and all-reduces that are not strategies, by the name of their algorithm.
absl::StatusOr<StrategyInfo> Find(const Catalog& catalog, const std::string& name) {
  absl::StatusOr<StrategyInfo> strategy = FindStrategy(catalog, name);
  if (strategy.ok()) {
    PSRING_RETURN_IF_ERROR(CheckStrategy(*strategy));
    return strategy;
  }
  for (const std::string& algorithm : AlgorithmsFor(Collective::kAllReduce)) {
    if (name == algorithm) {
      return StrategyInfo{
          .name = name, .uses_group = true, .backend = "native", .algorithm = name, .synchronous = true};
    }
  }
  return strategy;
}

class PredictionRun {
 public:
  PredictionRun(const PredictFlags& flags, const Interrupt& interrupt, Display& display)
      : flags_(flags), interrupt_(interrupt), display_(display), predictor_(flags.workload, flags.options) {}

  absl::Status Run() {
    PSRING_ASSIGN_OR_RETURN(const Binaries binaries, FindBinaries());
    PSRING_ASSIGN_OR_RETURN(const Catalog catalog, AskTrainer(binaries, interrupt_));
    std::vector<StrategyInfo> strategies;
    for (const std::string& name : flags_.strategies) {
      PSRING_ASSIGN_OR_RETURN(strategies.emplace_back(), Find(catalog, name));
    }
    report_.predictor = &predictor_;
    report_.cluster = flags_.cluster;
    PSRING_RETURN_IF_ERROR(ReadProfile());
    PSRING_ASSIGN_OR_RETURN(const std::unique_ptr<RunClaim> claim,
                            RunClaim::Make(flags_.out, "predict", absl::Now()));
    const std::string& path = claim->path();
    const int64_t begin = MonotonicNanos();
    Manifest manifest{.verb = "predict",
                      .command_line = flags_.command_line,
                      .started_utc = absl::FormatTime("%Y-%m-%dT%H:%M:%SZ", absl::Now(), absl::UTCTimeZone()),
                      .machine = DescribeMachine(),
                      .plan = {}};
    PSRING_ASSIGN_OR_RETURN(manifest.provenance, DescribeProvenance(binaries.all(), flags_.files));
    const std::vector<PredictCase> cases = CasesOf(strategies);
    if (cases.empty()) {
      return absl::InvalidArgumentError(
          "nothing to predict: a single process does not communicate, and colocated servers need at least as "
          "many workers");
    }
    for (const PredictCase& point : cases) PSRING_RETURN_IF_ERROR(PredictRow(point));
    PSRING_RETURN_IF_ERROR(MatchServers(strategies));
    PSRING_RETURN_IF_ERROR(FindFastestBySize(strategies));
    display_.Clear();
    PSRING_RETURN_IF_ERROR(claim->Keep());
    report_.run_id = std::filesystem::path(path).filename().string();
    std::vector<std::vector<Cell>> rows;
    for (const PredictedRow& row : report_.rows) rows.push_back(PredictedCells(report_, row));
    PSRING_RETURN_IF_ERROR(WriteFile(path + "/summary.csv", CellsCsv(rows)));
    PSRING_RETURN_IF_ERROR(WriteFile(path + "/summary.json", CellsJson(rows)));
    PSRING_RETURN_IF_ERROR(WriteFile(path + "/predict.txt", PredictText(report_, Language::kEnglish)));
    PSRING_RETURN_IF_ERROR(WriteFile(path + "/predict.zh.txt", PredictText(report_, Language::kChinese)));
    manifest.run_id = report_.run_id;
    manifest.wall_s = 1e-9 * static_cast<double>(MonotonicNanos() - begin);
    PSRING_RETURN_IF_ERROR(WriteFile(path + "/manifest.json", ManifestJson(manifest)));
    PSRING_RETURN_IF_ERROR(WriteFile(path + "/config.toml", ConfigOf({.verb = manifest.verb,
                                                                      .command_line = manifest.command_line,
                                                                      .provenance = manifest.provenance},
                                                                     "")));
    PSRING_RETURN_IF_ERROR(WriteRunReport(path, flags_.language));
    display_.Say(absl::StrCat(PredictText(report_, flags_.language), "\n",
                              Say(flags_.language, kPredictAllOfIt, path)));
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

  std::vector<PredictCase> CasesOf(const std::vector<StrategyInfo>& strategies) const {
    std::vector<PredictCase> cases;
    for (const int workers : flags_.workers) {
      for (const StrategyInfo& strategy : strategies) {
        if (strategy.single_process && workers > 1) continue;
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

  absl::Status PredictRow(const PredictCase& point) {
    PredictedRow row{.point = point};
    const double one_step_s = 1e-3 * flags_.workload.compute_ms();
    row.single_samples_per_s = flags_.workload.batch / one_step_s;
    PSRING_RETURN_IF_ERROR(Progress(absl::StrCat("simulating ", row.name(), " x ", point.workers)));
    for (const NetworkGuess& guess : kNetworkGuesses) {
      PSRING_ASSIGN_OR_RETURN(row.guesses.emplace_back(),
                              predictor_.Predict(point, Guessed(report_.cluster, guess)));
    }
    report_.rows.push_back(std::move(row));
    return absl::OkStatus();
  }

  // More servers are never slower, so bisection finds the fewest.
  absl::Status MatchServers(const std::vector<StrategyInfo>& strategies) {
    const auto first = [&](const auto& is) { return std::find_if(strategies.begin(), strategies.end(), is); };
    const auto all_reduce = first([](const StrategyInfo& s) { return s.uses_group; });
    const auto server = first([](const StrategyInfo& s) { return s.uses_servers && s.synchronous; });
    if (all_reduce == strategies.end() || server == strategies.end()) return absl::OkStatus();
    report_.findings.matched_strategy = all_reduce->name;
    for (const int workers : flags_.workers) {
      if (workers == 1) continue;
      PSRING_RETURN_IF_ERROR(Progress(absl::StrCat("servers to match ", all_reduce->name, " x ", workers)));
      PSRING_ASSIGN_OR_RETURN(
          const Prediction goal,
          predictor_.Predict({.strategy = *all_reduce, .workers = workers}, report_.cluster));
      const auto matches = [&](int servers) -> absl::StatusOr<bool> {
        PSRING_ASSIGN_OR_RETURN(const Prediction with,
                                predictor_.Predict({*server, workers, servers}, report_.cluster));
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

  absl::Status FindFastestBySize(const std::vector<StrategyInfo>& strategies) {
    const int workers = flags_.workers.back();
    if (workers == 1) return absl::OkStatus();
    std::vector<PredictCase> cases;
    for (const PredictCase& point : CasesOf(strategies)) {
      if (point.workers == workers && point.strategy.communicates() && point.strategy.synchronous) {
        cases.push_back(point);
      }
    }
    if (cases.size() < 2) return absl::OkStatus();
    for (double bytes = 1024; bytes <= 1 << 30; bytes *= 4) {
      PSRING_RETURN_IF_ERROR(Progress(absl::StrFormat("exchanges of %.0f bytes", bytes)));
      double least = INFINITY;
      const PredictCase* fastest = nullptr;
      for (const PredictCase& point : cases) {
        PSRING_ASSIGN_OR_RETURN(const double seconds,
                                predictor_.ExchangeSeconds(point, report_.cluster, bytes));
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
  display.Say(PublishedText(systems));
  return 0;
}

}  // namespace

int RunPredict(const PredictFlags& flags, const Interrupt& interrupt, Display& display) {
  if (flags.published) return CheckPublished(interrupt, display);
  const absl::Status status = PredictionRun(flags, interrupt, display).Run();
  return status.ok() ? 0 : ReportFailure("predict", status, display);
}

}  // namespace psring
