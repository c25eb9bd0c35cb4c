// A pool as JSON for the page and as a table for the terminal.
#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/cli/wrap.h"
#include "common/io/untrusted_json.h"
#include "common/text/translate.h"
#include "common/text/units.h"
#include "experiments/analysis/row_queries.h"
#include "experiments/analysis/table.h"
#include "experiments/pool/pool.h"

namespace psring {
namespace {

using Json = UntrustedJson;

Json OrNull(const std::optional<double>& value) { return value ? Json(*value) : Json(); }

Json SpreadJson(const std::optional<MachineSpread>& spread) {
  if (!spread) return nullptr;
  return {{"least", spread->least},
          {"median", spread->median},
          {"most", spread->most},
          {"machines", spread->machines}};
}

// "2.10 (1.90 to 2.31)"; empty without a spread.
std::string SpreadText(const std::optional<MachineSpread>& spread, bool thousands) {
  if (!spread) return "";
  const auto text = [&](double value) { return thousands ? WithThousands(value) : Fixed(value); };
  return Tr("$0 ($1 to $2)", text(spread->median), text(spread->least), text(spread->most));
}

Json FiguresJson(const std::vector<MachineFigures>& list) {
  Json each = Json::array();
  for (const MachineFigures& figures : list) {
    each.push_back({{"samples_per_s", OrNull(figures.samples_per_s)},
                    {"samples_per_s_lo95", OrNull(figures.low)},
                    {"samples_per_s_hi95", OrNull(figures.high)},
                    {"efficiency", OrNull(figures.efficiency)},
                    {"ratio", OrNull(figures.ratio)},
                    {"valid", figures.valid}});
  }
  return each;
}

// "4,349 (4,300 to 4,400), 2.70 times"; empty: the run lacks the row.
std::string BesideCell(const MachineFigures& run) {
  if (!run.samples_per_s) return "";
  std::string text = WithThousands(*run.samples_per_s);
  if (run.low && run.high)
    text = Tr("$0 ($1 to $2)", text, WithThousands(*run.low), WithThousands(*run.high));
  if (run.ratio) text += absl::StrFormat(", × %.2f", *run.ratio);
  return run.valid ? text : text + " !";
}

}  // namespace

std::string BesideJson(const SideBySide& beside) {
  if (beside.runs.empty()) return "null";
  Json settings = Json::array(), rows = Json::array();
  for (const auto& [name, values] : beside.settings) {
    Json& line = settings.emplace_back(Json::array({name}));
    for (const std::string& value : values) line.push_back(value);
  }
  for (const PoolRow& row : beside.rows) {
    rows.push_back({{"strategy", row.strategy},
                    {"workers", row.workers},
                    {"servers", row.servers},
                    {"runs", FiguresJson(row.machines)}});
  }
  return DumpUntrusted({{"runs", beside.runs}, {"settings", settings}, {"rows", rows}});
}

std::string BesideTable(const SideBySide& beside) {
  std::vector<std::string> head = {Tr("runs of different plans")};
  head.insert(head.end(), beside.runs.begin(), beside.runs.end());
  std::vector<std::vector<std::string>> lines = {head};
  for (const auto& [name, values] : beside.settings) {
    lines.push_back({name});
    for (const std::string& value : values) lines.back().push_back(Clipped(value, 40));
  }
  std::vector<std::string>& gap = lines.emplace_back(head.size());
  gap.front() = Tr("samples/s");
  for (const PoolRow& row : beside.rows) {
    const std::string name =
        row.servers > 1 ? Tr("$0 on $1 servers", row.strategy, row.servers) : row.strategy;
    lines.push_back({absl::StrCat(name, " x ", row.workers)});
    for (const MachineFigures& run : row.machines) lines.back().push_back(BesideCell(run));
  }
  return absl::StrJoin(AlignedLines(lines, "  ", [](size_t) { return false; }), "");
}

std::vector<std::string> WinnerSentences(const Pool& pool) {
  std::map<std::string, int> times;
  int none = 0, unknown = 0;
  for (const PoolMachine& machine : pool.machines) {
    if (!machine.recommended) {
      ++unknown;
    } else if (machine.recommended->empty()) {
      ++none;
    } else {
      ++times[absl::StrJoin(*machine.recommended, ", ")];
    }
  }
  std::vector<std::pair<std::string, int>> ordered(times.begin(), times.end());
  std::ranges::stable_sort(ordered, [](const auto& a, const auto& b) { return a.second > b.second; });
  std::vector<std::string> sentences;
  for (const auto& winner : ordered) {
    sentences.push_back(
        Tr("$0: recommended on $1 of $2 machines.", winner.first, winner.second, pool.machines.size()));
  }
  if (none > 0) {
    sentences.push_back(
        Tr("No strategy is shown to be faster on $0 of $1 machines.", none, pool.machines.size()));
  }
  if (unknown > 0) {
    sentences.push_back(Tr("$0 of $1 machines used a version that did not record its recommendation.",
                           unknown, pool.machines.size()));
  }
  return sentences;
}

std::string PoolJson(const Pool& pool) {
  if (pool.machines.empty() && pool.left_out.empty()) return "null";
  Json machines = Json::array(), rows = Json::array(), left_out = Json::array(), winners = Json::array();
  for (const PoolMachine& machine : pool.machines) {
    machines.push_back({{"name", machine.name},
                        {"run_id", machine.run_id},
                        {"processor", machine.processor},
                        {"cores", machine.cores},
                        {"recommended", machine.recommended ? Json(*machine.recommended) : Json()}});
  }
  for (const PoolRow& row : pool.rows) {
    rows.push_back({{"strategy", row.strategy},
                    {"workers", row.workers},
                    {"servers", row.servers},
                    {"base", row.base},
                    {"most_samples_share", row.most_samples_share},
                    {"machines", FiguresJson(row.machines)},
                    {"samples_per_s", SpreadJson(row.samples_per_s)},
                    {"efficiency", SpreadJson(row.efficiency)},
                    {"ratio", SpreadJson(row.ratio)}});
  }
  for (const LeftOut& run : pool.left_out) {
    left_out.push_back({{"name", run.name}, {"why", {run.english, run.chinese}}});
  }
  const auto sentences = [&] { return WinnerSentences(pool); };
  const std::vector<std::string> english = InLanguage(Language::kEnglish, sentences);
  const std::vector<std::string> chinese = InLanguage(Language::kChinese, sentences);
  for (size_t i = 0; i < english.size(); ++i) winners.push_back({english[i], chinese[i]});
  return DumpUntrusted(
      {{"machines", machines}, {"rows", rows}, {"left_out", left_out}, {"winners", winners}});
}

std::string PoolTable(const Pool& pool) {
  std::vector<std::vector<std::string>> lines = {
      {Tr("strategy"), Tr("workers"), Tr("samples/s"), Tr("efficiency"), Tr("relative to its own")}};
  std::vector<std::string> fewer;
  for (const PoolRow& row : pool.rows) {
    const std::string ratio = SpreadText(row.ratio, false);
    const bool uneven = row.most_samples_share * static_cast<double>(row.workers) > kUnevenShare;
    const std::string name =
        uneven ? Tr("$0, one worker $1%", row.strategy, Fixed(100 * row.most_samples_share, 0))
               : row.strategy;
    lines.push_back({Clipped(name, 24), absl::StrCat(row.workers), SpreadText(row.samples_per_s, true),
                     SpreadText(row.efficiency, false), ratio.empty() ? "" : Tr("$0 × $1", ratio, row.base)});
    const auto note_fewer = [&](const std::string& of, int counted, int than) {
      if (counted == than) return;
      fewer.push_back(absl::StrCat(
          row.strategy, " x ", row.workers, of, ": ",
          Tr("$0 of $1 machines; other programs disturbed the others", counted, pool.machines.size())));
    };
    const int counted = row.samples_per_s ? row.samples_per_s->machines : 0;
    note_fewer("", counted, static_cast<int>(pool.machines.size()));
    if (row.ratio)
      note_fewer(absl::StrCat(", ", Tr("relative to its own"), " ", row.base), row.ratio->machines, counted);
  }
  std::string text = absl::StrCat(
      Tr("$0 machines ran the same plan. Median over machines (lowest to highest):", pool.machines.size()),
      "\n\n", absl::StrJoin(AlignedLines(lines, "  ", [](size_t column) { return column == 1; }), ""));
  for (const std::string& line : fewer) absl::StrAppend(&text, Wrap(line, ""));
  const std::vector<std::string> winners = WinnerSentences(pool);
  if (!winners.empty()) absl::StrAppend(&text, "\n", absl::StrJoin(winners, "\n"), "\n");
  return text;
}

}  // namespace psring
