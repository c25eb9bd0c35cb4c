#include "experiments/analysis/launch_figures.h"

#include <algorithm>
#include <map>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/check.h"
#include "experiments/analysis/row_queries.h"
#include "experiments/analysis/waiting.h"
#include "experiments/stats/statistics.h"
#include "trainer/programs/pipeline_flags.h"

namespace psring {
namespace {

double WallSeconds(absl::Span<const std::vector<StepRecord>> ranks) {
  int64_t begin = INT64_MAX, end = INT64_MIN;
  for (const auto& steps : ranks) {
    for (const StepRecord& step : steps) {
      if (step.warmup) continue;
      begin = std::min(begin, step.begin_ns);
      end = std::max(end, step.begin_ns + static_cast<int64_t>(step.step_ms * 1e6));
    }
  }
  return end > begin ? 1e-9 * (end - begin) : 0;
}

// A worker's own speed, from the start of its first measured step to the end of its last.
struct Speed {
  double samples_per_s = 0, steps_per_s = 0;
};

Speed SpeedOf(const std::vector<StepRecord>& steps) {
  double samples = 0, count = 0;
  for (const StepRecord& step : steps) {
    if (step.warmup) continue;
    samples += step.samples;
    ++count;
  }
  const double wall_s = WallSeconds(absl::MakeConstSpan(&steps, 1));
  return wall_s > 0 ? Speed{samples / wall_s, count / wall_s} : Speed{};
}

// Samples/s of workers that do not wait for one another: excludes the time in which some have finished and
// others have not.
double SumOfSpeeds(const RunRecords& records) {
  double sum = 0;
  for (const auto& steps : records.steps) sum += SpeedOf(steps).samples_per_s;
  return sum;
}

// Means over steps.
constexpr std::pair<double RunFigures::*, double StepRecord::*> kStepMeans[] = {
    {&RunFigures::step_ms, &StepRecord::step_ms},
    {&RunFigures::compute_ms, &StepRecord::compute_ms},
    {&RunFigures::comm_busy_ms, &StepRecord::comm_busy_ms},
    {&RunFigures::exposed_comm_ms, &StepRecord::exposed_comm_ms}};

// Those of workers that take their steps from one total. Each worker counts by its speed, not by its steps:
// in a short launch the last step of a slow worker, which ends after the total is reached, would count too
// much.
void AverageBySpeed(const RunRecords& records, RunFigures& figures) {
  for (const auto& [figure, field] : kStepMeans) {
    double all = 0, sum = 0;
    for (const auto& steps : records.steps) {
      const double speed = SpeedOf(steps).steps_per_s;
      all += speed;
      sum += speed * MeanOf(steps, field);
    }
    figures.*figure = all > 0 ? sum / all : 0;
  }
}

// Of servers, of all pushes, except those of rows; of a pipeline without a flush, of its stages, which have
// different numbers of buckets.
void AddStaleness(const Configuration& configuration, const RunRecords& records, RunFigures& figures) {
  const bool of_stages = UpdatesWithoutFlush(configuration.training);
  if (!configuration.strategy.uses_servers && !of_stages) return;
  int64_t pushes = 0, sum = 0, most = 0;
  std::vector<double> means;
  for (const RankResult& rank : records.ranks) {
    pushes += rank.pushes;
    sum += rank.staleness_sum;
    most = std::max(most, rank.staleness_max);
    means.push_back(static_cast<double>(rank.staleness_sum) /
                    static_cast<double>(std::max<int64_t>(1, rank.pushes)));
  }
  if (pushes == 0) return;
  figures.staleness_mean = of_stages ? Mean(means) : static_cast<double>(sum) / pushes;
  figures.staleness_max = most;
}

std::string Incidents(const std::vector<ServerResult>& servers) {
  std::vector<std::string> incidents;
  std::map<int64_t, int64_t> lost;  // worker -> the first step without it, over all servers
  for (const ServerResult& server : servers) {
    for (size_t i = 0; i < server.lost_workers.size() && i < server.lost_at_step.size(); ++i) {
      const auto [worker, is_new] = lost.emplace(server.lost_workers[i], server.lost_at_step[i]);
      if (!is_new) worker->second = std::min(worker->second, server.lost_at_step[i]);
    }
  }
  for (const auto& [worker, step] : lost) {
    incidents.push_back(absl::StrCat("worker ", worker, " lost at step ", step));
  }
  for (const ServerResult& server : servers) {
    if (server.restarts > 0)
      incidents.push_back(absl::StrCat("server restarted ", server.restarts, " times"));
    if (server.lost_updates > 0) incidents.push_back(absl::StrCat(server.lost_updates, " pushes lost"));
  }
  return absl::StrJoin(incidents, "; ");
}

void AddServers(const Configuration& configuration, const RunRecords& records, RunFigures& figures) {
  if (records.servers.empty()) return;
  int pushing = configuration.replicas();
  if (configuration.strategy.number_below_workers) pushing -= configuration.strategy.number;
  double memory = 0, dropped = 0;
  for (size_t i = 0; i < records.servers.size(); ++i) {
    const ServerResult& server = records.servers[i];
    memory = std::max(memory, server.peak_memory_mb);
    dropped = std::max(dropped, static_cast<double>(server.dropped_gradients));
    const size_t buckets =
        configuration.strategy.uses_group ? 0 : BucketsAt(configuration, records, static_cast<int>(i));
    // Rows are pushed once per step of a worker; only a bucket's pushes are counted.
    const double steps = buckets > 0 ? static_cast<double>(server.pushes) /
                                           std::max(1.0, static_cast<double>(buckets) * pushing)
                                     : static_cast<double>(records.steps.front().size());
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
    for (const auto& steps : records.steps) computed += steps.size();
    if (computed > 0) figures.dropped_share = dropped / computed;
  }
  for (const ServerResult& server : records.servers) {
    auto& histogram = figures.staleness_histogram;
    histogram.resize(std::max(histogram.size(), server.staleness_histogram.size()));
    for (size_t i = 0; i < server.staleness_histogram.size(); ++i) {
      histogram[i] += server.staleness_histogram[i];
    }
  }
}

// Per worker and step, from the interfaces' counters. Ranks in the server's process are left out,
// because they share its interface.
std::optional<double> WireBytes(const Configuration& configuration, const RunRecords& records,
                                int64_t steps) {
  const bool beside_server =
      configuration.servers() > 0 && configuration.training.server_placement == "rank0";
  std::vector<double> bytes;
  for (const RankResult& rank : records.ranks) {
    if (rank.wire_tx_bytes < 0) continue;
    if (beside_server && rank.rank < configuration.training.ranks_per_process) continue;
    bytes.push_back(static_cast<double>(rank.wire_tx_bytes) / steps);
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
  figures.foreign_cpu_pct = records.foreign_cpu_pct;
  figures.other_psring = records.other_psring;
  // Ranks of a replica wait for others than the strategy's.
  if (ReplicaRanks(configuration.training) > 1) return AddPipelineFigures(configuration, records, figures);
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
        ready[b].push_back(1e-6 * (step.buckets[b].ready_ns - step.begin_ns));
      }
    }
  }
  figures.waited_ms = Mean(waited);
  figures.late_ms = MeanLate(records);
  for (const std::vector<double>& of_bucket : ready) figures.bucket_ready_ms.push_back(Mean(of_bucket));
}

// With --oversubscribe, the number of GPUs if there are fewer than ranks; else 0.
int GpusShared(const Configuration& configuration, const RunRecords& records) {
  if (!configuration.training.oversubscribe) return 0;
  std::set<std::string> devices;
  for (const RankResult& rank : records.ranks) {
    if (rank.device != "cpu") devices.insert(rank.device);
  }
  return devices.size() < records.ranks.size() ? static_cast<int>(devices.size()) : 0;
}

int MachinesOf(const std::vector<RankResult>& ranks) {
  std::set<std::string> hosts;
  for (const RankResult& rank : ranks) {
    if (rank.host.empty()) return 0;
    hosts.insert(rank.host);
  }
  return static_cast<int>(hosts.size());
}

}  // namespace

RankResult SampleOf(const RunRecords& records) {
  RankResult sample = records.ranks.front();
  sample.rows = {};
  for (const RankResult& rank : records.ranks) {
    sample.rows.AddToMean(rank.rows, static_cast<double>(records.ranks.size()));
  }
  return sample;
}

double MostMemoryMb(const std::vector<RankMemory>& ranks, MemoryFigures RankMemory::*which) {
  double most = 0;
  for (const RankMemory& rank : ranks) most = std::max(most, (rank.*which).total_mb());
  return most;
}

std::optional<double> TimeToTarget(const std::vector<CurvePoint>& curve, double target) {
  for (const CurvePoint& point : curve) {
    if (point.test_accuracy >= target) return point.wall_s;
  }
  return std::nullopt;
}

absl::StatusOr<RunFigures> FiguresOf(const Configuration& configuration, const RunRecords& records) {
  PSRING_CHECK(records.ranks.size() == records.steps.size() && !records.ranks.empty());
  RunFigures figures;
  std::vector<double> losses;
  for (size_t rank = 0; rank < records.ranks.size(); ++rank) {
    int64_t steps = 0;
    for (const StepRecord& step : records.steps[rank]) {
      if (step.warmup) continue;
      ++steps;
      if (!step.dropped) figures.samples += step.samples;
      figures.every_step_ms.push_back(step.step_ms);
    }
    // With backup workers, a worker may be late, and skip, every measured step.
    const bool needs_none = configuration.strategy.number_below_workers || records.restarted;
    if (steps == 0 && !needs_none && configuration.training.resume.empty()) {
      return absl::DataLossError(
          absl::StrCat(configuration.name(), ": rank ", rank, " has no measured steps"));
    }
    figures.steps = std::max(figures.steps, steps);
    losses.push_back(records.ranks[rank].final_loss);
    figures.worker_peak_memory_mb =
        std::max(figures.worker_peak_memory_mb, records.ranks[rank].peak_memory_mb);
    if (!records.ranks[rank].curve.empty()) {
      figures.trained_samples = records.ranks[rank].curve.back().samples;
      figures.test_accuracy = records.ranks[rank].curve.back().test_accuracy;
      if (configuration.target_accuracy > 0) {
        figures.time_to_target_s = TimeToTarget(records.ranks[rank].curve, configuration.target_accuracy);
      }
    }
  }
  if (figures.every_step_ms.empty() && !configuration.training.resume.empty()) {
    return absl::OutOfRangeError(absl::StrCat(
        "--resume ", configuration.training.resume, ": this training is finished",
        figures.test_accuracy ? absl::StrFormat(", with test accuracy %.4f", *figures.test_accuracy) : "",
        "; nothing is left to train unless you give more --epochs, --samples or --steps"));
  }
  if (figures.every_step_ms.empty()) {
    return absl::DataLossError(absl::StrCat(configuration.name(), ": no rank has measured steps"));
  }
  // Asynchronous workers divide the steps among themselves.
  if (configuration.strategy.shares_steps) {
    figures.steps = static_cast<int64_t>(figures.every_step_ms.size() / records.ranks.size());
  }
  if (figures.trained_samples == 0) figures.trained_samples = figures.samples;  // not evaluated
  figures.wall_s = WallSeconds(records.steps);
  if (figures.wall_s > 0) figures.samples_per_s = static_cast<double>(figures.samples) / figures.wall_s;
  const bool independent = !configuration.strategy.communicates() || configuration.strategy.shares_steps;
  if (independent) figures.samples_per_s = SumOfSpeeds(records);
  const double rank_steps = static_cast<double>(figures.every_step_ms.size());
  for (const auto& [figure, field] : kStepMeans) figures.*figure = MeanOf(records.steps, field);
  if (configuration.strategy.shares_steps) AverageBySpeed(records, figures);
  figures.loss = Mean(losses);
  figures.payload_tx_bytes = MeanOf(records.steps, &StepRecord::payload_tx_bytes);
  figures.payload_rx_bytes = MeanOf(records.steps, &StepRecord::payload_rx_bytes);
  figures.stage_tx_bytes = MeanOf(records.steps, &StepRecord::stage_tx_bytes);
  figures.tensor_tx_bytes = MeanOf(records.steps, &StepRecord::tensor_tx_bytes);
  figures.sequence_tx_bytes = MeanOf(records.steps, &StepRecord::sequence_tx_bytes);
  figures.wire_tx_bytes = WireBytes(configuration, records, figures.steps);
  const bool communicates = configuration.strategy.communicates();
  const bool is_cut = ReplicaRanks(configuration.training) > 1;
  if (configuration.strategy.synchronous && communicates && !is_cut) figures.wait_ms = MeanWait(records);
  // Simulated workers share one set of weights.
  if (configuration.strategy.synchronous && communicates && !configuration.simulated()) {
    figures.replicas_equal = std::all_of(
        records.ranks.begin(), records.ranks.end(),
        [&](const RankResult& rank) { return rank.weights_hash == records.ranks.front().weights_hash; });
  }
  AddPace(configuration, records, figures);
  AddStaleness(configuration, records, figures);
  AddServers(configuration, records, figures);
  // Ranks that have a part of the model do not wait for all others; what those of a pipeline wait is their
  // bubble.
  figures.workers = WorkerFiguresOf(is_cut ? *FindStrategy("none") : configuration.strategy, records);
  for (size_t rank = 0; rank < figures.workers.size(); ++rank) {
    figures.workers[rank].samples_per_s = SpeedOf(records.steps[rank]).samples_per_s;
  }
  figures.gpus_shared = GpusShared(configuration, records);
  for (const RankResult& rank : records.ranks) {
    AddWires(rank.wires, figures.wires);
    figures.memory.push_back({.measured = rank.memory, .predicted = rank.predicted_memory});
  }
  if (MostMemoryMb(figures.memory, &RankMemory::measured) == 0) figures.memory.clear();
  figures.machines = MachinesOf(records.ranks);
  if (configuration.strategy.waits_for_some() && !is_cut) {
    double waited = 0;
    for (const WorkerFigures& worker : figures.workers) waited += worker.wait_ms * worker.steps;
    figures.wait_ms = waited / rank_steps;
  }
  return figures;
}

void DivideTimes(double scale, RunRecords& records) {
  const auto ns = [scale](int64_t& time) { time = std::llround(static_cast<double>(time) / scale); };
  for (std::vector<StepRecord>& steps : records.steps) {
    for (StepRecord& step : steps) {
      ns(step.begin_ns);
      for (double* ms :
           {&step.step_ms, &step.compute_ms, &step.delay_ms, &step.comm_busy_ms, &step.exposed_comm_ms,
            &step.bubble_ms, &step.activation_message_ms, &step.gradient_message_ms}) {
        *ms /= scale;
      }
      for (BucketRecord& bucket : step.buckets) {
        ns(bucket.ready_ns);
        ns(bucket.begin_ns);
        ns(bucket.end_ns);
      }
    }
  }
  for (RankResult& rank : records.ranks) {
    DataParallelFigures& replicas = rank.data_parallel;
    for (double* time :
         {&rank.wall_s, &rank.computed_ms, &rank.update_ms, &rank.run_delay_ms, &rank.probe_ms,
          &rank.ddp.forward_ms, &rank.ddp.backward_ms, &rank.ddp.comm_ms, &rank.ddp.overlap_ms,
          &replicas.inputs_ms, &replicas.weights_ms, &replicas.output_gradients_ms, &replicas.outputs_ms,
          &replicas.gradients_ms, &replicas.loss_ms, &replicas.update_ms, &replicas.compute_ms}) {
      *time /= scale;
    }
    for (CurvePoint& point : rank.curve) point.wall_s /= scale;
  }
  if (records.network) records.network->again_ms /= scale;
}

Wires DivideTimes(double scale, Wires wires) {
  wires.latency_s /= scale;
  wires.bytes_per_s *= scale;
  wires.medium_bytes_per_s *= scale;
  wires.grpc_bytes_per_s *= scale;
  wires.stream_bytes_per_s *= scale;
  wires.add_s_per_byte /= scale;
  wires.update_s_per_byte /= scale;
  return wires;
}

}  // namespace psring
