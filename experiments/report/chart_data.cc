#include "experiments/report/chart_data.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"

namespace psring {
namespace {

// Folders are other people's: nothing here throws, whatever the JSON holds.
using Json = nlohmann::ordered_json;

const Json& At(const Json& json, const std::string& key) {
  static const Json none;
  if (!json.is_object()) return none;
  const auto found = json.find(key);
  return found != json.end() ? *found : none;
}

std::optional<double> Number(const Json& json, const std::string& key) {
  const Json& value = At(json, key);
  if (!value.is_number() || !std::isfinite(value.get<double>())) return std::nullopt;
  return value.get<double>();
}

std::string Text(const Json& json, const std::string& key) {
  const Json& value = At(json, key);
  return value.is_string() ? value.get<std::string>() : "";
}

// A figure as it stands in the folder.
std::string Cell(const Json& value) {
  if (value.is_null()) return "";
  return value.is_string() ? value.get<std::string>()
                           : value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string Shown(double value) { return absl::StrFormat("%.10g", value); }

// Lines of a CSV as fields by their header. Quotes are taken as run_files writes them: around a field.
using CsvRow = std::map<std::string, std::string>;
std::vector<CsvRow> ParseCsv(const std::string& text) {
  std::vector<std::vector<std::string>> lines(1, std::vector<std::string>(1));
  bool quoted = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quoted) {
      if (c != '"') {
        lines.back().back() += c;
      } else if (i + 1 < text.size() && text[i + 1] == '"') {
        lines.back().back() += text[++i];
      } else {
        quoted = false;
      }
    } else if (c == '"') {
      quoted = true;
    } else if (c == ',') {
      lines.back().emplace_back();
    } else if (c == '\n') {
      lines.emplace_back(1);
    } else if (c != '\r') {
      lines.back().back() += c;
    }
  }
  std::vector<CsvRow> rows;
  for (size_t line = 1; line < lines.size(); ++line) {
    if (lines[line].size() == 1 && lines[line][0].empty()) continue;
    CsvRow& row = rows.emplace_back();
    for (size_t i = 0; i < lines[0].size() && i < lines[line].size(); ++i) row[lines[0][i]] = lines[line][i];
  }
  return rows;
}

std::optional<double> Number(const CsvRow& row, const std::string& key) {
  const auto found = row.find(key);
  double value = 0;
  if (found == row.end() || !absl::SimpleAtod(found->second, &value) || !std::isfinite(value))
    return std::nullopt;
  return value;
}

std::string Text(const CsvRow& row, const std::string& key) {
  const auto found = row.find(key);
  return found == row.end() ? "" : found->second;
}

// A row of the summary; points into its run's JSON, whose values stay where they are when it is moved.
struct Row {
  const Json* figures = nullptr;
  const Json* all = nullptr;  // beside the figures: rounds, basis
  std::string name;           // the strategy, with what else tells it from others
  int workers = 0;
  bool simulated = false, crowded = false;

  std::string plain() const { return Text(*figures, "strategy"); }
  std::optional<double> number(const std::string& key) const { return Number(*figures, key); }
  std::string label() const { return absl::StrCat(name, " × ", workers); }
};

struct Run {
  Json json;
  std::string id;
  std::vector<Row> rows;
  std::vector<CsvRow> repeats;

  // "Run X. 5 repeats of 30 steps. Intervals: ..."
  std::string Caption(bool intervals) const {
    std::string text = absl::StrCat("Run ", id, ".");
    for (const Row& row : rows) {
      const double repeats = row.number("repeats").value_or(0);
      if (repeats < 1) continue;
      absl::StrAppendFormat(&text, " %.0f %s of %.0f steps.", repeats, repeats == 1 ? "repeat" : "repeats",
                            row.number("steps").value_or(0));
      if (intervals && repeats > 1) text += " Intervals: 95%, bootstrap over repeats.";
      break;
    }
    return text;
  }
};

Run ParseRun(const RunData& data) {
  Run run{.json = Json::parse(data.json, nullptr, false)};
  run.id = Text(run.json, "run_id");
  run.repeats = ParseCsv(Text(run.json, "runs_csv"));
  const Json& summary = At(run.json, "summary");
  if (!summary.is_array()) return run;
  for (const Json& entry : summary) {
    const Json& figures = At(entry, "figures");
    const double workers = Number(figures, "workers").value_or(0);
    if (!(workers >= 1) || !(workers < 1e6)) continue;
    run.rows.push_back({.figures = &figures,
                        .all = &entry,
                        .name = Text(figures, "strategy"),
                        .workers = static_cast<int>(workers),
                        .simulated = Text(figures, "basis") == "simulated",
                        .crowded = absl::StrContains(Text(figures, "note"), "oversubscribed")});
  }
  for (Row& row : run.rows) {
    const double servers = row.number("servers").value_or(0);
    std::set<std::string> rates;
    for (const Row& other : run.rows) {
      if (other.plain() == row.plain() && other.workers == row.workers &&
          other.number("servers").value_or(0) == servers) {
        rates.insert(Cell(At(*other.figures, "lr")));
      }
    }
    if (servers > 1) absl::StrAppendFormat(&row.name, ", %.0f servers", servers);
    if (rates.size() > 1) absl::StrAppend(&row.name, ", lr ", Cell(At(*row.figures, "lr")));
    if (row.simulated) row.name += " (simulated)";
  }
  return run;
}

// What is under way, less what waits for others where that is known.
std::optional<double> Moving(const std::optional<double>& busy, const std::optional<double>& wait) {
  if (!busy) return std::nullopt;
  return *busy - wait.value_or(0);
}

bool Communicates(const Row& row) { return row.number("comm_busy_ms") && row.workers > 1; }

// A table beside the chart: whose figures, then the named ones as they stand in the folder.
void AddTable(const std::vector<const Run*>& runs, const std::vector<std::string>& figures,
              const std::function<bool(const Row&)>& keep, Chart& chart) {
  chart.columns = {"run_id", "strategy", "workers", "servers", "lr", "basis"};
  chart.columns.insert(chart.columns.end(), figures.begin(), figures.end());
  for (const Run* run : runs) {
    for (const Row& row : run->rows) {
      if (!keep(row)) continue;
      auto& cells = chart.rows.emplace_back();
      cells.push_back(run->id);
      for (size_t i = 1; i < chart.columns.size(); ++i)
        cells.push_back(Cell(At(*row.figures, chart.columns[i])));
    }
  }
}

// A figure against the number of workers, a line a strategy; of several runs a point each, the line their
// mean.
struct PooledFigure {
  std::function<bool(const Row&)> keep;
  std::function<std::optional<double>(const Row&)> value;
  std::function<std::vector<double>(const Run&, const Row&)> repeats;
  std::string low, high;  // names of the interval's figures; empty: none
};

std::vector<ChartSeries> Pooled(const std::vector<Run>& runs, const PooledFigure& figure) {
  std::vector<ChartSeries> list;
  struct Sum {
    int count = 0;
    double sum = 0;
  };
  std::vector<std::map<double, Sum>> sums;
  for (const Run& run : runs) {
    for (const Row& row : run.rows) {
      const std::optional<double> value = figure.keep(row) ? figure.value(row) : std::nullopt;
      if (!value) continue;
      auto series =
          std::find_if(list.begin(), list.end(), [&](const ChartSeries& s) { return s.name == row.name; });
      if (series == list.end()) {
        series = list.insert(list.end(), {.name = row.name, .dashed = row.simulated});
        sums.emplace_back();
      }
      Sum& sum = sums[static_cast<size_t>(series - list.begin())][row.workers];
      sum.sum += *value;
      ++sum.count;
      auto point = std::find_if(series->points.begin(), series->points.end(),
                                [&](const ChartPoint& p) { return p.x == row.workers; });
      if (point == series->points.end()) {
        point = series->points.insert(series->points.end(),
                                      {.x = static_cast<double>(row.workers), .hollow = true});
        if (runs.size() == 1) {
          point->repeats = figure.repeats(run, row);
          point->low = figure.low.empty() ? std::nullopt : row.number(figure.low);
          point->high = figure.high.empty() ? std::nullopt : row.number(figure.high);
        }
      }
      point->hollow = point->hollow && row.crowded;
      if (runs.size() > 1) point->repeats.push_back(*value);
      point->y = sum.sum / sum.count;
    }
  }
  for (ChartSeries& series : list) std::ranges::sort(series.points, {}, &ChartPoint::x);
  return list;
}

class Charts {
 public:
  explicit Charts(const std::vector<RunData>& data) {
    for (const RunData& one : data) runs_.push_back(ParseRun(one));
  }

  std::vector<Chart> All() {
    AddCommunication();
    AddThroughput();
    AddEfficiency();
    for (const Run& run : runs_) {
      AddSplit(run);
      AddBytes(run);
      AddLearning(run);
      AddStaleness(run);
      AddBench(run);
      AddTimelines(run);
    }
    return std::move(charts_);
  }

 private:
  std::string PooledCaption(bool intervals) const {
    if (runs_.size() == 1) return runs_.front().Caption(intervals);
    std::string ids;
    for (const Run& run : runs_) absl::StrAppend(&ids, ids.empty() ? "" : ", ", run.id);
    return absl::StrCat(runs_.size(),
                        " runs in one chart; a small point is a run, the line their mean. Runs: ", ids, ".");
  }

  std::vector<const Run*> AllRuns() const {
    std::vector<const Run*> list;
    for (const Run& run : runs_) list.push_back(&run);
    return list;
  }

  std::string IdOf(const Run& run, const std::string& id) const {
    return runs_.size() == 1 ? id : absl::StrCat(run.id, "-", id);
  }

  void Keep(Chart chart) { charts_.push_back(std::move(chart)); }

  // Whole numbers of workers, logarithmic where there are many.
  static void AcrossWorkers(Chart& chart) {
    chart.x_label = "workers";
    chart.whole_x = true;
    for (const ChartSeries& series : chart.series) {
      for (const ChartPoint& point : series.points) chart.log_x = chart.log_x || point.x > 40;
    }
  }

  void AddCommunication() {
    const auto moving = [](const Row& row) {
      return Moving(row.number("comm_busy_ms"), row.number("wait_ms"));
    };
    Chart chart{.id = "communication", .title = "Communication time of a step against the number of workers"};
    chart.series = Pooled(
        runs_, {.keep = Communicates, .value = moving, .repeats = [](const Run& run, const Row& row) {
                  std::vector<double> found;
                  for (const CsvRow& repeat : run.repeats) {
                    if (Text(repeat, "strategy") != row.plain() || Text(repeat, "part") == "accuracy" ||
                        Number(repeat, "workers") != row.workers ||
                        Number(repeat, "servers").value_or(0) != row.number("servers").value_or(0)) {
                      continue;
                    }
                    const auto value = Moving(Number(repeat, "comm_busy_ms"), Number(repeat, "wait_ms"));
                    if (value) found.push_back(*value);
                  }
                  return found;
                }});
    if (chart.series.empty()) return;
    if (runs_.size() == 1) {
      const size_t measured = chart.series.size();
      for (size_t i = 0; i < measured; ++i) {
        ChartSeries theory{.name = chart.series[i].name, .dashed = true, .marks = false};
        for (const Row& row : runs_.front().rows) {
          const auto predicted = row.number("predicted_comm_ms");
          if (row.name == theory.name && Communicates(row) && predicted) {
            theory.points.push_back({.x = static_cast<double>(row.workers), .y = *predicted});
          }
        }
        std::ranges::sort(theory.points, {}, &ChartPoint::x);
        if (!theory.points.empty()) chart.series.push_back(std::move(theory));
      }
    }
    chart.caption = absl::StrCat(
        "Small points: one repeat each, time with a bucket in flight minus waiting for peers where that is "
        "known "
        "(measured); lines: their means; dashed: theory at the speeds measured at the start (derived). ",
        PooledCaption(false));
    chart.y_label = "ms";
    AcrossWorkers(chart);
    AddTable(AllRuns(), {"comm_busy_ms", "wait_ms", "predicted_comm_ms", "repeats"}, Communicates, chart);
    Keep(std::move(chart));
  }

  void AddThroughput() {
    Chart chart{.id = "throughput", .title = "Throughput"};
    chart.series =
        Pooled(runs_, {.keep = [](const Row&) { return true; },
                       .value = [](const Row& row) { return row.number("samples_per_s"); },
                       .repeats =
                           [](const Run&, const Row& row) {
                             std::vector<double> found;
                             for (const Json& value : At(At(*row.all, "rounds"), "samples_per_s")) {
                               if (value.is_number()) found.push_back(value.get<double>());
                             }
                             return found;
                           },
                       .low = "samples_per_s_lo95",
                       .high = "samples_per_s_hi95"});
    if (chart.series.empty()) return;
    chart.caption = absl::StrCat(
        "Samples of all workers a second (measured, or simulated where it says so), 95% intervals over "
        "repeats "
        "(derived). Hollow: more workers than cores. ",
        PooledCaption(true));
    chart.y_label = "samples/s";
    AcrossWorkers(chart);
    AddTable(
        AllRuns(), {"samples_per_s", "samples_per_s_lo95", "samples_per_s_hi95", "repeats"},
        [](const Row& row) { return row.number("samples_per_s").has_value(); }, chart);
    Keep(std::move(chart));
  }

  void AddEfficiency() {
    const auto keep = [](const Row& row) {
      return row.number("efficiency") && row.plain() != "single" && !row.crowded;
    };
    Chart chart{.id = "efficiency", .title = "Efficiency"};
    chart.series = Pooled(runs_, {.keep = keep,
                                  .value = [](const Row& row) { return row.number("efficiency"); },
                                  .repeats = [](const Run&, const Row&) { return std::vector<double>(); }});
    if (chart.series.empty()) return;
    chart.caption = absl::StrCat(
        "Speed-up against single over the number of workers (derived); left out where workers outnumber "
        "cores. ",
        PooledCaption(true));
    chart.y_label = "speed-up / workers";
    AcrossWorkers(chart);
    AddTable(AllRuns(), {"speedup", "efficiency", "repeats"}, keep, chart);
    Keep(std::move(chart));
  }

  void AddSplit(const Run& run) {
    const auto keep = [](const Row& row) { return row.number("step_ms") && row.number("compute_ms"); };
    Chart chart{.id = IdOf(run, "split"), .title = "Where the time of a step goes"};
    chart.parts = {"compute", "exposed communication", "rest (optimizer, data, waiting for the processor)"};
    for (const Row& row : run.rows) {
      if (!keep(row)) continue;
      const double compute = *row.number("compute_ms"), exposed = row.number("exposed_comm_ms").value_or(0);
      chart.bars.push_back({row.label(),
                            {compute, exposed, std::max(0.0, *row.number("step_ms") - compute - exposed)},
                            std::nullopt});
    }
    if (chart.bars.empty()) return;
    chart.caption = absl::StrCat(
        "Means over ranks and steps (measured, or simulated where it says so). Exposed: computing stands "
        "still for "
        "communication. ",
        run.Caption(false));
    chart.x_label = "ms";
    AddTable({&run}, {"step_ms", "compute_ms", "exposed_comm_ms", "repeats"}, keep, chart);
    Keep(std::move(chart));
  }

  void AddBytes(const Run& run) {
    const auto keep = [](const Row& row) {
      return row.number("payload_tx_bytes_per_worker").value_or(0) > 0 ||
             row.number("server_payload_bytes").value_or(0) > 0;
    };
    Chart chart{.id = IdOf(run, "bytes"), .title = "Payload bytes of a step"};
    chart.parts = {"a worker sends", "the server takes in and gives out"};
    for (const Row& row : run.rows) {
      if (!keep(row)) continue;
      ChartBar worker{
          row.label(), {row.number("payload_tx_bytes_per_worker").value_or(0) / 1e6}, std::nullopt};
      if (const auto theory = row.number("predicted_payload_bytes_per_worker")) worker.mark = *theory / 1e6;
      chart.bars.push_back(std::move(worker));
      const double server = row.number("server_payload_bytes").value_or(0) / 1e6;
      if (server > 0)
        chart.bars.push_back({absl::StrCat(row.label(), ": server"), {0, server}, std::nullopt});
    }
    if (chart.bars.empty()) return;
    chart.caption = absl::StrCat(
        "Sent by a worker, and through the server (counted, except where derived). Black tick: theory. ",
        run.Caption(false));
    chart.x_label = "MB";
    AddTable({&run},
             {"payload_tx_bytes_per_worker", "predicted_payload_bytes_per_worker", "server_payload_bytes",
              "wire_tx_bytes_per_worker", "repeats"},
             keep, chart);
    Keep(std::move(chart));
  }

  void AddLearning(const Run& run) {
    const std::vector<CsvRow> points = ParseCsv(Text(run.json, "curves_csv"));
    if (points.empty()) return AddLosses(run);
    std::set<double> seeds;
    for (const CsvRow& point : points) seeds.insert(Number(point, "seed").value_or(0));
    for (const auto& [x, x_label] :
         {std::pair{"samples", "samples over all workers"}, {"updates", "updates"}, {"wall_s", "seconds"}}) {
      for (const auto& [y, y_label] : {std::pair{"test_accuracy", "test accuracy"},
                                       {"test_loss", "test loss"},
                                       {"train_loss", "training loss"}}) {
        Chart chart{.id = IdOf(run, absl::StrCat("learning-", y, "-", x)),
                    .title = absl::StrCat("Learning: ", y_label, " against ", x_label)};
        for (const CsvRow& point : points) {
          const auto at = Number(point, x), value = Number(point, y);
          if (!at || !value) continue;
          const std::string name =
              absl::StrCat(Text(point, "strategy"), " × ", Text(point, "workers"),
                           Number(point, "servers").value_or(0) > 1
                               ? absl::StrCat(", ", Text(point, "servers"), " servers")
                               : "",
                           seeds.size() > 1 ? absl::StrCat(", seed ", Text(point, "seed")) : "");
          auto series = std::find_if(chart.series.begin(), chart.series.end(),
                                     [&](const ChartSeries& s) { return s.name == name; });
          if (series == chart.series.end())
            series =
                chart.series.insert(chart.series.end(), {.name = name, .colour_of = Text(point, "strategy")});
          series->points.push_back({.x = *at, .y = *value});
        }
        if (chart.series.empty()) continue;
        chart.caption = absl::StrCat(
            "One training a line. Asynchronous and synchronous strategies see the same samples, not the same "
            "number of "
            "updates. Run ",
            run.id, ", ", seeds.size(),
            seeds.size() == 1 ? " seed: another seed alone moves it." : " seeds.");
        chart.x_label = x_label;
        chart.y_label = y_label;
        chart.zero_y = false;
        chart.columns = {"run_id", "strategy", "workers", "servers", "seed", x, y};
        for (const CsvRow& point : points) {
          chart.rows.push_back({run.id, Text(point, "strategy"), Text(point, "workers"),
                                Text(point, "servers"), Text(point, "seed"), Text(point, x), Text(point, y)});
        }
        Keep(std::move(chart));
      }
    }
  }

  // Where nothing was evaluated: rank 0's losses.
  void AddLosses(const Run& run) {
    const Json& losses = At(At(run.json, "steps"), "loss");
    if (!losses.is_array()) return;
    Chart chart{.id = IdOf(run, "learning-train_loss-samples"),
                .title = "Learning: training loss against samples over all workers"};
    chart.columns = {"run_id", "strategy", "workers", "samples", "wall_s", "train_loss"};
    for (const Json& one : losses) {
      ChartSeries series{.name = absl::StrCat(Text(one, "strategy"), " × ", Cell(At(one, "workers"))),
                         .colour_of = Text(one, "strategy"),
                         .marks = false};
      for (const Json& point : At(one, "points")) {
        if (!point.is_array() || point.size() != 3 || !point[0].is_number() || !point[2].is_number())
          continue;
        series.points.push_back({.x = point[0].get<double>(), .y = point[2].get<double>()});
        chart.rows.push_back({run.id, Text(one, "strategy"), Cell(At(one, "workers")), Cell(point[0]),
                              Cell(point[1]), Cell(point[2])});
      }
      if (series.points.size() > 1) chart.series.push_back(std::move(series));
    }
    if (chart.series.empty()) return;
    chart.caption = absl::StrCat(
        "No evaluations in this run: training loss of rank 0 (measured), means of neighbouring steps. ",
        run.Caption(false));
    chart.x_label = "samples over all workers";
    chart.y_label = "training loss";
    Keep(std::move(chart));
  }

  void AddStaleness(const Run& run) {
    const Json& histograms = At(At(run.json, "steps"), "staleness");
    if (!histograms.is_array()) return;
    for (const Json& one : histograms) {
      const std::string strategy = Text(one, "strategy");
      const double workers = Number(one, "workers").value_or(0);
      const bool asynchronous = std::any_of(run.rows.begin(), run.rows.end(), [&](const Row& row) {
        return row.plain() == strategy && row.workers == workers && row.workers > 1 &&
               row.number("staleness_mean") && !absl::StartsWith(strategy, "ps-sync") &&
               !absl::StartsWith(strategy, "ps-backup");
      });
      const Json& counts = At(one, "counts");
      if (!asynchronous || !counts.is_object()) continue;
      std::map<int, double> found;
      double total = 0, sum = 0;
      for (const auto& [stale, count] : counts.items()) {
        int value = 0;
        if (!absl::SimpleAtoi(stale, &value) || value < 0 || value > 10000 || !count.is_number()) continue;
        found[value] = count.get<double>();
        total += count.get<double>();
        sum += value * count.get<double>();
      }
      if (total <= 0) continue;
      const std::string label = absl::StrFormat("%s × %.0f", strategy, workers);
      Chart chart{.id = IdOf(run, absl::StrFormat("staleness-%s-%.0f", strategy, workers)),
                  .title = absl::StrCat("Staleness of gradients, ", label)};
      for (int stale = 0; stale <= found.rbegin()->first; ++stale) {
        const auto count = found.find(stale);
        chart.bars.push_back(
            {absl::StrCat(stale), {count == found.end() ? 0 : count->second / total}, std::nullopt});
      }
      chart.upright = true;
      chart.line = {"N-1, what theory gives for the mean", workers - 1};
      chart.x_label = "staleness in updates";
      chart.y_label = "share";
      chart.caption = absl::StrFormat(
          "How many updates were applied between reading the weights and applying the gradient (measured, "
          "every bucket "
          "of every step, warm-up included). Mean here: %.4g. %s",
          sum / total, run.Caption(false));
      chart.columns = {"run_id", "strategy", "workers", "staleness", "count", "share"};
      for (const auto& [stale, count] : found) {
        chart.rows.push_back(
            {run.id, strategy, Shown(workers), absl::StrCat(stale), Shown(count), Shown(count / total)});
      }
      Keep(std::move(chart));
    }
  }

  void AddBench(const Run& run) {
    std::map<int, std::vector<const CsvRow*>> by_workers;
    const std::vector<CsvRow> rows = ParseCsv(Text(run.json, "bench_csv"));
    const auto busbw = [](const CsvRow& row) {
      const auto out = Number(row, "out_of_place_busbw_gb_s");
      return out && *out > 0 ? out : Number(row, "in_place_busbw_gb_s");
    };
    for (const CsvRow& row : rows) {
      const double workers = Number(row, "workers").value_or(0);
      if (workers >= 1 && workers < 1e6 && Number(row, "size").value_or(0) > 0 && busbw(row)) {
        by_workers[static_cast<int>(workers)].push_back(&row);
      }
    }
    for (const auto& [workers, here] : by_workers) {
      Chart chart{.id = IdOf(run, absl::StrCat("bench-", workers)),
                  .title = absl::StrCat("Bus bandwidth against message size, ", workers,
                                        workers == 1 ? " worker" : " workers")};
      for (const CsvRow* row : here) {
        std::string name;
        for (const char* part : {"backend", "algorithm", "transport", "buffers"}) {
          if (!Text(*row, part).empty()) absl::StrAppend(&name, name.empty() ? "" : " ", Text(*row, part));
        }
        if (Text(*row, "collective") != "all_reduce") absl::StrAppend(&name, " ", Text(*row, "collective"));
        auto series = std::find_if(chart.series.begin(), chart.series.end(),
                                   [&](const ChartSeries& s) { return s.name == name; });
        if (series == chart.series.end()) series = chart.series.insert(chart.series.end(), {.name = name});
        series->points.push_back({.x = *Number(*row, "size"), .y = *busbw(*row)});
        chart.rows.push_back({run.id, name, absl::StrCat(workers), Text(*row, "size"),
                              Text(*row, "out_of_place_busbw_gb_s"), Text(*row, "in_place_busbw_gb_s"),
                              Text(*row, "samples")});
      }
      chart.columns = {"run_id", "what", "workers", "size", "out_of_place_busbw_gb_s", "in_place_busbw_gb_s",
                       "samples"};
      for (ChartSeries& series : chart.series) std::ranges::stable_sort(series.points, {}, &ChartPoint::x);
      chart.log_x = chart.bytes_x = true;
      chart.x_label = "bytes";
      chart.y_label = "busbw, GB/s";
      chart.caption =
          absl::StrCat("Out of place where that was measured, median of ", Text(*here.front(), "samples"),
                       " samples (measured); busbw as nccl-tests defines it. Run ", run.id, ".");
      Keep(std::move(chart));
    }
  }

  // One step of each launch, as it happened: a row a rank and kind.
  void AddTimelines(const Run& run) {
    const Json& launches = At(At(run.json, "trace"), "launches");
    if (!launches.is_array()) return;
    std::set<std::string> ids;
    for (const Json& launch : launches) {
      const std::string name = Text(launch, "name");
      std::string id = absl::StrCat("timeline-", absl::StrReplaceAll(name, {{" x ", "-"}, {" ", "-"}}));
      while (!ids.insert(id).second) id += "-again";
      Chart chart{.id = IdOf(run, id), .title = absl::StrCat("One step of ", name, " as it happened")};
      chart.columns = {"run_id", "launch", "rank", "what", "bucket", "begin_ms", "ms"};
      for (const Json& span : At(launch, "spans")) {
        if (!span.is_array() || span.size() != 5 || !span[0].is_number() || !span[3].is_number() ||
            !span[4].is_number()) {
          continue;
        }
        const bool has_bucket = span[2].is_number() && span[2].get<double>() >= 0;
        const std::string bucket = has_bucket ? Shown(span[2].get<double>()) : "";
        chart.spans.push_back({.rank = span[0].get<double>(),
                               .what = Cell(span[1]),
                               .label = bucket,
                               .begin = span[3].get<double>(),
                               .length = span[4].get<double>()});
        chart.rows.push_back({run.id, name, Shown(span[0].get<double>()), Cell(span[1]), bucket,
                              Cell(span[3]), Cell(span[4])});
      }
      if (chart.spans.empty()) continue;
      chart.x_label = "ms";
      chart.caption = absl::StrFormat(
          "Numbers are buckets. Rank 0's step of median length, %.4g ms (measured), and all of the other "
          "ranks that "
          "overlaps it. Run %s.",
          Number(launch, "ms").value_or(0), run.id);
      Keep(std::move(chart));
    }
  }

  std::vector<Run> runs_;
  std::vector<Chart> charts_;
};

}  // namespace

std::string FileName(const std::string& id) {
  std::string name = id;
  for (char& c : name) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0 && c != '.' && c != '_') c = '-';
  }
  return name.starts_with('.') ? absl::StrCat("-", name) : name;
}

std::vector<Chart> ChartsOf(const std::vector<RunData>& runs) { return Charts(runs).All(); }

}  // namespace psring
