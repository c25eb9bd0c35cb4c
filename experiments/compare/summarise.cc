#include "experiments/compare/summarise.h"

#include <algorithm>
#include <functional>
#include <map>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/check.h"
#include "common/trace.h"
#include "experiments/compare/estimate.h"
#include "experiments/compare/waiting.h"

namespace psring {
namespace {

// More than this share of the processors in others' hands, and the row's speeds are not to be trusted.
constexpr double kMostForeignCpuPct = 25;
constexpr double kMostSpread = 0.01;  // of the servers' bytes

// The same step of every rank, for steps that every rank has: a worker whose gradient came too late skips
// some.
std::vector<const StepRecord*> StepOfAllRanks(const RunRecords& records, int64_t step) {
  std::vector<const StepRecord*> together;
  for (const auto& steps : records.steps) {
    const auto found = std::lower_bound(steps.begin(), steps.end(), step,
                                        [](const StepRecord& record, int64_t n) { return record.step < n; });
    if (found != steps.end() && found->step == step) together.push_back(&*found);
  }
  return together;
}

// From the first measured step's begin to the last one's end, over all ranks.
double WallSeconds(const RunRecords& records) {
  int64_t begin = INT64_MAX, end = INT64_MIN;
  for (const auto& steps : records.steps) {
    for (const StepRecord& step : steps) {
      if (step.warmup) continue;
      begin = std::min(begin, step.begin_ns);
      end = std::max(end, step.begin_ns + static_cast<int64_t>(step.step_ms * 1e6));
    }
  }
  return end > begin ? 1e-9 * static_cast<double>(end - begin) : 0;
}

// Of workers that have nothing to do with each other: one that is done before the others takes nothing from
// what they could do together.
double SumOfSpeeds(const RunRecords& records) {
  double sum = 0;
  for (const auto& steps : records.steps) {
    double samples = 0;
    RunRecords alone;
    alone.steps.push_back(steps);
    for (const StepRecord& step : steps) {
      if (!step.warmup) samples += static_cast<double>(step.samples);
    }
    if (const double wall_s = WallSeconds(alone); wall_s > 0) sum += samples / wall_s;
  }
  return sum;
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

// How much later than the mean of all ranks the slowest has its first bucket, each counted from its own
// begin: what a collective waits for that all begin together.
double MeanLate(const RunRecords& records) {
  std::vector<double> late;
  for (const StepRecord& first : records.steps.front()) {
    const auto together = StepOfAllRanks(records, first.step);
    if (first.warmup || together.size() != records.steps.size()) continue;
    std::vector<double> ready;
    for (const StepRecord* step : together) {
      if (step->buckets.empty()) return 0;
      ready.push_back(1e-6 * static_cast<double>(step->buckets.front().ready_ns - step->begin_ns));
    }
    late.push_back(*std::max_element(ready.begin(), ready.end()) - Mean(ready));
  }
  return late.empty() ? 0 : Mean(late);
}

void AddStaleness(const Configuration& configuration, const RunRecords& records, RunFigures& figures) {
  if (configuration.strategy.needs != StrategyNeeds::kParameterServer) return;
  int64_t pushes = 0, sum = 0, most = 0;
  for (const RankResult& rank : records.ranks) {
    pushes += rank.pushes;
    sum += rank.staleness_sum;
    most = std::max(most, rank.staleness_max);
  }
  if (pushes == 0) return;
  figures.staleness_mean = static_cast<double>(sum) / static_cast<double>(pushes);
  figures.staleness_max = most;
}

std::string Incidents(const std::vector<ServerResult>& servers) {
  std::vector<std::string> incidents;
  for (const ServerResult& server : servers) {
    for (size_t i = 0; i < server.lost_workers.size() && i < server.lost_at_step.size(); ++i) {
      incidents.push_back(
          absl::StrCat("worker ", server.lost_workers[i], " lost at step ", server.lost_at_step[i]));
    }
    if (server.restarts > 0)
      incidents.push_back(absl::StrCat("server restarted ", server.restarts, " times"));
    if (server.lost_updates > 0) incidents.push_back(absl::StrCat(server.lost_updates, " pushes lost"));
  }
  return absl::StrJoin(incidents, "; ");
}

void AddServers(const Configuration& configuration, const RunRecords& records, RunFigures& figures) {
  if (records.servers.empty()) return;
  int pushing = configuration.workers;
  if (configuration.strategy.number_below_workers) pushing -= configuration.strategy.number;
  const double pushes_per_step = static_cast<double>(records.ranks.front().bucket_elements.size()) * pushing;
  double memory = 0, dropped = 0;
  for (const ServerResult& server : records.servers) {
    memory = std::max(memory, server.peak_memory_mb);
    dropped = std::max(dropped, static_cast<double>(server.dropped_gradients));
    const double steps = static_cast<double>(server.pushes) / std::max(1.0, pushes_per_step);
    if (steps <= 0) continue;
    const double bytes = static_cast<double>(server.payload_rx_bytes + server.payload_tx_bytes) / steps;
    figures.each_server_payload_bytes.push_back(bytes);
    figures.server_payload_bytes = std::max(figures.server_payload_bytes.value_or(0), bytes);
  }
  figures.server_peak_memory_mb = memory;
  figures.incidents = Incidents(records.servers);
  if (configuration.strategy.number_below_workers) {
    figures.dropped_gradients = dropped;
    double computed = 0;
    for (const auto& steps : records.steps) computed += static_cast<double>(steps.size());
    if (computed > 0) figures.dropped_share = dropped / computed;
  }
  for (const ServerResult& server : records.servers) {
    auto& histogram = figures.staleness_histogram;
    histogram.resize(std::max(histogram.size(), server.staleness_histogram.size()));
    for (size_t i = 0; i < server.staleness_histogram.size(); ++i) {
      histogram[i] += static_cast<double>(server.staleness_histogram[i]);
    }
  }
}

// Per worker and step, where somebody counted. Where the server stands beside rank 0 they send through one
// interface, and the ranks of that process are left out.
std::optional<double> WireBytes(const Configuration& configuration, const RunRecords& records,
                                int64_t steps) {
  const bool beside_server =
      configuration.servers() > 0 && configuration.training.server_placement == "rank0";
  std::vector<double> bytes;
  for (const RankResult& rank : records.ranks) {
    if (rank.wire_tx_bytes < 0) continue;
    if (beside_server && rank.rank < configuration.training.ranks_per_process) continue;
    bytes.push_back(static_cast<double>(rank.wire_tx_bytes) / static_cast<double>(steps));
  }
  return bytes.empty() ? std::nullopt : std::optional<double>(Mean(bytes));
}

void AddPace(const Configuration& configuration, const RunRecords& records, RunFigures& figures) {
  const auto mean_of = [&](double RankResult::*figure) -> std::optional<double> {
    std::vector<double> values;
    for (const RankResult& rank : records.ranks) {
      if (rank.*figure >= 0) values.push_back(rank.*figure);
    }
    return values.empty() ? std::nullopt : std::optional<double>(Mean(values));
  };
  figures.computed_ms = mean_of(&RankResult::computed_ms);
  figures.update_ms = mean_of(&RankResult::update_ms);
  figures.run_delay_ms = mean_of(&RankResult::run_delay_ms);
  figures.probe_ms = mean_of(&RankResult::probe_ms);
  figures.network = records.network;
  const auto waits = WaitsOf(configuration.strategy, records);
  std::vector<double> waited;
  std::vector<std::vector<double>> ready;  // by bucket
  for (size_t rank = 0; rank < records.steps.size(); ++rank) {
    for (size_t i = 0; i < records.steps[rank].size(); ++i) {
      const StepRecord& step = records.steps[rank][i];
      if (step.warmup) continue;
      waited.push_back(waits[rank][i].waited_ms);
      ready.resize(std::max(ready.size(), step.buckets.size()));
      for (size_t b = 0; b < step.buckets.size(); ++b) {
        ready[b].push_back(1e-6 * static_cast<double>(step.buckets[b].ready_ns - step.begin_ns));
      }
    }
  }
  figures.waited_ms = Mean(waited);
  figures.late_ms = MeanLate(records);
  for (const std::vector<double>& of_bucket : ready) figures.bucket_ready_ms.push_back(Mean(of_bucket));
}

// The mean of one figure over rounds.
double MeanOver(const std::vector<RunFigures>& runs, const std::function<double(const RunFigures&)>& figure) {
  std::vector<double> values;
  for (const RunFigures& run : runs) values.push_back(figure(run));
  return Mean(values);
}

std::optional<double> MeanOverThose(const std::vector<RunFigures>& runs,
                                    std::optional<double> RunFigures::*figure) {
  std::vector<double> values;
  for (const RunFigures& run : runs) {
    if (run.*figure) values.push_back(*(run.*figure));
  }
  return values.empty() ? std::nullopt : std::optional<double>(Mean(values));
}

std::optional<NetworkFigures> MeanNetwork(const std::vector<RunFigures>& runs) {
  NetworkFigures mean;
  for (auto figure : {&NetworkFigures::retransmitted_segments, &NetworkFigures::timeouts,
                      &NetworkFigures::queue_drops, &NetworkFigures::again_ms}) {
    std::vector<double> values;
    for (const RunFigures& run : runs) {
      if (run.network) values.push_back((*run.network).*figure);
    }
    if (values.empty()) return std::nullopt;
    mean.*figure = Mean(values);
  }
  return mean;
}

RunFigures MeanFigures(const std::vector<RunFigures>& runs) {
  RunFigures mean;
  const auto average = [&](double RunFigures::*figure) {
    mean.*figure = MeanOver(runs, [figure](const RunFigures& run) { return run.*figure; });
  };
  for (auto figure : {&RunFigures::wall_s, &RunFigures::samples_per_s, &RunFigures::step_ms,
                      &RunFigures::compute_ms, &RunFigures::comm_busy_ms, &RunFigures::exposed_comm_ms,
                      &RunFigures::waited_ms, &RunFigures::late_ms, &RunFigures::payload_tx_bytes,
                      &RunFigures::payload_rx_bytes, &RunFigures::loss, &RunFigures::foreign_cpu_pct}) {
    average(figure);
  }
  mean.steps = runs.front().steps;
  mean.each_server_payload_bytes = runs.front().each_server_payload_bytes;
  mean.samples = runs.front().samples;
  mean.wait_ms = MeanOverThose(runs, &RunFigures::wait_ms);
  mean.wire_tx_bytes = MeanOverThose(runs, &RunFigures::wire_tx_bytes);
  mean.server_payload_bytes = MeanOverThose(runs, &RunFigures::server_payload_bytes);
  mean.staleness_mean = MeanOverThose(runs, &RunFigures::staleness_mean);
  mean.dropped_gradients = MeanOverThose(runs, &RunFigures::dropped_gradients);
  mean.dropped_share = MeanOverThose(runs, &RunFigures::dropped_share);
  for (auto figure :
       {&RunFigures::computed_ms, &RunFigures::update_ms, &RunFigures::run_delay_ms, &RunFigures::probe_ms}) {
    mean.*figure = MeanOverThose(runs, figure);
  }
  for (size_t b = 0; b < runs.front().bucket_ready_ms.size(); ++b) {
    mean.bucket_ready_ms.push_back(MeanOver(runs, [b](const RunFigures& run) {
      return b < run.bucket_ready_ms.size() ? run.bucket_ready_ms[b] : run.bucket_ready_ms.back();
    }));
  }
  mean.network = MeanNetwork(runs);
  mean.workers = MeanWorkers(runs);
  mean.test_accuracy = MeanOverThose(runs, &RunFigures::test_accuracy);
  for (const RunFigures& run : runs) {
    mean.every_step_ms.insert(mean.every_step_ms.end(), run.every_step_ms.begin(), run.every_step_ms.end());
    if (!run.incidents.empty()) {
      absl::StrAppend(&mean.incidents, mean.incidents.empty() ? "" : "; ", run.incidents);
    }
    mean.gpus_shared = std::max(mean.gpus_shared, run.gpus_shared);
    mean.worker_peak_memory_mb = std::max(mean.worker_peak_memory_mb, run.worker_peak_memory_mb);
    if (run.server_peak_memory_mb) {
      mean.server_peak_memory_mb =
          std::max(mean.server_peak_memory_mb.value_or(0), *run.server_peak_memory_mb);
    }
    mean.staleness_histogram.resize(
        std::max(mean.staleness_histogram.size(), run.staleness_histogram.size()));
    for (size_t i = 0; i < run.staleness_histogram.size(); ++i) {
      mean.staleness_histogram[i] += run.staleness_histogram[i];
    }
    if (run.staleness_max) mean.staleness_max = std::max(mean.staleness_max.value_or(0), *run.staleness_max);
    if (run.replicas_equal) mean.replicas_equal = mean.replicas_equal.value_or(true) && *run.replicas_equal;
  }
  return mean;
}

SummaryRow RowOf(const std::string& run_id, const ConfigurationRuns& runs,
                 const std::optional<Wires>& wires) {
  SummaryRow row{.run_id = run_id, .configuration = runs.configuration, .sample = runs.sample};
  row.measured_cost = !runs.cost.empty();
  const std::vector<RunFigures>& measured = row.measured_cost ? runs.cost : runs.accuracy;
  row.rounds = static_cast<int>(runs.cost.size());
  row.mean = MeanFigures(measured);
  for (const RunFigures& run : runs.cost) {
    row.round_samples_per_s.push_back(run.samples_per_s);
    row.round_step_ms.push_back(run.step_ms);
  }
  row.samples_per_s_95 = BootstrapMean(row.round_samples_per_s);
  row.step_ms_p10 = Quantile(row.mean.every_step_ms, 0.1);
  row.step_ms_p90 = Quantile(row.mean.every_step_ms, 0.9);
  if (!runs.accuracy.empty()) {
    const RunFigures trained = MeanFigures(runs.accuracy);
    row.test_accuracy = trained.test_accuracy;
    row.train_loss = trained.loss;
    row.trainings = static_cast<int>(runs.accuracy.size());
    row.trained_samples = trained.samples;
    std::vector<double> accuracies, times;
    for (const RunFigures& run : runs.accuracy) {
      if (run.test_accuracy) accuracies.push_back(*run.test_accuracy);
      if (run.time_to_target_s) times.push_back(*run.time_to_target_s);
    }
    row.test_accuracy_95 = BootstrapMean(accuracies);
    row.reached_target = static_cast<int>(times.size());
    if (!times.empty() && row.reached_target == row.trainings) {
      row.time_to_target_s = Mean(times);
      row.time_to_target_95 = BootstrapMean(times);
    }
  }
  for (const auto* list : {&runs.cost, &runs.accuracy}) {
    for (const RunFigures& run : *list)
      row.foreign_cpu_pct = std::max(row.foreign_cpu_pct, run.foreign_cpu_pct);
  }
  const std::optional<Scheme> scheme = SchemeOf(runs.configuration.strategy);
  if (scheme && *scheme != Scheme::kNone) {
    const CommPattern pattern = PatternOf(runs.configuration, *scheme);
    row.predicted_payload_bytes =
        PayloadBytesPerWorker(pattern, ExchangeBytes(runs.configuration, runs.sample.parameters));
    std::vector<double> bucket_bytes;
    for (int64_t elements : runs.sample.bucket_elements)
      bucket_bytes.push_back(ExchangeBytes(runs.configuration, elements));
    // A machine's link that several ranks share carries as much for a ring as one rank's; for others the
    // formulas know of no such machines.
    const bool links = wires && wires->medium_bytes_per_s == 0;
    const bool shared = links && runs.configuration.training.ranks_per_process > 1;
    const bool known = !shared || (*scheme == Scheme::kRing && runs.configuration.processes() > 1);
    // The wires that were measured are the loopback's.
    const bool over_tcp = row.sample.transport == "tcp" || row.sample.transport == "grpc";
    if (wires && known && !runs.configuration.simulated() && (over_tcp || row.sample.transport.empty()))
      row.predicted_comm_ms =
          1e3 * (ExchangeSeconds(pattern, bucket_bytes, *wires) -
                 BurstSeconds(pattern, ExchangeBytes(runs.configuration, row.sample.parameters), *wires));
  }
  return row;
}

// The row that `row` is held against: of `strategy` with `workers`, measured in the same rounds.
const SummaryRow* Reference(const std::vector<SummaryRow>& rows, const SummaryRow& row,
                            const std::string& strategy, int workers) {
  for (const SummaryRow& other : rows) {
    if (other.configuration.strategy.name == strategy && other.configuration.workers == workers &&
        other.round_step_ms.size() == row.round_step_ms.size() && !other.round_step_ms.empty()) {
      return &other;
    }
  }
  return nullptr;
}

std::string NoteOf(const SummaryRow& row) {
  std::vector<std::string> notes;
  if (row.configuration.simulated()) notes.push_back("simulated in time, measured in learning");
  const double target = row.configuration.target_accuracy;
  if (target > 0 && row.test_accuracy && !row.time_to_target_s) {
    notes.push_back(absl::StrFormat("%d of %d trainings reached an accuracy of %g", row.reached_target,
                                    row.trainings, target));
  }
  if (row.configuration.oversubscribed) notes.push_back("oversubscribed");
  if (const int each = row.configuration.training.ranks_per_process; each > 1) {
    const bool all = row.configuration.processes() == 1;
    notes.push_back(absl::StrCat(each, all ? " ranks in one process" : " ranks a process",
                                 row.link.bits_per_s == 0 ? ""
                                 : all                    ? ", which use no link"
                                                          : ", behind one link"));
  }
  if (row.mean.gpus_shared > 0) {
    notes.push_back(absl::StrFormat("functional, not a measurement: %d ranks share %d GPU%s",
                                    row.configuration.ranks(), row.mean.gpus_shared,
                                    row.mean.gpus_shared == 1 ? "" : "s"));
  }
  const DataParallelFigures& replicas = row.sample.data_parallel;
  if (replicas.replicas > 0) {
    notes.push_back(absl::StrFormat(
        "bytes are device 0's; it works alone for %.2f ms of a step and holds %.1f MB more than the others%s",
        replicas.device0_alone_ms(), replicas.device0_extra_mb,
        row.link.bits_per_s > 0 ? "; one machine, no link in between" : ""));
  }
  if (!row.link.invalid.empty()) notes.push_back(row.link.invalid);
  if (row.foreign_cpu_pct > kMostForeignCpuPct)
    notes.push_back(absl::StrFormat("others used %.0f%% of the processors", row.foreign_cpu_pct));
  const std::vector<double>& shards = row.mean.each_server_payload_bytes;
  if (shards.size() > 1) {
    const auto [least, most] = std::minmax_element(shards.begin(), shards.end());
    if (*most > (1 + kMostSpread) * *least) {
      notes.push_back(
          absl::StrFormat("unbalanced shards: %.0f to %.0f bytes a step and server", *least, *most));
    }
  }
  if (row.configuration.training.straggler != "none") {
    notes.push_back(absl::StrCat("straggler ", row.configuration.training.straggler));
  }
  if (row.configuration.training.jitter_ms != "none") {
    notes.push_back(absl::StrCat("jitter ", row.configuration.training.jitter_ms, " ms"));
  }
  if (row.mean.replicas_equal == false) notes.push_back("replicas differ");
  if (!row.mean.incidents.empty()) notes.push_back(row.mean.incidents);
  return absl::StrJoin(notes, "; ");
}

}  // namespace

double WaitMs(const std::vector<const StepRecord*>& steps, int rank) {
  const StepRecord& ours = *steps[static_cast<size_t>(rank)];
  std::vector<std::pair<int64_t, int64_t>> waits;
  for (size_t b = 0; b < ours.buckets.size(); ++b) {
    int64_t last_begin = ours.buckets[b].begin_ns;
    for (const StepRecord* other : steps) {
      if (b < other->buckets.size()) last_begin = std::max(last_begin, other->buckets[b].begin_ns);
    }
    const int64_t until = std::min(last_begin, ours.buckets[b].end_ns);
    if (until > ours.buckets[b].begin_ns) waits.push_back({ours.buckets[b].begin_ns, until});
  }
  return 1e-6 * static_cast<double>(BusyNanos(waits));
}

std::optional<double> TimeToTarget(const std::vector<CurvePoint>& curve, double target) {
  for (const CurvePoint& point : curve) {
    if (point.test_accuracy >= target) return point.wall_s;
  }
  return std::nullopt;
}

namespace {

// --oversubscribe: on how many GPUs all ranks stand, where that is fewer than there are ranks.
int GpusShared(const Configuration& configuration, const RunRecords& records) {
  if (!configuration.training.oversubscribe) return 0;
  std::set<std::string> devices;
  for (const RankResult& rank : records.ranks) {
    if (rank.device != "cpu") devices.insert(rank.device);
  }
  return devices.size() < records.ranks.size() ? static_cast<int>(devices.size()) : 0;
}

}  // namespace

absl::StatusOr<RunFigures> FiguresOf(const Configuration& configuration, const RunRecords& records) {
  PSRING_CHECK(records.ranks.size() == records.steps.size() && !records.ranks.empty());
  RunFigures figures;
  std::vector<double> compute, busy, exposed, losses;
  double tx = 0, rx = 0;
  for (size_t rank = 0; rank < records.ranks.size(); ++rank) {
    int64_t steps = 0;
    for (const StepRecord& step : records.steps[rank]) {
      if (step.warmup) continue;
      ++steps;
      if (!step.dropped) figures.samples += step.samples;
      figures.every_step_ms.push_back(step.step_ms);
      compute.push_back(step.compute_ms);
      busy.push_back(step.comm_busy_ms);
      exposed.push_back(step.exposed_comm_ms);
      tx += static_cast<double>(step.payload_tx_bytes);
      rx += static_cast<double>(step.payload_rx_bytes);
    }
    // Of spare workers one may be late for every measured step.
    if (steps == 0 && !configuration.strategy.number_below_workers && configuration.training.resume.empty()) {
      return absl::DataLossError(
          absl::StrCat(configuration.name(), ": rank ", rank, " left no measured steps"));
    }
    figures.steps = std::max(figures.steps, steps);
    losses.push_back(records.ranks[rank].final_loss);
    figures.worker_peak_memory_mb =
        std::max(figures.worker_peak_memory_mb, records.ranks[rank].peak_memory_mb);
    if (!records.ranks[rank].curve.empty()) {
      figures.test_accuracy = records.ranks[rank].curve.back().test_accuracy;
      if (configuration.target_accuracy > 0) {
        figures.time_to_target_s = TimeToTarget(records.ranks[rank].curve, configuration.target_accuracy);
      }
    }
  }
  if (figures.every_step_ms.empty() && !configuration.training.resume.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--resume ", configuration.training.resume,
                     ": nothing is left to train; give more --epochs, --samples or --steps"));
  }
  if (figures.every_step_ms.empty()) {
    return absl::DataLossError(absl::StrCat(configuration.name(), ": no rank left any measured steps"));
  }
  // Asynchronous workers share the steps out among themselves.
  if (configuration.strategy.algorithm == "async") {
    figures.steps = static_cast<int64_t>(figures.every_step_ms.size() / records.ranks.size());
  }
  figures.wall_s = WallSeconds(records);
  if (figures.wall_s > 0) figures.samples_per_s = static_cast<double>(figures.samples) / figures.wall_s;
  if (configuration.strategy.needs == StrategyNeeds::kNothing) figures.samples_per_s = SumOfSpeeds(records);
  const double rank_steps = static_cast<double>(figures.every_step_ms.size());
  figures.step_ms = Mean(figures.every_step_ms);
  figures.compute_ms = Mean(compute);
  figures.comm_busy_ms = Mean(busy);
  figures.exposed_comm_ms = Mean(exposed);
  figures.loss = Mean(losses);
  figures.payload_tx_bytes = tx / rank_steps;
  figures.payload_rx_bytes = rx / rank_steps;
  figures.wire_tx_bytes = WireBytes(configuration, records, figures.steps);
  const bool communicates = configuration.strategy.needs != StrategyNeeds::kNothing;
  if (configuration.strategy.synchronous && communicates) figures.wait_ms = MeanWait(records);
  // Logical workers have one set of weights.
  if (configuration.strategy.synchronous && communicates && !configuration.simulated()) {
    figures.replicas_equal = std::all_of(
        records.ranks.begin(), records.ranks.end(),
        [&](const RankResult& rank) { return rank.weights_hash == records.ranks.front().weights_hash; });
  }
  AddPace(configuration, records, figures);
  AddStaleness(configuration, records, figures);
  AddServers(configuration, records, figures);
  figures.workers = WorkerFiguresOf(configuration.strategy, records);
  figures.gpus_shared = GpusShared(configuration, records);
  if (configuration.strategy.number > 0) {  // not everybody waits for everybody
    double waited = 0;
    for (const WorkerFigures& worker : figures.workers) waited += worker.wait_ms * worker.steps;
    figures.wait_ms = waited / rank_steps;
  }
  return figures;
}

Basis SummaryRow::TimeBasis() const {
  return configuration.simulated() ? Basis::kSimulated : Basis::kMeasured;
}

const char* BasisName(Basis basis) {
  switch (basis) {
    case Basis::kGiven:
      return "given";
    case Basis::kMeasured:
      return "measured";
    case Basis::kDerived:
      return "derived";
    case Basis::kSimulated:
      return "simulated";
  }
  return "";
}

std::vector<SummaryRow> Summarise(const std::string& run_id, const std::vector<ConfigurationRuns>& runs,
                                  const std::optional<Wires>& wires, const LinkReport& link) {
  std::vector<SummaryRow> rows;
  for (const ConfigurationRuns& of_one : runs) {
    if (of_one.cost.empty() && of_one.accuracy.empty()) continue;
    rows.push_back(RowOf(run_id, of_one, wires));
  }
  for (SummaryRow& row : rows) {
    row.link = link;
    row.valid = row.configuration.simulated() || (row.foreign_cpu_pct <= kMostForeignCpuPct &&
                                                  link.invalid.empty() && row.mean.gpus_shared == 0);
    row.note = NoteOf(row);
    if (!row.measured_cost) continue;
    const SummaryRow* single = Reference(rows, row, "single", 1);
    if (single != nullptr && !row.configuration.oversubscribed) {
      row.speedup = row.mean.samples_per_s / single->mean.samples_per_s;
      row.efficiency = *row.speedup / row.configuration.workers;
    }
    const SummaryRow* none = Reference(rows, row, "none", row.configuration.workers);
    if (none != nullptr && row.configuration.strategy.moves_gradients()) {
      std::vector<double> differences;
      for (size_t round = 0; round < row.round_step_ms.size(); ++round) {
        differences.push_back(row.round_step_ms[round] - none->round_step_ms[round]);
      }
      row.cost_against_none_ms = Mean(differences);
      row.cost_against_none_95 = BootstrapMean(differences);
    }
  }
  return rows;
}

}  // namespace psring
