// The columns of the summary, of which other tools use the names and the order, and its notes.
#include <algorithm>

#include "absl/strings/str_join.h"
#include "common/text/translate.h"
#include "common/text/units.h"
#include "experiments/analysis/row_queries.h"
#include "experiments/analysis/summarise.h"
#include "experiments/machine/machine.h"

namespace psring {
namespace {

// 2: lr_tried, time_scale, scaling; 3: workers_per_push; 4: ps_schedule, tokens_per_s; 5: machines, wire;
// 6: most_samples_share; 7: layout, program, micro_batches, predicted_bubble_fraction; 8: bubble_fraction;
// 9: memory by class, cuts
constexpr int64_t kSchemaVersion = 9;

using Value = decltype(Cell::value);

template <typename T>
Value OrEmpty(const std::optional<T>& value) {
  return value ? Value(*value) : Value();
}

Value TextOrEmpty(const std::string& text) { return text.empty() ? Value() : Value(text); }

constexpr double kMaxSpread = 0.01;  // of shards' bytes, relative

// The maximum over ranks of a class of memory.
Value MostOf(const std::vector<RankMemory>& ranks, double MemoryFigures::*figure) {
  double most = 0;
  for (const RankMemory& rank : ranks) most = std::max(most, rank.measured.*figure);
  return ranks.empty() ? Value() : Value(most);
}

}  // namespace

bool BytesAreDerived(const SummaryRow& row) {
  return row.configuration.simulated() || (!row.sample.backend.empty() && row.sample.backend != "native");
}

std::vector<Cell> Cells(const SummaryRow& row) {
  const Configuration& configuration = row.configuration;
  const TrainingOptions& training = configuration.training;
  const RunFigures& mean = row.mean;
  const bool is_cut = training.pp > 1;
  // A replica's ranks exchange activations, too, whatever its strategy.
  const bool communicates = configuration.strategy.moves_gradients() || ReplicaRanks(training) > 1;
  const bool has_server = configuration.servers() > 0;
  const int64_t one_step = WorkerBatch(training) * training.reference_workers;
  const int spare = configuration.strategy.number_below_workers ? configuration.strategy.number : 0;
  const auto given = Basis::kGiven;
  const auto measured = Basis::kMeasured;  // also with a virtual clock
  const auto timed = row.TimeBasis();
  const auto derived = Basis::kDerived;
  const auto bytes = BytesAreDerived(row) ? derived : measured;
  const double predicted_mb = MostMemoryMb(mean.memory, &RankMemory::predicted);
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
       configuration.strategy.synchronous ? one_step * (configuration.replicas() - spare) : one_step, given},
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
      {"wire", TextOrEmpty(absl::StrJoin(mean.wires, ", ")), given},
      {"most_samples_share", OrEmpty(MostSamplesShare(row)), derived},
      // A program and its bubble are those of a pipeline.
      {"layout", configuration.layout(), given},
      {"program", is_cut ? Value(training.program) : Value(), given},
      {"micro_batches", int64_t{training.micro_batches}, given},
      {"predicted_bubble_fraction", OrEmpty(row.predicted_bubble), Basis::kSimulated},
      {"bubble_fraction", OrEmpty(mean.bubble_fraction), timed},
      {"params_mb", MostOf(mean.memory, &MemoryFigures::params_mb), measured},
      {"grads_mb", MostOf(mean.memory, &MemoryFigures::grads_mb), measured},
      {"optimizer_mb", MostOf(mean.memory, &MemoryFigures::optimizer_mb), measured},
      {"activations_mb", MostOf(mean.memory, &MemoryFigures::activations_mb), measured},
      {"predicted_peak_memory_mb", predicted_mb > 0 ? Value(predicted_mb) : Value(), derived},
      {"cuts", TextOrEmpty(training.cuts), given},
      {"copy_streams", is_cut ? Value(int64_t{training.copy_streams}) : Value(), given},
  };
}

std::string NoteOf(const SummaryRow& row) {
  std::vector<std::string> notes;
  const Configuration& configuration = row.configuration;
  const TrainingOptions& training = configuration.training;
  if (configuration.simulated()) notes.push_back(Tr("times simulated, learning measured"));
  if (configuration.scaled())
    notes.push_back(Tr("times simulated: run $0 times slower and divided by $0", training.time_scale));
  const double target = configuration.target_accuracy;
  if (target > 0 && row.test_accuracy && !row.time_to_target_s) {
    notes.push_back(
        Tr("$0 of $1 trainings reached an accuracy of $2", row.reached_target, row.trainings, target));
  }
  if (configuration.oversubscribed) notes.push_back(Tr("oversubscribed"));
  if (const int each = training.ranks_per_process; each > 1) {
    const bool all = configuration.processes() == 1;
    const bool no_link = all && training.server_placement != "dedicated";
    const std::string link =
        row.link.bits_per_s == 0 ? "" : Tr(no_link ? TrNoop(", which use no link") : TrNoop(", on one link"));
    notes.push_back(
        Tr(all ? TrNoop("$0 ranks in one process$1") : TrNoop("$0 ranks per process$1"), each, link));
  }
  if (const int each = configuration.workers_per_push(); each > 1)
    notes.push_back(Tr("local aggregation: $0 workers push one sum", each));
  if (const int gpus = row.mean.gpus_shared; gpus > 0) {
    notes.push_back(Tr("functional, not a measurement: $0 ranks share $1 GPU$2", configuration.ranks(), gpus,
                       gpus == 1 ? "" : "s"));
  }
  if (const DataParallelFigures& replicas = row.sample.data_parallel; replicas.replicas > 0) {
    notes.push_back(Tr(
        "bytes are device 0's; the others are idle for $0 ms of a step while it works; it holds $1 MB more$2",
        Fixed(replicas.device0_alone_ms(), 2), Fixed(replicas.device0_extra_mb, 1),
        row.link.bits_per_s > 0 ? Tr("; one machine, no link used") : ""));
  }
  // Simulated times do not depend on other programs.
  if (!configuration.simulated() && row.foreign_cpu_pct > kMaxForeignCpuPct)
    notes.push_back(Tr("other programs used $0% of the processors", Fixed(row.foreign_cpu_pct, 0)));
  if (row.other_psring > 0) notes.push_back(Tr("another psring (process $0) was running", row.other_psring));
  const std::vector<double>& shards = row.mean.each_server_payload_bytes;
  if (shards.size() > 1) {
    const auto [least, most] = std::ranges::minmax_element(shards);
    if (*most > (1 + kMaxSpread) * *least) {
      notes.push_back(
          Tr("unbalanced shards: $0 to $1 bytes per step and server", Fixed(*least, 0), Fixed(*most, 0)));
    }
  }
  if (training.straggler != "none") notes.push_back(Tr("straggler $0", training.straggler));
  if (training.jitter_ms != "none") notes.push_back(Tr("jitter $0 ms", training.jitter_ms));
  if (row.mean.replicas_equal == false) notes.push_back(Tr("replicas differ"));
  if (!row.mean.incidents.empty()) notes.push_back(row.mean.incidents);
  return absl::StrJoin(notes, Tr("; "));
}

}  // namespace psring
