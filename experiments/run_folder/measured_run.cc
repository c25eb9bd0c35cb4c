#include "experiments/run_folder/measured_run.h"

#include <algorithm>
#include <functional>
#include <set>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/check.h"
#include "common/base/errors.h"
#include "common/cli/delays.h"
#include "experiments/analysis/waiting.h"
#include "experiments/run_folder/run_folder.h"

namespace psring {
namespace {

bool SameConfiguration(const LaunchNote& a, const LaunchNote& b) {
  return a.strategy == b.strategy && a.workers == b.workers && a.servers == b.servers &&
         FlagOf(a, "--server_wire", "grpc") == FlagOf(b, "--server_wire", "grpc");
}

// As Configuration::name.
std::string NameOf(const LaunchNote& note) {
  return absl::StrCat(note.strategy, " x ", note.workers,
                      note.servers > 1 ? absl::StrCat(" on ", note.servers, " servers") : "",
                      FlagOf(note, "--server_wire", "grpc") == "stream" ? " (stream)" : "");
}

}  // namespace

absl::StatusOr<StepTimes> TimesOf(const StrategyRow& strategy, const LaunchNote& note,
                                  const RunRecords& records) {
  PSRING_ASSIGN_OR_RETURN(const std::vector<Straggler> stragglers,
                          ParseStragglers(FlagOf(note, "--straggler", "none")));
  PSRING_ASSIGN_OR_RETURN(const TimeDistribution jitter,
                          ParseTimeDistribution(FlagOf(note, "--jitter_ms", "none")));
  uint64_t seed = TrainingOptions().seed;
  (void)absl::SimpleAtoi(FlagOf(note, "--seed", ""), &seed);
  const std::vector<std::vector<StepWait>> waits = WaitsOf(strategy, records);
  StepTimes times;
  for (size_t rank = 0; rank < records.steps.size(); ++rank) {
    WorkerTimes& worker = times.workers.emplace_back();
    const double factor = SlownessOf(stragglers, static_cast<int>(rank));
    const StepRecord* before = nullptr;
    for (size_t i = 0; i < records.steps[rank].size(); ++i) {
      const StepRecord& step = records.steps[rank][i];
      if (step.warmup) continue;
      // The time between two steps counts as part of the second.
      const int64_t begin = before == nullptr ? step.begin_ns : EndNs(*before);
      const double ready_ms = 1e-6 * (ReadyNs(step) - begin);
      double own_ms = step.compute_ms - step.delay_ms;
      if (factor > 1) {
        const double jitter_ms = DrawMs(jitter, seed, TimeUse::kJitter, static_cast<int>(rank), step.step);
        own_ms = std::min(own_ms, (step.delay_ms - jitter_ms) / (factor - 1));
      }
      worker.compute_ms.push_back(std::max(0.0, own_ms));
      worker.other_ms.push_back(std::max(0.0, ready_ms - step.delay_ms - worker.compute_ms.back()));
      worker.exchange_ms.push_back(waits[rank][i].exchange_ms);
      before = &step;
    }
    if (worker.steps() == 0) {
      return absl::DataLossError(absl::StrCat("worker ", rank, " has no measured step"));
    }
  }
  return times;
}

absl::StatusOr<MeasuredRun> MeasuredRun::Open(const std::string& path) {
  MeasuredRun run;
  run.path_ = path;
  PSRING_ASSIGN_OR_RETURN(const std::vector<LaunchNote> notes, ListLaunches(path));
  for (const LaunchNote& note : notes) {
    if (FlagOf(note, "--clock", "wall") != "wall" || note.time_scale != 1) continue;
    PSRING_ASSIGN_OR_RETURN(StrategyRow strategy, FindStrategy(note.strategy));
    run.launches_.push_back({note, std::move(strategy)});
  }
  if (run.launches_.empty()) {
    return InvalidArgument("'", path,
                           "' is a simulated run; name a run with --clock wall and without --scale");
  }
  return run;
}

absl::StatusOr<StepTimes> MeasuredRun::TimesFor(const Configuration& configuration, bool any_kind,
                                                std::string& which) const {
  const StrategyRow& wanted = configuration.strategy;
  using Fits = std::function<bool(const Launch&)>;
  const Fits same_kind = [&](const Launch& launch) {
    return launch.strategy.uses_group == wanted.uses_group &&
           launch.strategy.uses_servers == wanted.uses_servers;
  };
  const Fits same_count = [&](const Launch& launch) {
    return same_kind(launch) && launch.note.workers == configuration.workers;
  };
  const Fits same = [&](const Launch& launch) {
    return same_count(launch) && launch.note.strategy == wanted.name;
  };
  const Fits same_servers = [&](const Launch& launch) {
    return same(launch) && launch.note.servers == configuration.servers();
  };
  const Fits any = [&](const Launch&) { return any_kind; };
  for (const Fits& fits : {same_servers, same, same_count, same_kind, any}) {
    const auto first = std::ranges::find_if(launches_, fits);
    if (first == launches_.end()) continue;
    StepTimes times;
    for (const Launch& launch : launches_) {
      if (!SameConfiguration(launch.note, first->note)) continue;
      PSRING_ASSIGN_OR_RETURN(const RunRecords records,
                              ReadRecords(launch.note.folder, launch.note.workers, /*servers=*/0));
      PSRING_ASSIGN_OR_RETURN(const StepTimes part, TimesOf(launch.strategy, launch.note, records));
      times.workers.resize(part.workers.size());
      for (size_t worker = 0; worker < part.workers.size(); ++worker) {
        const auto append = [](std::vector<double>& to, const std::vector<double>& from) {
          to.insert(to.end(), from.begin(), from.end());
        };
        append(times.workers[worker].compute_ms, part.workers[worker].compute_ms);
        append(times.workers[worker].other_ms, part.workers[worker].other_ms);
        append(times.workers[worker].exchange_ms, part.workers[worker].exchange_ms);
      }
    }
    which = NameOf(first->note);
    return times;
  }
  std::set<std::string> measured;
  for (const Launch& launch : launches_) measured.insert(NameOf(launch.note));
  return absl::NotFoundError(absl::StrCat("'", path_, "' has no times for ", configuration.name(),
                                          "; it measured ", absl::StrJoin(measured, ", "), "; omit ",
                                          wanted.name, ", or set --compute_ms and --network_ms"));
}

}  // namespace psring
