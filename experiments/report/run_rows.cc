#include "experiments/report/run_rows.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace psring {

const ChartJson& MemberOf(const ChartJson& json, const std::string& key) {
  static const ChartJson none;
  if (!json.is_object()) return none;
  const auto found = json.find(key);
  return found != json.end() ? *found : none;
}

std::optional<double> NumberOf(const ChartJson& json, const std::string& key) {
  const ChartJson& value = MemberOf(json, key);
  if (!value.is_number() || !std::isfinite(value.get<double>())) return std::nullopt;
  return value.get<double>();
}

std::string TextOf(const ChartJson& json, const std::string& key) {
  const ChartJson& value = MemberOf(json, key);
  return value.is_string() ? value.get<std::string>() : "";
}

std::string CellText(const ChartJson& value) {
  if (value.is_null()) return "";
  return value.is_string() ? value.get<std::string>()
                           : value.dump(-1, ' ', false, ChartJson::error_handler_t::replace);
}

// Quotes are taken as run_files writes them: around a field.
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

std::optional<double> NumberOf(const CsvRow& row, const std::string& key) {
  const auto found = row.find(key);
  double value = 0;
  if (found == row.end() || !absl::SimpleAtod(found->second, &value) || !std::isfinite(value))
    return std::nullopt;
  return value;
}

std::string TextOf(const CsvRow& row, const std::string& key) {
  const auto found = row.find(key);
  return found == row.end() ? "" : found->second;
}

ChartRun ParseRun(const RunData& data) {
  ChartRun run{.parsed = std::make_shared<const ChartJson>(ChartJson::parse(data.json, nullptr, false))};
  run.id = TextOf(run.json(), "run_id");
  run.repeats = ParseCsv(TextOf(run.json(), "runs_csv"));
  const ChartJson& summary = MemberOf(run.json(), "summary");
  if (!summary.is_array()) return run;
  for (const ChartJson& entry : summary) {
    const ChartJson& figures = MemberOf(entry, "figures");
    const double workers = NumberOf(figures, "workers").value_or(0);
    if (!(workers >= 1) || !(workers < 1e6)) continue;
    run.rows.push_back({.figures = &figures,
                        .all = &entry,
                        .name = TextOf(figures, "strategy"),
                        .workers = static_cast<int>(workers),
                        .simulated = TextOf(figures, "basis") == "simulated",
                        .crowded = absl::StrContains(TextOf(figures, "note"), "oversubscribed")});
  }
  for (ChartRow& row : run.rows) {
    const double servers = row.number("servers").value_or(0);
    std::set<std::string> rates;
    for (const ChartRow& other : run.rows) {
      if (other.plain() == row.plain() && other.workers == row.workers &&
          other.number("servers").value_or(0) == servers) {
        rates.insert(CellText(MemberOf(*other.figures, "lr")));
      }
    }
    if (servers > 1) absl::StrAppendFormat(&row.name, ", %.0f servers", servers);
    if (rates.size() > 1) absl::StrAppend(&row.name, ", lr ", CellText(MemberOf(*row.figures, "lr")));
    if (row.simulated) row.name += " (simulated)";
  }
  return run;
}

std::string ChartRun::Caption(bool intervals) const {
  std::string text = absl::StrCat("Run ", id, ".");
  for (const ChartRow& row : rows) {
    const double repeats = row.number("repeats").value_or(0);
    if (repeats < 1) continue;
    absl::StrAppendFormat(&text, " %.0f %s of %.0f steps.", repeats, repeats == 1 ? "repeat" : "repeats",
                          row.number("steps").value_or(0));
    if (intervals && repeats > 1) text += " Intervals: 95%, bootstrap over repeats.";
    break;
  }
  return text;
}

std::string ChartRun::IdOf(const std::string& chart) const {
  return alone ? chart : absl::StrCat(id, "-", chart);
}

std::optional<std::pair<double, double>> ChartRow::interval(const std::string& key) const {
  const ChartJson& kept = MemberOf(MemberOf(*all, "intervals"), key);
  const bool has_column = figures->contains(key + "_lo95");
  const auto low = has_column ? number(key + "_lo95") : NumberOf(kept, "lo95");
  const auto high = has_column ? number(key + "_hi95") : NumberOf(kept, "hi95");
  if (!low || !high || !(*low <= *high)) return std::nullopt;
  return std::pair(*low, *high);
}

}  // namespace psring
