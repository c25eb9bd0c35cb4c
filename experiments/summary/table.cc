#include "experiments/summary/table.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "experiments/texts/table.h"
#include "experiments/texts/wrap.h"

namespace psring {
namespace {

struct Column {
  Heading heading;
  const char* mark;  // "m", "d", "s" or ""
  std::function<std::string(const SummaryRow&)> text;
  bool learned = false;  // measured even if times are simulated
};

std::string Ms(const std::optional<double>& ms) {
  if (!ms) return "";
  return std::abs(*ms) < 100 ? absl::StrFormat("%.1f", *ms) : absl::StrFormat("%.0f", *ms);
}

std::string Megabytes(const std::optional<double>& bytes) {
  return bytes ? absl::StrFormat("%.2f", *bytes / 1e6) : "";
}

bool MovesGradients(const SummaryRow& row) { return row.configuration.strategy.moves_gradients(); }

std::optional<double> IfCommunicates(const SummaryRow& row, double value) {
  return MovesGradients(row) ? std::optional<double>(value) : std::nullopt;
}

std::vector<Column> Columns(const std::vector<SummaryRow>& rows) {
  const bool several_servers = std::any_of(
      rows.begin(), rows.end(), [](const SummaryRow& row) { return row.configuration.servers() > 1; });
  return {
      {kHeadStrategy, "", [](const SummaryRow& row) { return row.configuration.strategy.name; }},
      {kHeadWorkers, "",
       [](const SummaryRow& row) {
         return absl::StrCat(row.configuration.workers, row.configuration.oversubscribed ? "*" : "",
                             row.valid ? "" : "!");
       }},
      {kHeadServers, "",
       [several_servers](const SummaryRow& row) {
         const int servers = row.configuration.servers();
         return several_servers && servers > 0 ? absl::StrCat(servers) : "";
       }},
      {kHeadSamples, "m", [](const SummaryRow& row) { return WithThousands(row.mean.samples_per_s); }},
      {kHeadInterval, "d",
       [](const SummaryRow& row) {
         return row.samples_per_s_95 ? absl::StrCat(WithThousands(row.samples_per_s_95->low), "-",
                                                    WithThousands(row.samples_per_s_95->high))
                                     : "";
       }},
      {kHeadSpeedup, "d",
       [](const SummaryRow& row) { return row.speedup ? absl::StrFormat("%.2f", *row.speedup) : ""; }},
      {kHeadStep, "m", [](const SummaryRow& row) { return Ms(row.mean.step_ms); }},
      {kHeadSimulated, "s",
       [](const SummaryRow& row) {
         return Ms(row.prediction ? std::optional<double>(1e3 * row.prediction->prediction.step)
                                  : std::nullopt);
       }},
      {kHeadOff, "d",
       [](const SummaryRow& row) {
         if (!row.prediction) return std::string();
         const Residual& residual = row.prediction->residual;
         return absl::StrFormat("%+.1f", 100 * residual.total() / residual.predicted);
       }},
      {kHeadAgainst, "d",
       [](const SummaryRow& row) {
         return row.cost_against_none_ms ? absl::StrFormat("%+.1f", *row.cost_against_none_ms) : "";
       }},
      {kHeadCompute, "m", [](const SummaryRow& row) { return Ms(row.mean.compute_ms); }},
      {kHeadExposed, "m",
       [](const SummaryRow& row) { return Ms(IfCommunicates(row, row.mean.exposed_comm_ms)); }},
      {kHeadBusy, "m", [](const SummaryRow& row) { return Ms(IfCommunicates(row, row.mean.comm_busy_ms)); }},
      {kHeadWait, "d", [](const SummaryRow& row) { return Ms(row.mean.wait_ms); }},
      {kHeadTheory, "d", [](const SummaryRow& row) { return Ms(row.predicted_comm_ms); }},
      {kHeadSent, "m",
       [](const SummaryRow& row) { return Megabytes(IfCommunicates(row, row.mean.payload_tx_bytes)); }},
      {kHeadSentTheory, "d", [](const SummaryRow& row) { return Megabytes(row.predicted_payload_bytes); }},
      {kHeadStale, "m",
       [](const SummaryRow& row) {
         return row.mean.staleness_mean && !row.configuration.strategy.synchronous
                    ? absl::StrFormat("%.2f", *row.mean.staleness_mean)
                    : "";
       }},
      {kHeadDropped, "m",
       [](const SummaryRow& row) {
         return row.mean.dropped_share ? absl::StrFormat("%.1f", 100 * *row.mean.dropped_share) : "";
       }},
      {kHeadAccuracy, "m",
       [](const SummaryRow& row) {
         return row.test_accuracy ? absl::StrFormat("%.4f", *row.test_accuracy) : "";
       },
       /*learned=*/true},
      {kHeadTarget, "m",
       [](const SummaryRow& row) {
         return row.time_to_target_s ? absl::StrFormat("%.2f", *row.time_to_target_s) : "";
       }},
  };
}

std::string Padded(const std::string& text, size_t width, bool left) {
  const std::string space(width - std::min(width, TextColumns(text)), ' ');
  return left ? text + space : space + text;
}

std::string WithoutTrailingSpace(std::string line) {
  line.erase(line.find_last_not_of(' ') + 1);
  return line + "\n";
}

}  // namespace

std::string WithThousands(double value) {
  const std::string digits = absl::StrFormat("%.0f", std::abs(value));
  std::string text;
  if (value < 0) text.push_back('-');
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0) text.push_back(',');
    text.push_back(digits[i]);
  }
  return text;
}

TableParts PartsOfTable(const std::vector<SummaryRow>& rows, Language language) {
  TableParts parts;
  const bool simulated = !rows.empty() && rows.front().configuration.simulated();
  for (const Column& column : Columns(rows)) {
    std::vector<std::string> cells;
    bool any = false;
    for (const SummaryRow& row : rows) {
      cells.push_back(column.text(row));
      any = any || !cells.back().empty();
    }
    if (!any) continue;
    const bool timed = simulated && *column.mark == 'm' && !column.learned;
    parts.columns.push_back({In(language, column.heading.first), In(language, column.heading.second),
                             timed ? "s" : column.mark, std::move(cells)});
  }
  const auto any_row = [&](const std::function<bool(const SummaryRow&)>& is) {
    return std::any_of(rows.begin(), rows.end(), is);
  };
  const bool predicted = any_row([](const SummaryRow& row) { return row.prediction.has_value(); });
  const auto say = [&](const Phrase& phrase, auto... values) {
    parts.legend.push_back(Say(language, phrase, values...));
  };
  say(simulated || predicted ? kMarksSimulated : kMarks);
  if (predicted) say(kPredictedColumns);
  if (any_row(MovesGradients)) say(simulated ? kColumnsSimulated : kColumns);
  if (any_row([](const SummaryRow& row) { return row.reached_target > 0; })) {
    say(kTargetColumn, rows.front().configuration.target_accuracy);
  }
  if (any_row([](const SummaryRow& row) { return row.configuration.oversubscribed; })) say(kOversubscribed);
  if (any_row([](const SummaryRow& row) { return !row.valid; })) say(kNotValid);
  return parts;
}

std::string Table(const std::vector<SummaryRow>& rows, Language language) {
  const TableParts parts = PartsOfTable(rows, language);
  std::string first, second, marks;
  std::vector<std::string> lines(rows.size());
  for (size_t c = 0; c < parts.columns.size(); ++c) {
    const TableColumn& column = parts.columns[c];
    const bool left = c == 0;
    size_t width = std::max(TextColumns(column.first), TextColumns(column.second));
    for (const std::string& text : column.cells) width = std::max(width, TextColumns(text));
    const std::string gap = left ? "" : " ";
    first += gap + Padded(column.first, width, left);
    second += gap + Padded(column.second, width, left);
    marks += gap + Padded(column.mark, width, left);
    for (size_t r = 0; r < rows.size(); ++r) lines[r] += gap + Padded(column.cells[r], width, left);
  }
  std::string table =
      WithoutTrailingSpace(first) + WithoutTrailingSpace(second) + WithoutTrailingSpace(marks);
  for (size_t r = 0; r < rows.size(); ++r) {
    if (r > 0 && rows[r].configuration.workers != rows[r - 1].configuration.workers) table += "\n";
    table += WithoutTrailingSpace(lines[r]);
  }
  table += "\n";
  for (const std::string& sentence : parts.legend) table += Wrap(sentence, "");
  return table;
}

}  // namespace psring
