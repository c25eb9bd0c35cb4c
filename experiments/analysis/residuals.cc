#include "experiments/analysis/residuals.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/check.h"
#include "common/io/csv.h"
#include "common/text/translate.h"
#include "common/text/units.h"
#include "experiments/design/estimate.h"
#include "experiments/stats/statistics.h"

namespace psring {
namespace {

constexpr double kNotable = 0.05;  // of the measured step
// Socket buffers: Linux grows them to a few MB (tcp(7): tcp_rmem, tcp_wmem).
constexpr double kSocketBytes = 2 << 20;
constexpr double kLeastPart = 0.1;  // of a residual, to be named
// The basis of the columns, repeated in every row.
constexpr char kBasis[] =
    "measured measured; predicted simulated; residual derived; computing measured; waiting derived; update "
    "measured; congestion derived at most; scheduling derived at most; unexplained derived; others measured";

absl::Status NotSimulated(const std::string& why) { return absl::FailedPreconditionError(why); }

absl::Status CheckSimulated(const SummaryRow& row) {
  if (row.configuration.model.has_tables) return NotSimulated("the rows of tables are not simulated");
  if (row.configuration.training.pp > 1) return NotSimulated("of pipelines only the bubble is simulated");
  if (row.configuration.training.tp > 1) return NotSimulated("sums of divided matrices are not simulated");
  if (row.configuration.training.cp > 1) return NotSimulated("the exchange of attention is not simulated");
  if (row.configuration.strategy.shards_gradients && row.configuration.training.micro_batches > 1)
    return NotSimulated("gradients that are sent before the last micro-batch are not simulated");
  PSRING_RETURN_IF_ERROR(CheckStrategy(row.configuration.strategy));
  if (!row.measured_cost) return NotSimulated("its step time was not measured");
  if (row.link.bits_per_s <= 0) return NotSimulated("its links have no rate");
  if (row.configuration.training.ranks_per_process > 1)
    return NotSimulated("ranks of one process share a link, but each simulated rank has its own");
  if (BytesAreDerived(row)) return NotSimulated("collectives of external libraries are not simulated");
  return absl::OkStatus();
}

// A workload with one tensor per bucket, from measured times minus `delays`.
Workload AsMeasured(const SummaryRow& pace, const SummaryRow& row, const Delays& delays) {
  const double slept_ms = delays.jitter.mean_ms(), slowness = Mean(delays.slowness);
  const auto without = [&](double ms) {
    return std::max(0.0, ms - slept_ms) / (delays.slowness.empty() ? 1 : slowness);
  };
  Workload workload{.name = pace.configuration.name()};
  workload.batch = static_cast<int>(WorkerBatch(row.configuration.training)) *
                   row.configuration.training.reference_workers;
  workload.backward_ms = without(*pace.mean.computed_ms);
  double ready_ms = 0;
  for (size_t b = 0; b < row.sample.bucket_elements.size(); ++b) {
    ready_ms = std::clamp(without(pace.mean.bucket_ready_ms[b]), ready_ms, workload.backward_ms);
    workload.tensors.push_back({absl::StrCat("bucket ", b), 4 * row.sample.bucket_elements[b], ready_ms});
  }
  return workload;
}

bool SameBuckets(const Workload& workload, const BucketSizes& sizes, const std::vector<int64_t>& elements) {
  const std::vector<Bucket> planned = PlanBuckets(LayoutOf(workload), sizes);
  return std::equal(
      planned.begin(), planned.end(), elements.begin(), elements.end(),
      [](const Bucket& bucket, int64_t count) { return static_cast<int64_t>(bucket.count) == count; });
}

Cluster ClusterOf(const SummaryRow& row, const SummaryRow* none, const PredictionInputs& inputs) {
  const auto turns = [&](int processes) { return std::max(1.0, double(processes) / inputs.cores); };
  const int workers = row.configuration.workers, servers = std::max(1, row.configuration.servers());
  const Wires& wires = inputs.wires;
  Cluster cluster;
  cluster.link_bytes_per_s = wires.bytes_per_s;
  cluster.fraction = 1;  // the measured rate is payload
  cluster.latency_s = wires.latency_s;
  cluster.burst_bytes = wires.burst_bytes;
  cluster.socket_bytes = kSocketBytes;
  cluster.add_s_per_byte = wires.add_s_per_byte * turns(workers);
  cluster.server_add_s_per_byte = wires.add_s_per_byte * turns(servers);
  if (const double rate = ServerRateOf(row, wires); rate > 0) {
    // All nodes are on this machine.
    const CommPattern pattern = PatternOf(row.configuration, Scheme::kServerSync);
    const double of_all = pattern.place == ServerPlace::kRank0 ? 1 : servers;
    cluster.server_worker_s_per_byte = servers * of_all * GradientsAtServer(pattern) / workers / rate;
  }
  // Plain SGD accesses as much memory as adding.
  const double update =
      row.configuration.update.momentum > 0 ? wires.update_s_per_byte : wires.add_s_per_byte;
  cluster.server_update_s_per_byte = update * turns(servers);
  cluster.worker_update_s_per_byte = update * turns(workers);
  if (none != nullptr && none->mean.update_ms && row.sample.parameters > 0) {
    cluster.worker_update_s_per_byte = 1e-3 * *none->mean.update_ms / (4.0 * row.sample.parameters);
  }
  return cluster;
}

bool Communicates(const SummaryRow& row) { return row.configuration.strategy.communicates(); }

const SummaryRow* NoneWithSameWorkers(const std::vector<SummaryRow>& rows, const SummaryRow& row) {
  for (const SummaryRow& other : rows) {
    if (other.configuration.strategy.name == "none" && other.measured_cost &&
        other.configuration.workers == row.configuration.workers) {
      return &other;
    }
  }
  return nullptr;
}

std::string Field(const std::optional<double>& value) { return value ? absl::StrFormat("%.6g", *value) : ""; }

std::string Line(const SummaryRow& row, const std::string& round, const RunFigures& figures) {
  const Configuration& configuration = row.configuration;
  std::vector<std::string> fields = {
      row.run_id,
      configuration.strategy.name,
      absl::StrCat(configuration.workers),
      absl::StrCat(configuration.servers()),
      configuration.servers() > 0 ? configuration.training.server_placement : "",
      round};
  if (!row.prediction) {
    fields.push_back(Field(figures.step_ms));
    fields.insert(fields.end(), 8, "");
  } else {
    const Residual residual = ResidualOf(figures, row.prediction->prediction);
    const auto put = [&fields](double ms) { fields.push_back(absl::StrFormat("%.9g", ms)); };
    for (const double ms : {residual.measured, residual.predicted, residual.total()}) put(ms);
    for (const ResidualPart& part : kResidualParts) put(residual.*part.ms);
  }
  const auto& network = figures.network;
  fields.push_back(Field(figures.run_delay_ms));
  fields.push_back(network ? Field(network->retransmitted_segments) : "");
  fields.push_back(network ? Field(network->timeouts) : "");
  fields.push_back(network ? Field(network->queue_drops) : "");
  fields.push_back(kBasis);
  fields.push_back(row.prediction ? absl::StrCat("computing as in ", row.prediction->compute_from)
                                  : row.why_not_predicted);
  return CsvLine(fields);
}

// In the order of kResidualParts.
constexpr const char* kPartNames[] = {TrNoop("computing"),
                                      TrNoop("waiting for a peer"),
                                      TrNoop("updates"),
                                      TrNoop("retransmission (at most)"),
                                      TrNoop("waiting for a processor (at most)"),
                                      TrNoop("unexplained")};

// "waiting +2.1, unexplained -0.3", the largest first.
std::string PartsText(const Residual& residual) {
  std::vector<std::pair<double, const char*>> parts;
  for (size_t i = 0; i < std::size(kResidualParts); ++i)
    parts.emplace_back(residual.*kResidualParts[i].ms, kPartNames[i]);
  std::ranges::stable_sort(
      parts, [](const auto& a, const auto& b) { return std::abs(a.first) > std::abs(b.first); });
  std::vector<std::string> texts;
  for (const auto& [ms, name] : parts) {
    if (std::abs(ms) >= kLeastPart * std::abs(residual.total()))
      texts.push_back(absl::StrFormat("%s %+.1f", Tr(name), ms));
  }
  return absl::StrJoin(texts, Tr(", "));
}

}  // namespace

Residual ResidualOf(const RunFigures& measured, const Prediction& predicted) {
  Residual residual{.measured = measured.step_ms, .predicted = 1e3 * predicted.step};
  double left = residual.measured - residual.predicted;
  const auto takes = [&left](double& part, double ms) {
    part = ms;
    left -= ms;
  };
  if (measured.computed_ms) takes(residual.computing, *measured.computed_ms - 1e3 * predicted.compute);
  takes(residual.waiting, measured.waited_ms - 1e3 * predicted.wait);
  // If computing hides all communication, it hides the updates too.
  if (measured.update_ms && (measured.exposed_comm_ms > 0 || predicted.exposed > 0)) {
    takes(residual.update, *measured.update_ms - 1e3 * predicted.update);
  }
  if (measured.network)
    takes(residual.congestion, std::clamp(measured.network->again_ms, 0.0, std::max(0.0, left)));
  if (measured.run_delay_ms) {
    takes(residual.scheduling, std::clamp(*measured.run_delay_ms, 0.0, std::max(0.0, left)));
  }
  residual.unexplained = left;
  return residual;
}

absl::StatusOr<RowPrediction> PredictRow(const SummaryRow& row, const SummaryRow* none,
                                         const PredictionInputs& inputs) {
  PSRING_RETURN_IF_ERROR(CheckSimulated(row));
  const TrainingOptions& training = row.configuration.training;
  PredictOptions options{.place = PatternOf(row.configuration, Scheme::kNone).place,
                         .pipelined = training.ps_schedule != "serial",
                         .align_steps = training.align_steps,
                         .seed = training.seed,
                         .wire_part = training.wire == "float32" ? 1 : 0.5,
                         .reshards = training.reshard == "forward",
                         .dp_shard = training.dp_shard,
                         .clips = training.clip_norm > 0};
  PSRING_ASSIGN_OR_RETURN(options.delays, ParseDelays(training.straggler, training.jitter_ms, training.seed,
                                                      row.configuration.workers));
  if (options.delays.any()) {
    options.first_step = training.warmup_steps;
    options.steps = row.mean.steps;
  }
  Workload workload;
  RowPrediction result;
  const bool measured = none != nullptr && none->mean.computed_ms &&
                        none->sample.bucket_elements == row.sample.bucket_elements &&
                        none->mean.bucket_ready_ms.size() == none->sample.bucket_elements.size();
  if (inputs.workload && !measured) {
    workload = *inputs.workload;
    options.buckets = {.first_mb = std::min(1.0, training.bucket_mb), .others_mb = training.bucket_mb};
    if (!SameBuckets(workload, options.buckets, row.sample.bucket_elements)) {
      return NotSimulated("its buckets have another order than the recording");
    }
    // Nothing is sent before the last micro-batch's backward pass.
    workload.forward_ms += (training.micro_batches - 1) * workload.compute_ms();
    workload.batch *= training.micro_batches;
    result.compute_from = absl::StrCat("the recording of ", workload.name);
  } else {
    const SummaryRow& pace = none != nullptr ? *none : row;
    // If computing is measured in the row itself, its waiting already includes lateness.
    if (none != nullptr && !options.delays.any()) options.late_s = 1e-3 * pace.mean.late_ms;
    if (!pace.mean.computed_ms || pace.mean.bucket_ready_ms.size() != row.sample.bucket_elements.size()) {
      return NotSimulated("the time of computing was not measured");
    }
    workload = AsMeasured(pace, row, options.delays);
    options.buckets = {.first_mb = 0, .others_mb = 0};
    result.compute_from = workload.name;
  }
  Predictor predictor(std::move(workload), options);
  PSRING_ASSIGN_OR_RETURN(result.prediction, predictor.Predict({.strategy = row.configuration.strategy,
                                                                .workers = row.configuration.workers,
                                                                .servers = row.configuration.servers()},
                                                               ClusterOf(row, none, inputs)));
  result.residual = ResidualOf(row.mean, result.prediction);
  return result;
}

void PredictRows(const PredictionInputs& inputs, std::vector<SummaryRow>& rows) {
  for (SummaryRow& row : rows) {
    if (!Communicates(row)) continue;
    absl::StatusOr<RowPrediction> prediction = PredictRow(row, NoneWithSameWorkers(rows, row), inputs);
    if (prediction.ok()) {
      row.prediction = *std::move(prediction);
    } else {
      row.why_not_predicted = std::string(prediction.status().message());
    }
  }
}

std::string ResidualsCsv(const std::vector<SummaryRow>& rows, const std::vector<ConfigurationRuns>& runs) {
  std::string text =
      "run_id,strategy,workers,servers,placement,round,measured_ms,predicted_ms,residual_ms,computing_ms,"
      "waiting_ms,update_ms,congestion_ms,scheduling_ms,unexplained_ms,run_delay_ms,retransmitted_segments,"
      "tcp_timeouts,queue_drops,basis,note\n";
  for (const SummaryRow& row : rows) {
    if (!row.measured_cost || !Communicates(row)) continue;
    for (const ConfigurationRuns& of_one : runs) {
      if (of_one.configuration.folder() != row.configuration.folder()) continue;
      for (size_t round = 0; round < of_one.cost.size(); ++round) {
        text += Line(row, absl::StrCat(round), of_one.cost[round]);
      }
    }
    text += Line(row, "", row.mean);
  }
  return text;
}

std::vector<std::string> ResidualFindings(const std::vector<SummaryRow>& rows) {
  std::vector<std::string> findings;
  std::vector<std::string> unpredicted;
  std::vector<double> errors;
  const SummaryRow* worst = nullptr;
  const auto error = [](const SummaryRow& row) {
    const Residual& residual = row.prediction->residual;
    return residual.total() / residual.predicted;
  };
  for (const SummaryRow& row : rows) {
    if (!row.prediction) {
      if (!row.why_not_predicted.empty()) {
        unpredicted.push_back(absl::StrCat(row.configuration.name(), " (", row.why_not_predicted, ")"));
      }
      continue;
    }
    errors.push_back(std::abs(error(row)));
    if (worst == nullptr || errors.back() > std::abs(error(*worst))) worst = &row;
  }
  if (worst != nullptr) {
    findings.push_back(
        Tr("Compared with the simulator ($0): measured steps differ by $1% in the median and $2% at most "
           "($3); residuals.csv lists the parts.",
           errors.size() == 1 ? Tr("1 case") : Tr("$0 cases", errors.size()),
           Fixed(100 * Quantile(errors, 0.5), 1), absl::StrFormat("%+.1f", 100 * error(*worst)),
           worst->configuration.name()));
  }
  for (const SummaryRow& row : rows) {
    if (!row.prediction) continue;
    const Residual& residual = row.prediction->residual;
    if (std::abs(residual.total()) < kNotable * residual.measured) continue;
    findings.push_back(
        Tr("$0: a step took $1 ms, the simulator predicts $2 ms. The difference of $3 ms consists of: $4.",
           row.configuration.name(), Fixed(residual.measured, 1), Fixed(residual.predicted, 1),
           absl::StrFormat("%+.1f", residual.total()), PartsText(residual)));
  }
  if (!unpredicted.empty()) {
    findings.push_back(Tr("Not predicted: $0.", absl::StrJoin(unpredicted, Tr(", "))));
  }
  return findings;
}

}  // namespace psring
