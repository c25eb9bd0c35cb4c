// The charts of a run's long files: learning curves, staleness, a benchmark's sizes, timelines.
#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "experiments/report/chart_parts.h"

namespace psring {
namespace {

std::string Shown(double value) { return absl::StrFormat("%.10g", value); }

// Where nothing was evaluated: rank 0's losses.
void AddLosses(const ChartRun& run, std::vector<Chart>& charts) {
  const ChartJson& losses = MemberOf(MemberOf(run.json(), "steps"), "loss");
  if (!losses.is_array()) return;
  Chart chart{.id = run.IdOf("learning-train_loss-samples"),
              .title = "Learning: training loss against samples over all workers"};
  chart.columns = {"run_id", "strategy", "workers", "samples", "wall_s", "train_loss"};
  for (const ChartJson& one : losses) {
    ChartSeries series{
        .name = absl::StrCat(TextOf(one, "strategy"), " × ", CellText(MemberOf(one, "workers"))),
        .colour_of = TextOf(one, "strategy"),
        .marks = false};
    for (const ChartJson& point : MemberOf(one, "points")) {
      if (!point.is_array() || point.size() != 3 || !point[0].is_number() || !point[2].is_number()) continue;
      series.points.push_back({.x = point[0].get<double>(), .y = point[2].get<double>()});
      chart.rows.push_back({run.id, TextOf(one, "strategy"), CellText(MemberOf(one, "workers")),
                            CellText(point[0]), CellText(point[1]), CellText(point[2])});
    }
    if (series.points.size() > 1) chart.series.push_back(std::move(series));
  }
  if (chart.series.empty()) return;
  chart.caption = absl::StrCat(
      "No evaluations in this run: training loss of rank 0 (measured), means of neighbouring steps. ",
      run.Caption(false));
  chart.x_label = "samples over all workers";
  chart.y_label = "training loss";
  charts.push_back(std::move(chart));
}

void AddLearning(const ChartRun& run, std::vector<Chart>& charts) {
  const std::vector<CsvRow> points = ParseCsv(TextOf(run.json(), "curves_csv"));
  if (points.empty()) return AddLosses(run, charts);
  std::set<double> seeds;
  for (const CsvRow& point : points) seeds.insert(NumberOf(point, "seed").value_or(0));
  for (const auto& [x, x_label] :
       {std::pair{"samples", "samples over all workers"}, {"updates", "updates"}, {"wall_s", "seconds"}}) {
    for (const auto& [y, y_label] : {std::pair{"test_accuracy", "test accuracy"},
                                     {"test_loss", "test loss"},
                                     {"train_loss", "training loss"}}) {
      Chart chart{.id = run.IdOf(absl::StrCat("learning-", y, "-", x)),
                  .title = absl::StrCat("Learning: ", y_label, " against ", x_label)};
      for (const CsvRow& point : points) {
        const auto at = NumberOf(point, x), value = NumberOf(point, y);
        if (!at || !value) continue;
        const std::string name =
            absl::StrCat(TextOf(point, "strategy"), " × ", TextOf(point, "workers"),
                         NumberOf(point, "servers").value_or(0) > 1
                             ? absl::StrCat(", ", TextOf(point, "servers"), " servers")
                             : "",
                         seeds.size() > 1 ? absl::StrCat(", seed ", TextOf(point, "seed")) : "");
        auto series = std::find_if(chart.series.begin(), chart.series.end(),
                                   [&](const ChartSeries& s) { return s.name == name; });
        if (series == chart.series.end())
          series =
              chart.series.insert(chart.series.end(), {.name = name, .colour_of = TextOf(point, "strategy")});
        series->points.push_back({.x = *at, .y = *value});
      }
      if (chart.series.empty()) continue;
      chart.caption = absl::StrCat(
          "One training a line. Asynchronous and synchronous strategies see the same samples, not the same "
          "number of "
          "updates. Run ",
          run.id, ", ", seeds.size(), seeds.size() == 1 ? " seed: another seed alone moves it." : " seeds.");
      chart.x_label = x_label;
      chart.y_label = y_label;
      chart.zero_y = false;
      chart.columns = {"run_id", "strategy", "workers", "servers", "seed", x, y};
      for (const CsvRow& point : points) {
        chart.rows.push_back({run.id, TextOf(point, "strategy"), TextOf(point, "workers"),
                              TextOf(point, "servers"), TextOf(point, "seed"), TextOf(point, x),
                              TextOf(point, y)});
      }
      charts.push_back(std::move(chart));
    }
  }
}

void AddStaleness(const ChartRun& run, std::vector<Chart>& charts) {
  const ChartJson& histograms = MemberOf(MemberOf(run.json(), "steps"), "staleness");
  if (!histograms.is_array()) return;
  for (const ChartJson& one : histograms) {
    const std::string strategy = TextOf(one, "strategy");
    const double workers = NumberOf(one, "workers").value_or(0);
    const bool asynchronous = std::any_of(run.rows.begin(), run.rows.end(), [&](const ChartRow& row) {
      return row.plain() == strategy && row.workers == workers && row.workers > 1 &&
             row.number("staleness_mean") && !absl::StartsWith(strategy, "ps-sync") &&
             !absl::StartsWith(strategy, "ps-backup");
    });
    const ChartJson& counts = MemberOf(one, "counts");
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
    Chart chart{.id = run.IdOf(absl::StrFormat("staleness-%s-%.0f", strategy, workers)),
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
    charts.push_back(std::move(chart));
  }
}

void AddBench(const ChartRun& run, std::vector<Chart>& charts) {
  std::map<int, std::vector<const CsvRow*>> by_workers;
  const std::vector<CsvRow> rows = ParseCsv(TextOf(run.json(), "bench_csv"));
  const auto busbw = [](const CsvRow& row) {
    const auto out = NumberOf(row, "out_of_place_busbw_gb_s");
    return out && *out > 0 ? out : NumberOf(row, "in_place_busbw_gb_s");
  };
  for (const CsvRow& row : rows) {
    const double workers = NumberOf(row, "workers").value_or(0);
    if (workers >= 1 && workers < 1e6 && NumberOf(row, "size").value_or(0) > 0 && busbw(row)) {
      by_workers[static_cast<int>(workers)].push_back(&row);
    }
  }
  for (const auto& [workers, here] : by_workers) {
    Chart chart{.id = run.IdOf(absl::StrCat("bench-", workers)),
                .title = absl::StrCat("Bus bandwidth against message size, ", workers,
                                      workers == 1 ? " worker" : " workers")};
    for (const CsvRow* row : here) {
      std::string name;
      for (const char* part : {"backend", "algorithm", "transport", "buffers"}) {
        if (!TextOf(*row, part).empty()) absl::StrAppend(&name, name.empty() ? "" : " ", TextOf(*row, part));
      }
      if (TextOf(*row, "collective") != "all_reduce") absl::StrAppend(&name, " ", TextOf(*row, "collective"));
      auto series = std::find_if(chart.series.begin(), chart.series.end(),
                                 [&](const ChartSeries& s) { return s.name == name; });
      if (series == chart.series.end()) series = chart.series.insert(chart.series.end(), {.name = name});
      series->points.push_back({.x = *NumberOf(*row, "size"), .y = *busbw(*row)});
      chart.rows.push_back({run.id, name, absl::StrCat(workers), TextOf(*row, "size"),
                            TextOf(*row, "out_of_place_busbw_gb_s"), TextOf(*row, "in_place_busbw_gb_s"),
                            TextOf(*row, "samples")});
    }
    chart.columns = {"run_id", "what", "workers", "size", "out_of_place_busbw_gb_s", "in_place_busbw_gb_s",
                     "samples"};
    for (ChartSeries& series : chart.series) std::ranges::stable_sort(series.points, {}, &ChartPoint::x);
    chart.log_x = chart.bytes_x = true;
    chart.x_label = "bytes";
    chart.y_label = "busbw, GB/s";
    chart.caption =
        absl::StrCat("Out of place where that was measured, median of ", TextOf(*here.front(), "samples"),
                     " samples (measured); busbw as nccl-tests defines it. Run ", run.id, ".");
    charts.push_back(std::move(chart));
  }
}

// One step of each launch, as it happened: a row a rank and kind.
void AddTimelines(const ChartRun& run, std::vector<Chart>& charts) {
  const ChartJson& launches = MemberOf(MemberOf(run.json(), "trace"), "launches");
  if (!launches.is_array()) return;
  std::set<std::string> ids;
  for (const ChartJson& launch : launches) {
    const std::string name = TextOf(launch, "name");
    std::string id = absl::StrCat("timeline-", absl::StrReplaceAll(name, {{" x ", "-"}, {" ", "-"}}));
    while (!ids.insert(id).second) id += "-again";
    Chart chart{.id = run.IdOf(id), .title = absl::StrCat("One step of ", name, " as it happened")};
    chart.columns = {"run_id", "launch", "rank", "what", "bucket", "begin_ms", "ms"};
    for (const ChartJson& span : MemberOf(launch, "spans")) {
      if (!span.is_array() || span.size() != 5 || !span[0].is_number() || !span[3].is_number() ||
          !span[4].is_number()) {
        continue;
      }
      const bool has_bucket = span[2].is_number() && span[2].get<double>() >= 0;
      const std::string bucket = has_bucket ? Shown(span[2].get<double>()) : "";
      chart.spans.push_back({.rank = span[0].get<double>(),
                             .what = CellText(span[1]),
                             .label = bucket,
                             .begin = span[3].get<double>(),
                             .length = span[4].get<double>()});
      chart.rows.push_back({run.id, name, Shown(span[0].get<double>()), CellText(span[1]), bucket,
                            CellText(span[3]), CellText(span[4])});
    }
    if (chart.spans.empty()) continue;
    chart.x_label = "ms";
    chart.caption = absl::StrFormat(
        "Numbers are buckets. Rank 0's step of median length, %.4g ms (measured), and all of the other "
        "ranks that "
        "overlaps it. Run %s.",
        NumberOf(launch, "ms").value_or(0), run.id);
    charts.push_back(std::move(chart));
  }
}

}  // namespace

void AddFileCharts(const ChartRun& run, std::vector<Chart>& charts) {
  AddLearning(run, charts);
  AddStaleness(run, charts);
  AddBench(run, charts);
  AddTimelines(run, charts);
}

}  // namespace psring
