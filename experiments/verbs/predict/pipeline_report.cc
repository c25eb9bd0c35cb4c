// The rows, the table and the conclusions of predict --pp.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/text/translate.h"
#include "experiments/verbs/predict/report.h"

namespace psring {
namespace {

// "pp4 1f1b", "dp2xpp4 interleaved:2", "dp2xpp4 fsdp 1f1b", "pp4 1f1b copy 1".
std::string NameOf(const PipelineCase& point) {
  const bool shards = point.replicas() > 1 && point.strategy.shards_updates;
  return absl::StrCat(point.layout(), " ", shards ? point.strategy.name + " " : "", point.program.name(),
                      point.copy_streams == 1 ? " copy 1" : "");
}

// "dp8 ring".
std::string NameOf(const PredictedRow& row) {
  return absl::StrCat("dp", row.point.workers, " ", row.point.strategy.name);
}

std::string Tenths(double value) { return absl::StrFormat("%.1f", value); }

// What would make `slower` the faster one: the rate of the links that link_factor changes.
std::string ChangeText(const PredictReport& report, const std::string& slower) {
  if (!report.link_factor) {
    return Tr(" Links from 1/$0 to $0 times as fast do not change this.", kMaxLinkFactor);
  }
  return FasterWithLinks(report.cluster, report.rows.back().point.workers, *report.link_factor, slower);
}

}  // namespace

int64_t PredictReport::GlobalBatch(int workers) const {
  if (pipelines.empty()) return int64_t{predictor->workload().batch} * workers;
  const PipelineCase& point = pipelines.front().point;
  return int64_t{workers / point.ranks} * point.micro_batches * micro_batch->batch;
}

std::string PipelineTable(const PredictReport& report) {
  const std::vector<HeadedColumn> columns = {{TrNoop("layout|"), 26},    {TrNoop("workers|"), 8},
                                             {TrNoop("samples|/s"), 10}, {TrNoop("step|ms"), 10},
                                             {TrNoop("com-|pute"), 9},   {TrNoop("bubble|%"), 8},
                                             {TrNoop("ex-|posed"), 10},  {TrNoop("comm.|busy"), 10},
                                             {TrNoop("in|flight"), 8},   {TrNoop("MB|sent"), 11}};
  std::vector<std::vector<std::string>> lines;
  for (size_t i = 0; i < report.rows.size(); ++i) {
    if (i > 0) lines.emplace_back();
    const PredictedRow& row = report.rows[i];
    const auto& [point, pipeline] = report.pipelines[i];
    const auto add = [&](const std::string& name, const Prediction& p, const std::string& bubble,
                         const std::string& in_flight) {
      lines.push_back({name, absl::StrCat(row.point.workers), ShortCount(p.samples_per_s),
                       Milliseconds(p.step), Milliseconds(p.compute), bubble, Milliseconds(p.exposed),
                       Milliseconds(p.busy), in_flight, Tenths(1e-6 * p.tx_bytes)});
    };
    add(NameOf(row), row.expected(), "", "");
    add(NameOf(point), pipeline.prediction, Tenths(100 * pipeline.bubble), absl::StrCat(pipeline.in_flight));
  }
  return HeadedTable(columns, lines);
}

std::string PipelineLegend() {
  return Tr(
      "Times are ms of a mean step. bubble: the part of the step in which a device waits for another "
      "stage to compute. exposed: the time in which it waits for bytes that are on their way. in flight: "
      "micro-batches whose activations a device keeps, at most. MB sent: by a device in a step, on "
      "average. No pipeline is among the published runs to which psring is calibrated, so the figures "
      "have no range.");
}

std::vector<std::string> PipelineSentences(const PredictReport& report) {
  const auto& [point, pipeline] = report.pipelines.back();
  const double boundary_mb = 1e-6 * point.boundary_bytes;
  std::vector<std::string> sentences = {
      Tr("The rows of one number of workers have the same global batch: a replica of the pipeline computes "
         "$0 micro-batches of $1 samples, a data-parallel worker $2 samples at once.",
         point.micro_batches, report.micro_batch->batch, report.predictor->workload().batch),
      Tr("Between two stages, the activations of a micro-batch take $0 MB and their gradient as much: $1 MB "
         "in "
         "each direction per boundary and step, $2 boundaries per replica.",
         Tenths(boundary_mb), Tenths(boundary_mb * point.micro_batches), point.stages() - 1)};
  constexpr size_t kMaxNamed = 16;
  std::vector<int> named = pipeline.cuts;
  named.resize(std::min(named.size(), kMaxNamed));
  sentences.push_back(
      Tr("$0 stages of $1 blocks of layers, which begin with the blocks $2$3: the slowest "
         "computes $4 times as long as the mean.",
         point.stages(), BlocksOf(*report.micro_batch).size(), absl::StrCat("0,", absl::StrJoin(named, ",")),
         named.size() < pipeline.cuts.size() ? ",..." : "", absl::StrFormat("%.2f", pipeline.slowest)));
  if (point.program.row.asynchronous) {
    sentences.push_back(Tr(
        "$0 updates weights without a flush: a device keeps up to $1 versions of its weights ($2 MB beside "
        "the newest), and waits for other stages only while a step's first and last micro-batches are in "
        "flight.",
        point.program.name(), pipeline.versions, Tenths(1e-6 * pipeline.older_versions_bytes)));
  }
  return sentences;
}

std::string PipelineVerdict(const PredictReport& report) {
  const PredictedRow& row = report.rows.back();
  const auto& [point, pipeline] = report.pipelines.back();
  const double factor = pipeline.prediction.samples_per_s / row.expected().samples_per_s;
  const std::string cut = NameOf(point), copied = NameOf(row);
  const bool pipeline_is_faster = factor > 1;
  std::string text = Tr("Verdict (simulated): ");
  if (std::max(factor, 1 / factor) < kEqualSteps) {
    text += Tr("$0 and $1 are equally fast with $2 workers.", cut, copied, row.point.workers);
  } else {
    text += Tr("$0 is fastest with $1 workers, $2 times as fast as $3.", pipeline_is_faster ? cut : copied,
               row.point.workers, absl::StrFormat("%.2f", std::max(factor, 1 / factor)),
               pipeline_is_faster ? copied : cut);
  }
  text +=
      Tr(" A device sends $0 MB per step in the pipeline and $1 MB with data parallelism; the bubble is $2% "
         "of the pipeline's step.",
         Tenths(1e-6 * pipeline.prediction.tx_bytes), Tenths(1e-6 * row.expected().tx_bytes),
         Tenths(100 * pipeline.bubble));
  return text + ChangeText(report, pipeline_is_faster ? copied : cut);
}

std::vector<Cell> PipelineCells(const PredictReport& report, size_t index) {
  const auto& [point, pipeline] = report.pipelines[index];
  const Prediction& p = pipeline.prediction;
  const double speedup = p.samples_per_s / report.rows[index].single_samples_per_s;
  using Value = decltype(Cell::value);
  const std::vector<std::pair<const char*, Value>> figures = {
      {"algorithm", Value()},  // the bytes are not those of an all-reduce
      {"batch_per_worker", int64_t{report.micro_batch->batch}},
      {"samples_per_s", p.samples_per_s},
      {"speedup", speedup},
      {"efficiency", speedup / point.workers},
      {"step_ms", 1e3 * p.step},
      {"compute_ms", 1e3 * p.compute},
      {"comm_busy_ms", 1e3 * p.busy},
      {"wait_ms", Value()},
      {"exposed_comm_ms", 1e3 * p.exposed},
      {"predicted_comm_ms", 1e3 * p.busy},
      {"payload_tx_bytes_per_worker", p.tx_bytes},
      {"payload_rx_bytes_per_worker", p.rx_bytes},
      {"predicted_payload_bytes_per_worker", p.tx_bytes},
      {"note",
       p.method == "theory" ? Value(std::string("reductions by theory, too large to simulate")) : Value()},
      {"layout", point.layout()},
      {"program", NameOf(point).substr(point.layout().size() + 1)},
      {"micro_batches", int64_t{point.micro_batches}},
      {"predicted_bubble_fraction", pipeline.bubble}};
  std::vector<Cell> cells = PredictedCells(report, report.rows[index]);
  for (Cell& cell : cells) {
    for (const auto& [column, value] : figures) {
      if (std::string(cell.column) == column) cell.value = value;
    }
  }
  return cells;
}

}  // namespace psring
