// The charts of the summaries' rows: communication, throughput and efficiency against the number of workers,
// where a step's time goes, its bytes.
#include <algorithm>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "experiments/report/chart_parts.h"

namespace psring {
namespace {

// What is under way, less what waits for others where that is known.
std::optional<double> Moving(const std::optional<double>& busy, const std::optional<double>& wait) {
  if (!busy) return std::nullopt;
  return *busy - wait.value_or(0);
}

bool Communicates(const ChartRow& row) { return row.number("comm_busy_ms") && row.workers > 1; }

// A table beside the chart: whose figures, then the named ones as they stand in the folder, then the
// intervals of `spread`.
void AddTable(const std::vector<const ChartRun*>& runs, const std::vector<std::string>& figures,
              const std::vector<std::string>& spread, const std::function<bool(const ChartRow&)>& keep,
              Chart& chart) {
  chart.columns = {"run_id", "strategy", "workers", "servers", "lr", "basis"};
  chart.columns.insert(chart.columns.end(), figures.begin(), figures.end());
  const size_t plain = chart.columns.size();
  for (const std::string& figure : spread) {
    for (const char* end : {"_lo95", "_hi95"}) chart.columns.push_back(figure + end);
  }
  for (const ChartRun* run : runs) {
    for (const ChartRow& row : run->rows) {
      if (!keep(row)) continue;
      auto& cells = chart.rows.emplace_back();
      cells.push_back(run->id);
      for (size_t i = 1; i < plain; ++i) cells.push_back(CellText(MemberOf(*row.figures, chart.columns[i])));
      for (const std::string& figure : spread) {
        const auto interval = row.interval(figure);
        cells.push_back(interval ? absl::StrFormat("%.10g", interval->first) : "");
        cells.push_back(interval ? absl::StrFormat("%.10g", interval->second) : "");
      }
    }
  }
}

// A figure against the number of workers, a line a strategy; of several runs a point each, the line their
// mean.
struct PooledFigure {
  std::function<bool(const ChartRow&)> keep;
  std::function<std::optional<double>(const ChartRow&)> value;
  std::function<std::vector<double>(const ChartRun&, const ChartRow&)> repeats;
  std::string interval;  // the figure whose interval it has; empty: none
};

std::vector<ChartSeries> Pooled(const std::vector<ChartRun>& runs, const PooledFigure& figure) {
  std::vector<ChartSeries> list;
  struct Sum {
    int count = 0;
    double sum = 0;
  };
  std::vector<std::map<double, Sum>> sums;
  for (const ChartRun& run : runs) {
    for (const ChartRow& row : run.rows) {
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
          if (const auto interval = row.interval(figure.interval)) {
            point->low = interval->first;
            point->high = interval->second;
          }
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

std::string PooledCaption(const std::vector<ChartRun>& runs, bool intervals) {
  if (runs.size() == 1) return runs.front().Caption(intervals);
  std::string ids;
  for (const ChartRun& run : runs) absl::StrAppend(&ids, ids.empty() ? "" : ", ", run.id);
  return absl::StrCat(runs.size(),
                      " runs in one chart; a small point is a run, the line their mean. Runs: ", ids, ".");
}

std::vector<const ChartRun*> AllRuns(const std::vector<ChartRun>& runs) {
  std::vector<const ChartRun*> list;
  for (const ChartRun& run : runs) list.push_back(&run);
  return list;
}

// Whole numbers of workers, logarithmic where there are many.
void AcrossWorkers(Chart& chart) {
  chart.x_label = "workers";
  chart.whole_x = true;
  for (const ChartSeries& series : chart.series) {
    for (const ChartPoint& point : series.points) chart.log_x = chart.log_x || point.x > 40;
  }
}

void AddCommunication(const std::vector<ChartRun>& runs, std::vector<Chart>& charts) {
  const auto moving = [](const ChartRow& row) {
    return Moving(row.number("comm_busy_ms"), row.number("wait_ms"));
  };
  Chart chart{.id = "communication", .title = "Communication time of a step against the number of workers"};
  chart.series = Pooled(
      runs, {.keep = Communicates,
             .value = moving,
             .repeats =
                 [](const ChartRun& run, const ChartRow& row) {
                   std::vector<double> found;
                   for (const CsvRow& repeat : run.repeats) {
                     if (TextOf(repeat, "strategy") != row.plain() || TextOf(repeat, "part") == "accuracy" ||
                         NumberOf(repeat, "workers") != row.workers ||
                         NumberOf(repeat, "servers").value_or(0) != row.number("servers").value_or(0)) {
                       continue;
                     }
                     const auto value = Moving(NumberOf(repeat, "comm_busy_ms"), NumberOf(repeat, "wait_ms"));
                     if (value) found.push_back(*value);
                   }
                   return found;
                 },
             .interval = "comm_moving_ms"});
  if (chart.series.empty()) return;
  if (runs.size() == 1) {
    const size_t measured = chart.series.size();
    for (size_t i = 0; i < measured; ++i) {
      ChartSeries theory{.name = chart.series[i].name, .dashed = true, .marks = false};
      for (const ChartRow& row : runs.front().rows) {
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
      PooledCaption(runs, true));
  chart.y_label = "ms";
  AcrossWorkers(chart);
  AddTable(AllRuns(runs), {"comm_busy_ms", "wait_ms", "predicted_comm_ms", "repeats"}, {"comm_moving_ms"},
           Communicates, chart);
  charts.push_back(std::move(chart));
}

void AddThroughput(const std::vector<ChartRun>& runs, std::vector<Chart>& charts) {
  Chart chart{.id = "throughput", .title = "Throughput"};
  chart.series = Pooled(
      runs, {.keep = [](const ChartRow&) { return true; },
             .value = [](const ChartRow& row) { return row.number("samples_per_s"); },
             .repeats =
                 [](const ChartRun&, const ChartRow& row) {
                   std::vector<double> found;
                   for (const ChartJson& value : MemberOf(MemberOf(*row.all, "rounds"), "samples_per_s")) {
                     if (value.is_number()) found.push_back(value.get<double>());
                   }
                   return found;
                 },
             .interval = "samples_per_s"});
  if (chart.series.empty()) return;
  chart.caption = absl::StrCat(
      "Samples of all workers a second (measured, or simulated where it says so), 95% intervals over "
      "repeats "
      "(derived). Hollow: more workers than cores. ",
      PooledCaption(runs, true));
  chart.y_label = "samples/s";
  AcrossWorkers(chart);
  AddTable(
      AllRuns(runs), {"samples_per_s", "repeats"}, {"samples_per_s"},
      [](const ChartRow& row) { return row.number("samples_per_s").has_value(); }, chart);
  charts.push_back(std::move(chart));
}

void AddEfficiency(const std::vector<ChartRun>& runs, std::vector<Chart>& charts) {
  const auto keep = [](const ChartRow& row) {
    return row.number("efficiency") && row.plain() != "single" && !row.crowded;
  };
  Chart chart{.id = "efficiency", .title = "Efficiency"};
  chart.series =
      Pooled(runs, {.keep = keep,
                    .value = [](const ChartRow& row) { return row.number("efficiency"); },
                    .repeats = [](const ChartRun&, const ChartRow&) { return std::vector<double>(); },
                    .interval = "efficiency"});
  if (chart.series.empty()) return;
  chart.caption = absl::StrCat(
      "Speed-up against single over the number of workers (derived); left out where workers outnumber "
      "cores. ",
      PooledCaption(runs, true));
  chart.y_label = "speed-up / workers";
  AcrossWorkers(chart);
  AddTable(AllRuns(runs), {"speedup", "efficiency", "repeats"}, {"efficiency"}, keep, chart);
  charts.push_back(std::move(chart));
}

void AddSplit(const ChartRun& run, std::vector<Chart>& charts) {
  const auto keep = [](const ChartRow& row) { return row.number("step_ms") && row.number("compute_ms"); };
  Chart chart{.id = run.IdOf("split"), .title = "Where the time of a step goes"};
  chart.parts = {"compute", "exposed communication", "rest (optimizer, data, waiting for the processor)"};
  for (const ChartRow& row : run.rows) {
    if (!keep(row)) continue;
    const double compute = *row.number("compute_ms"), exposed = row.number("exposed_comm_ms").value_or(0);
    chart.bars.push_back({row.label(),
                          {compute, exposed, std::max(0.0, *row.number("step_ms") - compute - exposed)},
                          std::nullopt,
                          row.interval("step_ms")});
  }
  if (chart.bars.empty()) return;
  chart.caption = absl::StrCat(
      "Means over ranks and steps (measured, or simulated where it says so). Exposed: computing stands "
      "still for "
      "communication. Whisker: the whole step's interval. ",
      run.Caption(true));
  chart.x_label = "ms";
  AddTable({&run}, {"step_ms", "compute_ms", "exposed_comm_ms", "repeats"},
           {"step_ms", "compute_ms", "exposed_comm_ms"}, keep, chart);
  charts.push_back(std::move(chart));
}

void AddBytes(const ChartRun& run, std::vector<Chart>& charts) {
  const auto keep = [](const ChartRow& row) {
    return row.number("payload_tx_bytes_per_worker").value_or(0) > 0 ||
           row.number("server_payload_bytes").value_or(0) > 0;
  };
  Chart chart{.id = run.IdOf("bytes"), .title = "Payload bytes of a step"};
  chart.parts = {"a worker sends", "the server takes in and gives out"};
  for (const ChartRow& row : run.rows) {
    if (!keep(row)) continue;
    const auto megabytes = [&](const char* figure) {
      auto interval = row.interval(figure);
      if (interval) interval = std::pair(interval->first / 1e6, interval->second / 1e6);
      return interval;
    };
    ChartBar worker{row.label(),
                    {row.number("payload_tx_bytes_per_worker").value_or(0) / 1e6},
                    std::nullopt,
                    megabytes("payload_tx_bytes_per_worker")};
    if (const auto theory = row.number("predicted_payload_bytes_per_worker")) worker.mark = *theory / 1e6;
    chart.bars.push_back(std::move(worker));
    const double server = row.number("server_payload_bytes").value_or(0) / 1e6;
    if (server > 0) {
      chart.bars.push_back({absl::StrCat(row.label(), ": server"),
                            {0, server},
                            std::nullopt,
                            megabytes("server_payload_bytes")});
    }
  }
  if (chart.bars.empty()) return;
  chart.caption = absl::StrCat(
      "Sent by a worker, and through the server (counted, except where derived). Black tick: theory. "
      "Whisker: the "
      "interval, which has no width where every repeat sends the same. ",
      run.Caption(true));
  chart.x_label = "MB";
  AddTable({&run},
           {"payload_tx_bytes_per_worker", "predicted_payload_bytes_per_worker", "server_payload_bytes",
            "wire_tx_bytes_per_worker", "repeats"},
           {"payload_tx_bytes_per_worker", "server_payload_bytes"}, keep, chart);
  charts.push_back(std::move(chart));
}

}  // namespace

void AddPooledCharts(const std::vector<ChartRun>& runs, std::vector<Chart>& charts) {
  AddCommunication(runs, charts);
  AddThroughput(runs, charts);
  AddEfficiency(runs, charts);
}

void AddBarCharts(const ChartRun& run, std::vector<Chart>& charts) {
  AddSplit(run, charts);
  AddBytes(run, charts);
}

}  // namespace psring
