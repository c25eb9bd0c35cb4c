// The columns of the summary. Other tools rely on their names and order.
#include "absl/strings/str_join.h"
#include "experiments/summary/row_queries.h"
#include "experiments/summary/summarise.h"
#include "experiments/summary/wires.h"

namespace psring {
namespace {

// 2: lr_tried, time_scale, scaling; 3: workers_per_push; 4: ps_schedule, tokens_per_s; 5: machines, wire;
// 6: most_samples_share
constexpr int64_t kSchemaVersion = 6;

using Value = decltype(Cell::value);

template <typename T>
Value OrEmpty(const std::optional<T>& value) {
  return value ? Value(*value) : Value();
}

Value TextOrEmpty(const std::string& text) { return text.empty() ? Value() : Value(text); }

}  // namespace

bool BytesAreDerived(const SummaryRow& row) {
  return row.configuration.simulated() || (!row.sample.backend.empty() && row.sample.backend != "native");
}

std::vector<Cell> Cells(const SummaryRow& row) {
  const Configuration& configuration = row.configuration;
  const TrainingOptions& training = configuration.training;
  const RunFigures& mean = row.mean;
  const bool communicates = configuration.strategy.moves_gradients();
  const bool has_server = configuration.servers() > 0;
  const int64_t one_step = WorkerBatch(training) * training.reference_workers;
  const int spare = configuration.strategy.number_below_workers ? configuration.strategy.number : 0;
  const auto given = Basis::kGiven;
  const auto measured = Basis::kMeasured;  // also with a virtual clock
  const auto timed = row.TimeBasis();
  const auto derived = Basis::kDerived;
  const auto bytes = BytesAreDerived(row) ? derived : measured;
  const auto if_communicates = [&](double value) { return communicates ? Value(value) : Value(); };
  return {
      {"schema_version", kSchemaVersion, given},
      {"run_id", row.run_id, given},
      {"strategy", configuration.strategy.name, given},
      {"workers", int64_t{configuration.workers}, given},
      {"servers", int64_t{configuration.servers()}, given},
      {"placement", has_server ? Value(training.server_placement) : Value(), given},
      {"backend", TextOrEmpty(row.sample.backend), given},
      {"algorithm", TextOrEmpty(row.sample.algorithm), given},
      {"transport", TextOrEmpty(row.sample.transport), given},
      {"payload", TextOrEmpty(row.sample.payload), given},
      {"device", TextOrEmpty(row.sample.device), given},
      {"shaping", std::string(ShapingName(row.link.shaping)), given},
      {"link_mbps", row.link.bits_per_s > 0 ? Value(row.link.mbps()) : Value(), given},
      {"model", configuration.model.name, given},
      {"parameters", row.sample.parameters, given},
      {"batch_per_worker", int64_t{training.batch}, given},
      // An asynchronous update uses one worker's batch.
      {"global_batch",
       configuration.strategy.synchronous ? one_step * (configuration.workers - spare) : one_step, given},
      {"bucket_mb", training.bucket_mb, given},
      {"optimizer", TextOrEmpty(configuration.update.optimizer), given},
      {"lr", configuration.update.lr, given},
      {"seed", static_cast<int64_t>(training.seed), given},
      {"repeats", int64_t{row.measured_cost ? row.rounds : row.trainings}, given},
      {"steps", mean.steps, given},
      {"samples_per_s", mean.samples_per_s, timed},
      {"samples_per_s_lo95", row.samples_per_s_95 ? Value(row.samples_per_s_95->low) : Value(), derived},
      {"samples_per_s_hi95", row.samples_per_s_95 ? Value(row.samples_per_s_95->high) : Value(), derived},
      {"speedup", OrEmpty(row.speedup), derived},
      {"efficiency", OrEmpty(row.efficiency), derived},
      {"step_ms", mean.step_ms, timed},
      {"step_ms_p10", row.step_ms_p10, timed},
      {"step_ms_p90", row.step_ms_p90, timed},
      {"compute_ms", mean.compute_ms, timed},
      {"comm_busy_ms", if_communicates(mean.comm_busy_ms), timed},
      {"wait_ms", OrEmpty(mean.wait_ms), derived},
      {"exposed_comm_ms", if_communicates(mean.exposed_comm_ms), timed},
      {"predicted_comm_ms", OrEmpty(row.predicted_comm_ms), derived},
      {"payload_tx_bytes_per_worker", if_communicates(mean.payload_tx_bytes), bytes},
      {"payload_rx_bytes_per_worker", if_communicates(mean.payload_rx_bytes), bytes},
      {"predicted_payload_bytes_per_worker", OrEmpty(row.predicted_payload_bytes), derived},
      {"server_payload_bytes", OrEmpty(mean.server_payload_bytes), bytes},
      {"wire_tx_bytes_per_worker", OrEmpty(mean.wire_tx_bytes), measured},
      {"staleness_mean", OrEmpty(mean.staleness_mean), timed},
      {"staleness_max", OrEmpty(mean.staleness_max), timed},
      {"dropped_gradients", OrEmpty(mean.dropped_gradients), timed},
      {"loss", row.train_loss.value_or(mean.loss), measured},
      {"test_accuracy", OrEmpty(row.test_accuracy), measured},
      {"time_to_target_s", OrEmpty(row.time_to_target_s), timed},
      {"replicas_equal", OrEmpty(mean.replicas_equal), measured},
      {"worker_peak_memory_mb", row.configuration.simulated() ? Value() : Value(mean.worker_peak_memory_mb),
       measured},
      {"server_peak_memory_mb", row.configuration.simulated() ? Value() : OrEmpty(mean.server_peak_memory_mb),
       measured},
      {"foreign_cpu_pct", row.foreign_cpu_pct, measured},
      {"basis", std::string(BasisName(timed)), given},
      {"valid", row.valid, given},
      {"note", TextOrEmpty(row.note), given},
      {"lr_tried", TextOrEmpty(absl::StrJoin(configuration.tried_lrs, " ")), given},
      {"time_scale", training.time_scale, given},
      {"scaling", std::string(training.global_batch > 0 ? "strong" : "weak"), given},
      {"workers_per_push", has_server ? Value(int64_t{configuration.workers_per_push()}) : Value(), given},
      {"ps_schedule",
       has_server && !configuration.strategy.uses_group ? Value(training.ps_schedule) : Value(), given},
      {"tokens_per_s", training.reads_text() ? Value(mean.samples_per_s) : Value(), timed},
      {"machines", mean.machines > 0 ? Value(int64_t{mean.machines}) : Value(), given},
      {"wire", TextOrEmpty(WireText(mean.wires, Language::kEnglish)), given},
      {"most_samples_share", OrEmpty(MostSamplesShare(row)), derived},
  };
}

}  // namespace psring
