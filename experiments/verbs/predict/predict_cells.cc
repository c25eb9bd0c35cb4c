#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/text/translate.h"
#include "experiments/verbs/predict/report.h"

namespace psring {
namespace {

constexpr double kLeastWait = 1e-9;  // in s; less is rounding

// "samples/s 90 to 110", or of the step without computing.
std::string RangeNote(const PredictReport& report, const PredictedRow& row) {
  const Interval range = row.samples_per_s();
  const double speed = row.expected().samples_per_s, step_ms = 1e3 * row.expected().step;
  if (report.predictor->workload().compute_ms() > 0)
    return absl::StrFormat("samples/s %.6g to %.6g", range.low, range.high);
  return absl::StrFormat("step_ms %.6g to %.6g", step_ms * speed / range.high, step_ms * speed / range.low);
}

}  // namespace

std::vector<Cell> PredictedCells(const PredictReport& report, const PredictedRow& row) {
  const Prediction& p = row.expected();
  const Workload& workload = report.predictor->workload();
  const PredictOptions& options = report.predictor->options();
  const bool communicates = row.point.strategy.communicates(), server = row.point.servers > 0,
             alone = row.point.strategy.asynchronous();
  const bool computes = workload.compute_ms() > 0;
  using Value = decltype(Cell::value);
  const auto when = [](bool there, auto value) { return there ? Value(value) : Value(); };
  const std::vector<std::string> outside = InLanguage(Language::kEnglish, [&] { return row.outside(); });
  // The other columns apply only to real runs.
  const std::vector<std::pair<const char*, Value>> figures = {
      {"run_id", report.run_id},
      {"strategy", row.point.strategy.name},
      {"workers", int64_t{row.point.workers}},
      {"servers", int64_t{row.point.servers}},
      {"placement", when(server, std::string(PlaceName(options.place)))},
      {"ps_schedule", when(server, std::string(options.pipelined ? "pipelined" : "serial"))},
      {"algorithm", when(communicates, row.point.strategy.algorithm)},
      {"device", workload.device},
      {"shaping", std::string("simulated")},
      {"link_mbps", 8e-6 * report.cluster.link_bytes_per_s * report.cluster.cards_per_node},
      {"model", workload.name},
      {"parameters", workload.bytes() / 4},
      {"batch_per_worker", int64_t{workload.batch}},
      {"global_batch", alone ? int64_t{workload.batch} : report.GlobalBatch(row.point.workers)},
      {"bucket_mb", options.buckets.others_mb},
      {"seed", static_cast<int64_t>(options.seed)},
      {"samples_per_s", when(computes, p.samples_per_s)},
      {"samples_per_s_lo95", Value()},
      {"speedup", when(computes, row.efficiency() * row.point.workers)},
      {"efficiency", when(computes, row.efficiency())},
      {"step_ms", 1e3 * p.step},
      {"compute_ms", 1e3 * p.compute},
      {"comm_busy_ms", when(communicates, 1e3 * p.busy)},
      {"wait_ms", when(communicates && !alone, p.wait < kLeastWait ? 0 : 1e3 * p.wait)},
      {"exposed_comm_ms", when(communicates, 1e3 * p.exposed)},
      {"predicted_comm_ms", when(communicates, 1e3 * p.busy)},
      {"payload_tx_bytes_per_worker", when(communicates, p.tx_bytes)},
      {"payload_rx_bytes_per_worker", when(communicates, p.rx_bytes)},
      {"predicted_payload_bytes_per_worker", when(communicates, p.tx_bytes)},
      {"server_payload_bytes", when(server, p.server_bytes)},
      {"staleness_mean", when(p.staleness_mean >= 0, p.staleness_mean)},
      {"staleness_max", when(p.staleness_max >= 0, p.staleness_max)},
      {"most_samples_share", when(alone, p.most_share)},
      {"layout", absl::StrCat("dp", row.point.workers)},
      {"micro_batches", int64_t{1}},
      {"basis", std::string("simulated")},
      {"valid", true},
      {"note", absl::StrFormat("%s%s%s%s%s", RangeNote(report, row),
                               row.system != "none"
                                   ? absl::StrCat(" in 9 of 10 cases; ", ConstantsText(row.constants.front()))
                               : communicates ? "; described network only"
                                              : "",
                               p.method == "theory" ? "; theory, too large to simulate" : "",
                               outside.empty() ? "" : "; extrapolated: ", absl::StrJoin(outside, ", "))},
  };
  std::vector<Cell> cells = Cells(SummaryRow{});
  for (Cell& cell : cells) {
    if (std::string(cell.column) == "schema_version") continue;
    cell.value = Value();
    for (const auto& [column, value] : figures) {
      if (std::string(cell.column) == column) cell.value = value;
    }
    if (cell.basis != Basis::kGiven) cell.basis = Basis::kSimulated;
  }
  return cells;
}

}  // namespace psring
