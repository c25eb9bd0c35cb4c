#include "experiments/run_folder/run_files.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/io/csv.h"
#include "common/io/json_text.h"
#include "common/text/translate.h"
#include "common/text/units.h"
#include "experiments/analysis/table.h"
#include "experiments/analysis/verdict.h"
#include "experiments/analysis/waiting.h"
#include "experiments/design/estimate.h"

namespace psring {
namespace {

using Json = nlohmann::ordered_json;

std::string Number(double value) { return std::isfinite(value) ? absl::StrFormat("%.6g", value) : ""; }

std::string CellText(const Cell& cell) {
  struct Visitor {
    std::string operator()(std::monostate) const { return ""; }
    std::string operator()(bool value) const { return value ? "true" : "false"; }
    std::string operator()(int64_t value) const { return absl::StrCat(value); }
    std::string operator()(double value) const {
      // Whole numbers, such as bytes, are exact.
      return value == std::floor(value) && std::abs(value) < 1e15 ? Fixed(value, 0) : Number(value);
    }
    std::string operator()(const std::string& value) const { return value; }
  };
  return std::visit(Visitor(), cell.value);
}

Json CellJson(const Cell& cell) {
  const auto to_json = [](const auto& value) -> Json {
    if constexpr (std::is_same_v<std::decay_t<decltype(value)>, std::monostate>) {
      return nullptr;
    } else {
      return value;
    }
  };
  return std::visit(to_json, cell.value);
}

Json WorkersJson(const SummaryRow& row) {
  const char* measured = BasisName(row.TimeBasis());
  Json list = Json::array();
  for (size_t rank = 0; rank < row.mean.workers.size(); ++rank) {
    const WorkerFigures& worker = row.mean.workers[rank];
    Json figures = {{"worker", rank},
                    {"steps", worker.steps},
                    {"step_ms", worker.step_ms},
                    {"compute_ms", worker.compute_ms},
                    {"delay_ms", worker.delay_ms},
                    {"exposed_comm_ms", worker.exposed_comm_ms},
                    {"wait_ms", worker.wait_ms},
                    {"waited_s", worker.waited_s},
                    {"dropped_gradients", worker.dropped_gradients},
                    {"samples_per_s", worker.samples_per_s},
                    {"comm_busy_ms", worker.comm_busy_ms}};
    if (worker.staleness_mean) figures["staleness_mean"] = *worker.staleness_mean;
    if (worker.staleness_theory) figures["staleness_theory"] = *worker.staleness_theory;
    if (worker.staleness_max) figures["staleness_max"] = *worker.staleness_max;
    list.push_back(figures);
  }
  return {{"figures", list},
          {"basis",
           {{"wait_ms", "derived"},
            {"waited_s", "derived"},
            {"staleness_theory", "derived"},
            {"others", measured}}}};
}

Json MemoryJson(const std::vector<RankMemory>& ranks) {
  const auto by_class = [](const MemoryFigures& of) -> Json {
    return {{"params_mb", of.params_mb},
            {"grads_mb", of.grads_mb},
            {"optimizer_mb", of.optimizer_mb},
            {"activations_mb", of.activations_mb}};
  };
  Json measured = Json::array(), predicted = Json::array();
  for (const RankMemory& rank : ranks) {
    measured.push_back(by_class(rank.measured));
    predicted.push_back(by_class(rank.predicted));
  }
  return {{"measured", measured},
          {"predicted", predicted},
          {"basis", {{"measured", "measured"}, {"predicted", "derived"}}}};
}

Json FiguresAndBasis(const std::vector<Cell>& row) {
  Json figures = Json::object(), basis = Json::object();
  for (const Cell& cell : row) {
    figures[cell.column] = CellJson(cell);
    basis[cell.column] = BasisName(cell.basis);
  }
  return {{"figures", figures}, {"basis", basis}};
}

Json PredictionJson(const RowPrediction& row) {
  const Prediction& p = row.prediction;
  Json residual = {{"ms", row.residual.total()},
                   {"share_of_predicted", row.residual.total() / row.residual.predicted}};
  for (const ResidualPart& part : kResidualParts) residual[part.column] = row.residual.*part.ms;
  residual["basis"] = "derived";
  return {{"step_ms", 1e3 * p.step},
          {"samples_per_s", p.samples_per_s},
          {"compute_ms", 1e3 * p.compute},
          {"exposed_comm_ms", 1e3 * p.exposed},
          {"comm_busy_ms", 1e3 * p.busy},
          {"limited_by", p.limit},
          {"computing_as_in", row.compute_from},
          {"basis", p.method},
          {"residual", residual}};
}

void PutInterval(Json& json, const char* lowest, const char* highest,
                 const std::optional<Interval>& interval) {
  if (!interval) return;
  json[lowest] = interval->low;
  json[highest] = interval->high;
}

// The start of a JSON object that identifies its launch.
std::string JsonPrefix(const RunLabel& label, const Configuration& configuration) {
  return absl::StrFormat("{\"part\":\"%s\",\"strategy\":\"%s\",\"workers\":%d,\"servers\":%d,\"repeat\":%d,",
                         label.part, configuration.strategy.name, configuration.workers,
                         configuration.servers(), label.repeat);
}

std::string ServerWireOf(const Configuration& configuration) {
  return configuration.servers() > 0 ? configuration.training.server_wire : "";
}

template <typename T>
std::string OrEmpty(const std::optional<T>& value) {
  return value ? Number(static_cast<double>(*value)) : "";
}

}  // namespace

std::string CellsCsv(const std::vector<std::vector<Cell>>& rows) {
  std::vector<std::string> header;
  for (const Cell& cell : rows.front()) header.push_back(cell.column);
  std::string text = CsvLine(header);
  for (const std::vector<Cell>& row : rows) {
    std::vector<std::string> fields;
    for (const Cell& cell : row) fields.push_back(CellText(cell));
    text += CsvLine(fields);
  }
  return text;
}

std::string CellsJson(const std::vector<std::vector<Cell>>& rows) {
  Json all = Json::array();
  for (const std::vector<Cell>& row : rows) all.push_back(FiguresAndBasis(row));
  return JsonText(all, 2) + "\n";
}

std::string SummaryCsv(const std::vector<SummaryRow>& rows) {
  std::vector<std::vector<Cell>> cells;
  for (const SummaryRow& row : rows) cells.push_back(Cells(row));
  if (!cells.empty()) return CellsCsv(cells);
  const std::string header = CellsCsv({Cells(SummaryRow{})});
  return header.substr(0, header.find('\n') + 1);
}

std::string TableJson(const std::vector<SummaryRow>& rows, const std::optional<Wires>& wires,
                      std::optional<int> cores) {
  Json json;
  for (const auto& [key, language] :
       {std::pair("en", Language::kEnglish), std::pair("zh", Language::kChinese)}) {
    const ScopedLanguage scope(language);
    const TableParts parts = PartsOfTable(rows);
    Json columns = Json::array(), cells(parts.rows.size(), Json::array());
    for (const TableColumn& column : parts.columns) {
      const bool one_word = column.first.ends_with('-');
      const bool spaced = !one_word && !column.first.empty() && !column.second.starts_with('/');
      const std::string begin = one_word ? column.first.substr(0, column.first.size() - 1) : column.first;
      columns.push_back(
          {{"heading", absl::StrCat(begin, spaced ? " " : "", column.second)}, {"mark", column.mark}});
      for (size_t line = 0; line < cells.size(); ++line) cells[line].push_back(column.cells[line]);
    }
    columns.push_back({{"heading", Tr("note")}, {"mark", ""}});
    for (size_t line = 0; line < cells.size(); ++line) {
      const SummaryRow& row = rows[parts.rows[line]];
      const bool first = line == 0 || parts.rows[line] != parts.rows[line - 1];
      cells[line].push_back(!first ? "" : language == Language::kEnglish ? row.note : NoteOf(row));
    }
    std::vector<std::string> legend = parts.above;
    legend.insert(legend.end(), parts.legend.begin(), parts.legend.end());
    json[key] = {{"columns", columns}, {"rows", cells}, {"legend", legend}};
    const RunVerdict verdict = VerdictOf(rows, wires);
    if (!verdict.line.empty()) {
      json[key]["verdict"] = verdict.line;
      json[key]["facts"] = Json::array();
      for (const auto& [label, text] : verdict.facts) json[key]["facts"].push_back({label, text});
    }
    if (!rows.empty()) json[key]["settings"] = SettingsText(rows, cores);
    if (const std::optional<Validity> validity = ValidityOf(rows, cores)) {
      json[key]["validity"] = {
          {"state", validity->state}, {"title", validity->title}, {"why", validity->why}};
    }
  }
  json["recommended"] = Recommended(rows);
  json["verdict_rows"] = RowsOfVerdict(rows);
  return JsonText(json, 2) + "\n";
}

std::string SummaryJson(const std::vector<SummaryRow>& rows) {
  Json all = Json::array();
  for (const SummaryRow& row : rows) {
    Json entry = FiguresAndBasis(Cells(row));
    if (row.cost_against_none_ms) {
      entry["cost_against_none"] = {{"ms", *row.cost_against_none_ms}, {"basis", "derived"}};
      PutInterval(entry["cost_against_none"], "lo95", "hi95", row.cost_against_none_95);
    }
    if (row.mean.each_server_payload_bytes.size() > 1) {
      entry["servers"] = {{"payload_bytes", row.mean.each_server_payload_bytes}, {"basis", "measured"}};
    }
    if (row.configuration.model.has_tables) entry["has_tables"] = true;  // `parameters` are the others
    if (const auto& elements = row.sample.bucket_elements;
        row.configuration.workers > 1 && !elements.empty() && row.configuration.training.pp == 1) {
      Json bytes = Json::array();
      for (const int64_t count : elements) bytes.push_back(ExchangeBytes(row.configuration, count));
      entry["buckets"] = {{"bytes", bytes}, {"basis", "derived"}};
    }
    if (row.prediction) entry["prediction"] = PredictionJson(*row.prediction);
    if (!row.why_not_predicted.empty()) entry["prediction"] = {{"why_none", row.why_not_predicted}};
    if (row.mean.probe_ms) entry["recording"] = {{"ms", *row.mean.probe_ms}, {"basis", "measured"}};
    if (row.sample.data_parallel.replicas > 0) {
      Json kinds = Json::parse(ToJson(row.sample.data_parallel));
      kinds["device0_alone_ms"] = row.sample.data_parallel.device0_alone_ms();
      kinds["basis"] = "measured; device0_extra_mb derived";
      entry["data_parallel"] = kinds;
    }
    if (!row.intervals_95.empty()) {
      Json intervals = {{"basis", "derived"}};
      for (const auto& [figure, interval] : row.intervals_95)
        PutInterval(intervals[figure], "lo95", "hi95", interval);
      entry["intervals"] = intervals;
    }
    entry["rounds"] = {{"samples_per_s", row.round_samples_per_s}, {"step_ms", row.round_step_ms}};
    if (row.trainings > 0) {
      Json accuracy = {{"trainings", row.trainings}, {"samples", row.trained_samples}};
      PutInterval(accuracy, "test_accuracy_lo95", "test_accuracy_hi95", row.test_accuracy_95);
      if (row.configuration.target_accuracy > 0) {
        accuracy["target"] = row.configuration.target_accuracy;
        accuracy["trainings_that_reached_it"] = row.reached_target;
      }
      PutInterval(accuracy, "time_to_target_s_lo95", "time_to_target_s_hi95", row.time_to_target_95);
      entry["accuracy"] = accuracy;
    }
    if (!row.mean.memory.empty()) entry["memory"] = MemoryJson(row.mean.memory);
    if (const double stages = row.mean.stage_tx_bytes, tensors = row.mean.tensor_tx_bytes,
        sequences = row.mean.sequence_tx_bytes;
        stages + tensors + sequences > 0) {
      entry["links"] = {{"replicas", row.mean.payload_tx_bytes - stages - tensors - sequences},
                        {"stages", stages},
                        {"tensors", tensors},
                        {"basis", "measured"},
                        {"sequences", sequences}};
    }
    if (row.predicted_step_ms) {
      entry["walk"] = {{"step_ms", *row.predicted_step_ms}, {"basis", "simulated"}};
    }
    if (!row.mean.workers.empty()) entry["workers"] = WorkersJson(row);
    if (!row.mean.staleness_histogram.empty() && !row.configuration.strategy.synchronous) {
      entry["staleness_histogram"] = {{"pushes", row.mean.staleness_histogram},
                                      {"basis", BasisName(row.TimeBasis())}};
    }
    all.push_back(entry);
  }
  return JsonText(all, 2) + "\n";
}

std::string RunsCsvHeader() {
  return "run_id,part,strategy,workers,repeat,seed,steps,samples,wall_s,samples_per_s,step_ms,compute_ms,"
         "comm_busy_ms,wait_ms,exposed_comm_ms,payload_tx_bytes_per_worker,payload_rx_bytes_per_worker,"
         "server_payload_bytes,staleness_mean,staleness_max,loss,test_accuracy,replicas_equal,"
         "worker_peak_memory_mb,server_peak_memory_mb,foreign_cpu_pct,records,servers,server_wire,"
         "layout,program,micro_batches,bubble_fraction,cuts\n";
}

std::string RunsCsvLine(const RunLabel& label, const Configuration& configuration,
                        const RunFigures& figures) {
  const TrainingOptions& training = configuration.training;
  return CsvLine({label.run_id,
                  label.part,
                  configuration.strategy.name,
                  absl::StrCat(configuration.workers),
                  absl::StrCat(label.repeat),
                  absl::StrCat(label.seed),
                  absl::StrCat(figures.steps),
                  absl::StrCat(figures.samples),
                  Number(figures.wall_s),
                  Number(figures.samples_per_s),
                  Number(figures.step_ms),
                  Number(figures.compute_ms),
                  Number(figures.comm_busy_ms),
                  OrEmpty(figures.wait_ms),
                  Number(figures.exposed_comm_ms),
                  Fixed(figures.payload_tx_bytes, 0),
                  Fixed(figures.payload_rx_bytes, 0),
                  figures.server_payload_bytes ? Fixed(*figures.server_payload_bytes, 0) : "",
                  OrEmpty(figures.staleness_mean),
                  OrEmpty(figures.staleness_max),
                  Number(figures.loss),
                  OrEmpty(figures.test_accuracy),
                  figures.replicas_equal ? (*figures.replicas_equal ? "true" : "false") : "",
                  Number(figures.worker_peak_memory_mb),
                  OrEmpty(figures.server_peak_memory_mb),
                  Number(figures.foreign_cpu_pct),
                  label.records,
                  absl::StrCat(configuration.servers()),
                  ServerWireOf(configuration),
                  configuration.layout(),
                  training.pp > 1 ? training.program : "",
                  absl::StrCat(training.micro_batches),
                  OrEmpty(figures.bubble_fraction),
                  training.cuts});
}

std::string CurvesCsvHeader() {
  return "strategy,workers,seed,samples,updates,wall_s,train_loss,test_loss,test_accuracy,servers,server_"
         "wire\n";
}

std::string CurvesCsvLines(const RunLabel& label, const Configuration& configuration,
                           const std::vector<CurvePoint>& curve) {
  std::string text;
  for (const CurvePoint& point : curve) {
    text +=
        CsvLine({configuration.strategy.name, absl::StrCat(configuration.workers), absl::StrCat(label.seed),
                 absl::StrCat(point.samples), absl::StrCat(point.updates), Number(point.wall_s),
                 Number(point.train_loss), Number(point.test_loss), Number(point.test_accuracy),
                 absl::StrCat(configuration.servers()), ServerWireOf(configuration)});
  }
  return text;
}

std::string StepsJsonl(const RunLabel& label, const Configuration& configuration, const RunRecords& records) {
  std::string text;
  const std::string prefix = JsonPrefix(label, configuration);
  const bool waits = configuration.strategy.synchronous && configuration.strategy.communicates();
  size_t most = 0;
  for (const auto& steps : records.steps) most = std::max(most, steps.size());
  for (size_t index = 0; index < most; ++index) {
    std::vector<const StepRecord*> together;
    for (const auto& steps : records.steps) {
      if (index < steps.size()) together.push_back(&steps[index]);
    }
    const bool complete = waits && together.size() == records.steps.size();
    for (size_t rank = 0; rank < together.size(); ++rank) {
      text += prefix;
      if (complete) absl::StrAppendFormat(&text, "\"wait_ms\":%.6g,", WaitMs(together, rank));
      absl::StrAppend(&text, ToJson(*together[rank]).substr(1), "\n");
    }
  }
  return text;
}

std::string DdpJsonl(const RunLabel& label, const Configuration& configuration, const RunRecords& records) {
  std::string text;
  for (const RankResult& rank : records.ranks) {
    absl::StrAppendFormat(&text, "%s\"rank\":%d,\"bucket_mb\":%.6g,%s\n", JsonPrefix(label, configuration),
                          rank.rank, configuration.training.bucket_mb, ToJson(rank.ddp).substr(1));
  }
  return text;
}

}  // namespace psring
