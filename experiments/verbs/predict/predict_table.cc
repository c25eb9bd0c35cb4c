#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "common/cli/wrap.h"
#include "common/text/translate.h"
#include "experiments/analysis/table.h"
#include "experiments/verbs/predict/report.h"

namespace psring {
namespace {

// The limit of a step.
std::string LimitText(const Prediction& prediction) {
  std::string text = Tr(prediction.limit);
  if (prediction.limit != "computing") {
    absl::StrAppendFormat(&text, " %.0f%%", 100 * std::min(1.0, prediction.limit_part));
  }
  return prediction.method == "theory" ? absl::StrCat(text, Tr(", theory")) : text;
}

}  // namespace

std::string ShortCount(double value) {
  if (value >= 1e6) return absl::StrFormat("%.2fM", 1e-6 * value);
  if (value >= 1e5) return absl::StrFormat("%.0fK", 1e-3 * value);
  if (value < 1) return absl::StrFormat("%.2g", value);
  return value >= 100 ? WithThousands(value) : absl::StrFormat("%.1f", value);
}

std::string Milliseconds(double seconds) {
  if (seconds >= 100) return absl::StrFormat("%.0f s", seconds);
  return absl::StrFormat("%.*f", seconds < 10 ? 1 : 0, 1e3 * seconds);
}

std::string HeadedTable(const std::vector<HeadedColumn>& columns,
                        const std::vector<std::vector<std::string>>& lines) {
  std::string text;
  const auto add = [&](const std::vector<std::string>& cells) {
    for (size_t i = 0; i < cells.size(); ++i) {
      text += i == 0                    ? PadRight(cells[i], columns[i].columns)
              : columns[i].columns == 0 ? absl::StrCat("  ", cells[i])
                                        : PadLeft(cells[i], columns[i].columns);
    }
    text += "\n";
  };
  std::vector<std::string> above, below;
  for (const HeadedColumn& column : columns) {
    const std::pair<std::string, std::string> heading = absl::StrSplit(Tr(column.heading), '|');
    above.push_back(heading.first);
    below.push_back(heading.second);
  }
  add(above);
  add(below);
  for (const std::vector<std::string>& line : lines) add(line);
  return text;
}

std::string PredictTable(const PredictReport& report) {
  const std::vector<HeadedColumn> columns = {
      {TrNoop("strategy|"), 19},
      {TrNoop("ser-|vers"), 4},
      {TrNoop("workers|"), 8},
      {TrNoop("samples|/s"), 10},
      {DescribedOnly(report) ? TrNoop("range|") : TrNoop("range of|9 in 10"), 15},
      {TrNoop("effi-|ciency"), 7},
      {TrNoop("step|ms"), 8},
      {TrNoop("com-|pute"), 7},
      {TrNoop("ex-|posed"), 8},
      {TrNoop("comm.|busy"), 8},
      {TrNoop("stale|mean"), 7},
      {TrNoop("limited by|"), 0}};
  std::vector<std::vector<std::string>> lines;
  int last = 0;
  for (const PredictedRow& row : report.rows) {
    if (last != 0 && row.point.workers != last) lines.emplace_back();
    last = row.point.workers;
    const Prediction& p = row.expected();
    const Interval range = row.samples_per_s();
    const bool communicates = row.point.strategy.communicates();
    const std::string limit = communicates && row.point.workers > 1 ? LimitText(p) : "";
    // Without computing there are no samples, and the range is that of the step.
    const bool computes = report.predictor->workload().compute_ms() > 0;
    const auto step_at = [&](double speed) { return Milliseconds(p.step * p.samples_per_s / speed); };
    lines.push_back({row.point.strategy.name, row.point.servers > 0 ? absl::StrCat(row.point.servers) : "",
                     absl::StrCat(row.point.workers), computes ? ShortCount(p.samples_per_s) : "",
                     computes ? absl::StrCat(ShortCount(range.low), "-", ShortCount(range.high))
                              : absl::StrCat(step_at(range.high), "-", step_at(range.low)),
                     computes ? absl::StrFormat("%.3f", row.efficiency()) : "", Milliseconds(p.step),
                     Milliseconds(p.compute), communicates ? Milliseconds(p.exposed) : "",
                     communicates ? Milliseconds(p.busy) : "",
                     p.staleness_mean >= 0 ? absl::StrFormat("%.1f", p.staleness_mean) : "", limit});
    const std::optional<double> most = row.uneven_share();
    if (!most) continue;
    const auto part = [&](const char* name, double share, int workers) {
      const double samples_per_s = share * p.samples_per_s;
      const double step_s = workers * report.predictor->workload().batch / samples_per_s;
      lines.push_back({Tr(name, absl::StrFormat("%.0f", 100 * share)), "", absl::StrCat(workers),
                       ShortCount(samples_per_s), "", "", Milliseconds(step_s), "", "", "", "", ""});
    };
    part(TrNoop("- one worker: $0%"), *most, 1);
    part(TrNoop("- others: $0%"), 1 - *most, row.point.workers - 1);
  }
  return HeadedTable(columns, lines);
}

}  // namespace psring
