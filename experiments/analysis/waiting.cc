#include "experiments/analysis/waiting.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "common/measure/trace.h"
#include "experiments/stats/statistics.h"
#include "ps_server/consistency/consistency.h"

namespace psring {
namespace {

constexpr int64_t kNever = INT64_MIN;

// Means over a worker's steps.
constexpr std::pair<double WorkerFigures::*, double StepRecord::*> kWorkerMeans[] = {
    {&WorkerFigures::step_ms, &StepRecord::step_ms},
    {&WorkerFigures::compute_ms, &StepRecord::compute_ms},
    {&WorkerFigures::delay_ms, &StepRecord::delay_ms},
    {&WorkerFigures::comm_busy_ms, &StepRecord::comm_busy_ms},
    {&WorkerFigures::exposed_comm_ms, &StepRecord::exposed_comm_ms},
    {&WorkerFigures::activation_message_ms, &StepRecord::activation_message_ms},
    {&WorkerFigures::gradient_message_ms, &StepRecord::gradient_message_ms}};

// By worker and step: when the gradient was ready. Skipped steps are missing.
using ReadySteps = std::vector<std::map<int64_t, int64_t>>;

ReadySteps ReadyStepsOf(const RunRecords& records, bool admitted_only) {
  ReadySteps ready;
  for (const std::vector<StepRecord>& steps : records.steps) {
    auto& of_rank = ready.emplace_back();
    for (const StepRecord& step : steps) {
      if (!step.dropped || !admitted_only) of_rank[step.step] = ReadyNs(step);
    }
  }
  return ready;
}

int64_t LastReady(const ReadySteps& ready, int64_t step) {
  int64_t last = kNever;
  for (const auto& of_rank : ready) {
    const auto found = of_rank.find(step);
    if (found != of_rank.end()) last = std::max(last, found->second);
  }
  return last;
}

WaitingRule RuleOf(const StrategyRow& strategy, int workers) {
  if (!strategy.uses_servers) return {};  // an all-reduce waits for all
  const absl::StatusOr<WaitingRule> rule = ParseWaitingRule(strategy.algorithm, workers);
  return rule.ok() ? *rule : WaitingRule{};
}

// A step's records of all ranks that have it. A worker whose gradient came too late skips steps.
std::vector<const StepRecord*> StepOfAllRanks(const RunRecords& records, int64_t step) {
  std::vector<const StepRecord*> together;
  for (const auto& steps : records.steps) {
    const auto found = std::lower_bound(steps.begin(), steps.end(), step,
                                        [](const StepRecord& record, int64_t n) { return record.step < n; });
    if (found != steps.end() && found->step == step) together.push_back(&*found);
  }
  return together;
}

double Milliseconds(int64_t ns) { return 1e-6 * ns; }

// A time that is not a number counts as none. Records bound the others.
int64_t Ns(double ms) { return std::isnan(ms) ? 0 : static_cast<int64_t>(ms * 1e6); }

}  // namespace

int64_t ReadyNs(const StepRecord& step) { return step.begin_ns + Ns(step.step_ms - step.exposed_comm_ms); }

int64_t EndNs(const StepRecord& step) { return step.begin_ns + Ns(step.step_ms); }

std::vector<std::vector<StepWait>> WaitsOf(const StrategyRow& strategy, const RunRecords& records) {
  std::vector<std::vector<StepWait>> waits;
  for (const auto& steps : records.steps) waits.emplace_back(steps.size());
  if (!strategy.communicates()) return waits;
  const WaitingRule rule = RuleOf(strategy, static_cast<int>(records.steps.size()));
  const ReadySteps ready = ReadyStepsOf(records, rule.kind == WaitingRule::Kind::kBackup);
  for (size_t rank = 0; rank < records.steps.size(); ++rank) {
    for (size_t i = 0; i < records.steps[rank].size(); ++i) {
      const StepRecord& step = records.steps[rank][i];
      const int64_t own = ReadyNs(step), end = EndNs(step);
      int64_t released = own;
      if (rule.kind == WaitingRule::Kind::kBoundedStaleness) {
        released = std::max(own, LastReady(ready, step.step - rule.number));
      } else if (rule.kind != WaitingRule::Kind::kAsynchronous && !step.dropped) {
        released = std::max(own, LastReady(ready, step.step));
      }
      released = std::min(released, end);
      waits[rank][i] = {.waited_ms = Milliseconds(released - own),
                        .exchange_ms = Milliseconds(end - released)};
    }
  }
  return waits;
}

double WaitMs(const std::vector<const StepRecord*>& steps, int rank) {
  const StepRecord& ours = *steps[rank];
  std::vector<std::pair<int64_t, int64_t>> waits;
  for (size_t b = 0; b < ours.buckets.size(); ++b) {
    int64_t last_begin = ours.buckets[b].begin_ns;
    for (const StepRecord* other : steps) {
      if (b < other->buckets.size()) last_begin = std::max(last_begin, other->buckets[b].begin_ns);
    }
    const int64_t until = std::min(last_begin, ours.buckets[b].end_ns);
    if (until > ours.buckets[b].begin_ns) waits.push_back({ours.buckets[b].begin_ns, until});
  }
  return 1e-6 * BusyNanos(waits);
}

std::optional<double> MeanWait(const RunRecords& records) {
  std::vector<double> waits;
  for (const StepRecord& first : records.steps.front()) {
    if (first.warmup) continue;
    const auto together = StepOfAllRanks(records, first.step);
    if (together.size() != records.steps.size()) continue;
    for (size_t rank = 0; rank < together.size(); ++rank)
      waits.push_back(WaitMs(together, static_cast<int>(rank)));
  }
  return Mean(waits);
}

double MeanLate(const RunRecords& records) {
  std::vector<double> late;
  for (const StepRecord& first : records.steps.front()) {
    const auto together = StepOfAllRanks(records, first.step);
    if (first.warmup || together.size() != records.steps.size()) continue;
    std::vector<double> ready;
    for (const StepRecord* step : together) {
      if (step->buckets.empty()) return 0;
      ready.push_back(1e-6 * (step->buckets.front().ready_ns - step->begin_ns));
    }
    late.push_back(*std::ranges::max_element(ready) - Mean(ready));
  }
  return late.empty() ? 0 : Mean(late);
}

std::vector<double> StalenessOfRates(const std::vector<double>& rates) {
  double sum = 0;
  for (const double rate : rates) sum += rate;
  std::vector<double> staleness;
  for (const double rate : rates) staleness.push_back(rate > 0 ? (sum - rate) / rate : 0);
  return staleness;
}

std::vector<WorkerFigures> WorkerFiguresOf(const StrategyRow& strategy, const RunRecords& records) {
  const std::vector<std::vector<StepWait>> waits = WaitsOf(strategy, records);
  std::vector<WorkerFigures> workers;
  std::vector<double> rates;
  for (size_t rank = 0; rank < records.steps.size(); ++rank) {
    WorkerFigures& worker = workers.emplace_back();
    worker.rank = records.steps[rank].empty() ? static_cast<int>(rank) : records.steps[rank].front().rank;
    const std::vector<StepRecord>& steps = records.steps[rank];
    for (const auto& [of_worker, of_step] : kWorkerMeans) worker.*of_worker = MeanOf(steps, of_step);
    double waited_ms = 0;
    for (size_t i = 0; i < steps.size(); ++i) {
      if (steps[i].warmup) continue;
      worker.steps += 1;
      waited_ms += waits[rank][i].waited_ms;
    }
    worker.waited_s = 1e-3 * waited_ms;
    worker.wait_ms = waited_ms / std::max(1.0, worker.steps);
    rates.push_back(worker.step_ms > 0 ? 1 / worker.step_ms : 0);
    if (rank >= records.ranks.size()) continue;
    const RankResult& result = records.ranks[rank];
    const double computed_ms = result.ddp.forward_ms + result.ddp.backward_ms;
    if (computed_ms > 0) worker.forward_share = result.ddp.forward_ms / computed_ms;
    worker.dropped_gradients = static_cast<double>(result.dropped_gradients);
    if (result.pushes == 0) continue;
    worker.staleness_mean = static_cast<double>(result.staleness_sum) / result.pushes;
    worker.staleness_max = result.staleness_max;
  }
  if (strategy.shares_steps) {
    const std::vector<double> theory = StalenessOfRates(rates);
    for (size_t rank = 0; rank < workers.size(); ++rank) workers[rank].staleness_theory = theory[rank];
  }
  return workers;
}

std::vector<WorkerFigures> MeanWorkers(const std::vector<RunFigures>& runs) {
  std::vector<WorkerFigures> mean;
  if (runs.empty()) return mean;
  for (size_t rank = 0; rank < runs.front().workers.size(); ++rank) {
    // A run that lost workers has fewer.
    const auto has_rank = [&](const RunFigures& run) { return rank < run.workers.size(); };
    const auto count = static_cast<double>(std::ranges::count_if(runs, has_rank));
    WorkerFigures& worker = mean.emplace_back();
    worker.rank = runs.front().workers[rank].rank;
    for (const RunFigures& run : runs) {
      if (!has_rank(run)) continue;
      const WorkerFigures& other = run.workers[rank];
      for (double WorkerFigures::*figure :
           {&WorkerFigures::steps, &WorkerFigures::samples_per_s, &WorkerFigures::step_ms,
            &WorkerFigures::compute_ms, &WorkerFigures::delay_ms, &WorkerFigures::comm_busy_ms,
            &WorkerFigures::exposed_comm_ms, &WorkerFigures::wait_ms, &WorkerFigures::waited_s,
            &WorkerFigures::dropped_gradients, &WorkerFigures::activation_message_ms,
            &WorkerFigures::gradient_message_ms, &WorkerFigures::forward_share}) {
        worker.*figure += other.*figure / count;
      }
      for (std::optional<double> WorkerFigures::*figure :
           {&WorkerFigures::staleness_mean, &WorkerFigures::staleness_theory}) {
        if (other.*figure) worker.*figure = (worker.*figure).value_or(0) + *(other.*figure) / count;
      }
      if (other.staleness_max) {
        worker.staleness_max = std::max(worker.staleness_max.value_or(0), *other.staleness_max);
      }
    }
  }
  return mean;
}

}  // namespace psring
