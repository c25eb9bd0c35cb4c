#include "experiments/analysis/summarise.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "common/text/translate.h"
#include "experiments/analysis/row_queries.h"
#include "experiments/analysis/waiting.h"
#include "experiments/costs/row_exchange.h"
#include "experiments/design/estimate.h"
#include "experiments/machine/machine.h"

namespace psring {

double ServerRateOf(const SummaryRow& row, const Wires& wires) {
  const Configuration& configuration = row.configuration;
  if (configuration.servers() == 0) return 0;
  return configuration.training.server_wire == "stream" ? wires.stream_bytes_per_s : wires.grpc_bytes_per_s;
}

Wires WiresOf(const SummaryRow& row, Wires wires) {
  if (row.configuration.update.momentum <= 0) wires.update_s_per_byte = wires.add_s_per_byte;
  return row.configuration.strategy.uses_group ? wires : WiresOfTables(row, wires);
}

Wires WiresOfTables(const SummaryRow& row, Wires wires) {
  const double rate = ServerRateOf(row, wires);
  if (rate <= 0) return wires;
  const CommPattern pattern = PatternOf(row.configuration, Scheme::kServerSync);
  // The bytes of servers on rank 0's host are counted together; others in a virtual cluster share the
  // machine.
  const bool alone = row.configuration.on_machines || pattern.place == ServerPlace::kRank0;
  if (wires.medium_bytes_per_s > 0) {
    wires.medium_bytes_per_s = rate;
  } else {
    wires.server_bytes_per_s = rate / (alone ? 1 : pattern.servers);
  }
  return wires;
}

namespace {

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
  const auto of_each = [&](auto figure) {
    std::vector<double> values;
    for (const RunFigures& run : runs) values.push_back(std::invoke(figure, run));
    return values;
  };
  for (auto figure : {&RunFigures::samples_per_s, &RunFigures::step_ms}) {
    mean.*figure = GeometricMean(of_each(figure));
  }
  // Arithmetic: parts of a step, which may be 0, and counts.
  for (auto figure :
       {&RunFigures::wall_s, &RunFigures::compute_ms, &RunFigures::comm_busy_ms, &RunFigures::exposed_comm_ms,
        &RunFigures::waited_ms, &RunFigures::late_ms, &RunFigures::payload_tx_bytes,
        &RunFigures::payload_rx_bytes, &RunFigures::stage_tx_bytes, &RunFigures::tensor_tx_bytes,
        &RunFigures::sequence_tx_bytes, &RunFigures::loss, &RunFigures::foreign_cpu_pct}) {
    mean.*figure = Mean(of_each(figure));
  }
  mean.steps = runs.front().steps;
  mean.each_server_payload_bytes = runs.front().each_server_payload_bytes;
  mean.samples = runs.front().samples;
  mean.trained_samples = runs.front().trained_samples;
  for (auto figure :
       {&RunFigures::wait_ms, &RunFigures::wire_tx_bytes, &RunFigures::server_payload_bytes,
        &RunFigures::staleness_mean, &RunFigures::dropped_gradients, &RunFigures::dropped_share,
        &RunFigures::computed_ms, &RunFigures::update_ms, &RunFigures::run_delay_ms, &RunFigures::probe_ms,
        &RunFigures::test_accuracy, &RunFigures::bubble_fraction, &RunFigures::boundary_bytes}) {
    mean.*figure = MeanOverThose(runs, figure);
  }
  for (size_t b = 0; b < runs.front().bucket_ready_ms.size(); ++b) {
    mean.bucket_ready_ms.push_back(Mean(of_each([b](const RunFigures& run) {
      return b < run.bucket_ready_ms.size() ? run.bucket_ready_ms[b] : run.bucket_ready_ms.back();
    })));
  }
  mean.network = MeanNetwork(runs);
  mean.workers = MeanWorkers(runs);
  for (const RunFigures& run : runs) {
    mean.every_step_ms.insert(mean.every_step_ms.end(), run.every_step_ms.begin(), run.every_step_ms.end());
    if (!run.incidents.empty()) {
      absl::StrAppend(&mean.incidents, mean.incidents.empty() ? "" : "; ", run.incidents);
    }
    mean.gpus_shared = std::max(mean.gpus_shared, run.gpus_shared);
    AddWires(run.wires, mean.wires);
    mean.machines = std::max(mean.machines, run.machines);
    mean.worker_peak_memory_mb = std::max(mean.worker_peak_memory_mb, run.worker_peak_memory_mb);
    // Rounds differ only if a pipeline was cut elsewhere.
    if (MostMemoryMb(run.memory, &RankMemory::measured) > MostMemoryMb(mean.memory, &RankMemory::measured)) {
      mean.memory = run.memory;
    }
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

// Intervals over rounds of the figures in charts. They begin at 0 or above, as the figures do.
std::vector<FigureInterval> IntervalsOf(const std::vector<RunFigures>& rounds) {
  std::vector<FigureInterval> intervals;
  const auto add = [&](const char* figure, auto value) {
    std::vector<double> values;
    for (const RunFigures& round : rounds) {
      if (const std::optional<double> of_round = std::invoke(value, round)) values.push_back(*of_round);
    }
    if (values.size() != rounds.size()) return;
    if (const auto interval = MeanInterval(values)) {
      intervals.push_back({figure, {std::max(0.0, interval->low), interval->high}});
    }
  };
  add("compute_ms", &RunFigures::compute_ms);
  add("exposed_comm_ms", &RunFigures::exposed_comm_ms);
  add("comm_moving_ms",
      [](const RunFigures& round) { return round.comm_busy_ms - round.wait_ms.value_or(0); });
  add("payload_tx_bytes_per_worker", &RunFigures::payload_tx_bytes);
  add("server_payload_bytes", &RunFigures::server_payload_bytes);
  return intervals;
}

SummaryRow RowOf(const std::string& run_id, const ConfigurationRuns& runs,
                 const std::optional<Wires>& wires) {
  SummaryRow row{.run_id = run_id, .configuration = runs.configuration, .sample = runs.sample};
  row.measured_cost = !runs.cost.empty();
  const std::vector<RunFigures>& measured = row.measured_cost ? runs.cost : runs.accuracy;
  row.rounds = runs.cost.size();
  row.mean = MeanFigures(measured);
  for (const RunFigures& run : runs.cost) {
    row.round_samples_per_s.push_back(run.samples_per_s);
    row.round_step_ms.push_back(run.step_ms);
  }
  row.samples_per_s_95 = GeometricMeanInterval(row.round_samples_per_s);
  row.intervals_95 = IntervalsOf(runs.cost);
  if (const auto interval = GeometricMeanInterval(row.round_step_ms)) {
    row.intervals_95.push_back({"step_ms", *interval});
  }
  row.step_ms_p10 = Quantile(row.mean.every_step_ms, 0.1);
  row.step_ms_p90 = Quantile(row.mean.every_step_ms, 0.9);
  if (!runs.accuracy.empty()) {
    const RunFigures trained = MeanFigures(runs.accuracy);
    row.test_accuracy = trained.test_accuracy;
    row.train_loss = trained.loss;
    row.trainings = runs.accuracy.size();
    row.trained_samples = trained.trained_samples;
    std::vector<double> accuracies, times;
    for (const RunFigures& run : runs.accuracy) {
      if (run.test_accuracy) accuracies.push_back(*run.test_accuracy);
      if (run.time_to_target_s) times.push_back(*run.time_to_target_s);
    }
    row.test_accuracy_95 = MeanInterval(accuracies);
    row.reached_target = times.size();
    if (!times.empty() && row.reached_target == row.trainings) {
      row.time_to_target_s = GeometricMean(times);
      row.time_to_target_95 = GeometricMeanInterval(times);
    }
  }
  for (const auto* list : {&runs.cost, &runs.accuracy}) {
    for (const RunFigures& run : *list) {
      row.foreign_cpu_pct = std::max(row.foreign_cpu_pct, run.foreign_cpu_pct);
      row.other_psring = std::max(row.other_psring, run.other_psring);
    }
  }
  AddWalk(row);
  const std::optional<Scheme> scheme = SchemeOf(runs.configuration.strategy);
  // Without what the ranks of a replica exchange the theory would be of a part.
  if (scheme && *scheme != Scheme::kNone && ReplicaRanks(runs.configuration.training) == 1) {
    const CommPattern pattern = PatternOf(runs.configuration, *scheme);
    std::vector<double> bucket_bytes;
    for (int64_t elements : runs.sample.bucket_elements)
      bucket_bytes.push_back(ExchangeBytes(runs.configuration, elements));
    // Buckets contain the padding between tensors, which is sent.
    double bytes = bucket_bytes.empty() ? ExchangeBytes(runs.configuration, runs.sample.parameters)
                                        : std::accumulate(bucket_bytes.begin(), bucket_bytes.end(), 0.0);
    const TrainingOptions& training = runs.configuration.training;
    const ShardSplit split =
        runs.configuration.strategy.SplitOf(runs.configuration.replicas(), training.dp_shard);
    if (const int64_t gathered = runs.sample.gathered_elements; gathered > 0) {
      // Each is half of an all-reduce. Weights that are still there are not gathered again.
      const auto& elements = runs.sample.bucket_elements;
      const double all = static_cast<double>(std::accumulate(elements.begin(), elements.end(), int64_t{0}));
      bytes = 4 * all * split.SentPart(training.micro_batches + static_cast<double>(gathered) / all, 1);
    }
    row.predicted_payload_bytes = PayloadBytesPerWorker(pattern, bytes);
    // The formulas assume one rank per link. With several, a ring still uses each link once, and with
    // --local_aggregation one of them uses it.
    const bool links = wires && wires->medium_bytes_per_s == 0;
    const int per_link = runs.configuration.on_machines ? runs.configuration.per_machine
                                                        : runs.configuration.training.ranks_per_process;
    const bool shared = links && per_link > 1;
    const bool is_ring = scheme->schedule != nullptr && scheme->schedule->traits.is_ring;
    const bool one_per_link = is_ring || pattern.per_machine > 1;
    const bool one_push_each = runs.sample.rows.pushed_bytes > 0;  // of rows, to servers
    const bool known = !shared || (one_per_link && !one_push_each && runs.configuration.ranks() > per_link);
    // `wires` are measured over TCP. A worker beside its server, such as rank 0, may share memory with it.
    const bool over_tcp = UsesTcp(row.mean.wires) || row.sample.transport == "tcp" ||
                          row.sample.transport == "grpc" || row.sample.transport.empty();
    // The times of theory are of one ring.
    if (wires && known && split.copies == 1 && !runs.configuration.simulated() && over_tcp)
      row.predicted_comm_ms = 1e3 * MeanExchangeSeconds(pattern, bucket_bytes, WiresOf(row, *wires));
    if (runs.sample.rows.all() > 0) {
      const std::optional<RowExchange> exchange =
          RowExchangeOf(pattern, runs.sample.rows, wires ? WiresOfTables(row, *wires) : Wires());
      if (exchange && row.predicted_payload_bytes) *row.predicted_payload_bytes += exchange->payload_bytes;
      if (exchange && row.predicted_comm_ms) *row.predicted_comm_ms += 1e3 * exchange->seconds;
      if (!exchange) row.predicted_payload_bytes = row.predicted_comm_ms = std::nullopt;
    }
  }
  return row;
}

// The row of `strategy` with `workers`, measured in the same rounds as `row`.
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

}  // namespace

Basis SummaryRow::TimeBasis() const {
  return configuration.simulated() || configuration.scaled() ? Basis::kSimulated : Basis::kMeasured;
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
    row.valid = row.configuration.simulated() || (row.foreign_cpu_pct <= kMaxForeignCpuPct &&
                                                  row.other_psring == 0 && row.mean.gpus_shared == 0);
    row.note = InLanguage(Language::kEnglish, [&] { return NoteOf(row); });
    if (!row.measured_cost) continue;
    const SummaryRow* single = Reference(rows, row, "single", 1);
    if (single != nullptr && !row.configuration.oversubscribed) {
      row.speedup = row.mean.samples_per_s / single->mean.samples_per_s;
      row.efficiency = *row.speedup / row.configuration.workers;
      if (const auto ratio = ComparePairs(row.round_samples_per_s, single->round_samples_per_s).interval) {
        const double workers = row.configuration.workers;
        row.intervals_95.push_back({"efficiency", {ratio->low / workers, ratio->high / workers}});
      }
    }
    const SummaryRow* none = Reference(rows, row, "none", row.configuration.workers);
    if (none != nullptr && row.configuration.strategy.moves_gradients() &&
        ReplicaRanks(row.configuration.training) == 1) {
      std::vector<double> differences;
      for (size_t round = 0; round < row.round_step_ms.size(); ++round) {
        differences.push_back(row.round_step_ms[round] - none->round_step_ms[round]);
      }
      row.cost_against_none_ms = Mean(differences);
      row.cost_against_none_95 = MeanInterval(differences);
    }
  }
  return rows;
}

}  // namespace psring
