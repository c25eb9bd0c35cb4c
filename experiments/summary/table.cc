#include "experiments/summary/table.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "experiments/summary/row_queries.h"
#include "experiments/summary/wires.h"
#include "experiments/texts/table.h"
#include "experiments/texts/unit.h"
#include "experiments/texts/wrap.h"

namespace psring {
namespace {

using Row = const SummaryRow&;

struct Column {
  Heading heading;
  const char* mark;  // "m", "d", "s" or ""
  std::function<std::string(Row)> text;
  bool learned = false;  // measured even if times are simulated
};

std::string Number(const std::optional<double>& value, int digits) {
  return value ? absl::StrFormat("%.*f", digits, *value) : "";
}

std::string Signed(const std::optional<double>& value) {
  return value ? absl::StrFormat("%+.1f", *value) : "";
}

std::string Ms(const std::optional<double>& ms) { return Number(ms, ms && std::abs(*ms) >= 100 ? 0 : 1); }

// With decimals if the ends would look equal; one number if they still do.
std::string RangeText(const Interval& interval) {
  const std::string low = WithThousands(interval.low), high = WithThousands(interval.high);
  if (low != high) return absl::StrCat(low, "-", high);
  if (interval.high >= 1000) return low;
  const std::string from = absl::StrFormat("%.2f", interval.low), to = absl::StrFormat("%.2f", interval.high);
  return from == to ? from : absl::StrCat(from, "-", to);
}

bool ReadsText(const std::vector<SummaryRow>& rows) {
  return !rows.empty() && rows.front().configuration.training.reads_text();
}

bool MovesGradients(Row row) { return row.configuration.strategy.moves_gradients(); }

std::optional<double> IfCommunicates(Row row, double value) {
  return MovesGradients(row) ? std::optional<double>(value) : std::nullopt;
}

std::vector<Column> Columns(const std::vector<SummaryRow>& rows, Language language) {
  const bool several_servers =
      std::ranges::any_of(rows, [](Row row) { return row.configuration.servers() > 1; });
  return {
      {kHeadStrategy, "", [](Row row) { return row.configuration.strategy.name; }},
      {kHeadWorkers, "",
       [](Row row) {
         return absl::StrCat(row.configuration.workers, row.configuration.oversubscribed ? "*" : "",
                             row.valid ? "" : "!");
       }},
      {kHeadServers, "",
       [several_servers](Row row) {
         const int servers = row.configuration.servers();
         return several_servers && servers > 0 ? absl::StrCat(servers) : "";
       }},
      {ReadsText(rows) ? kHeadTokens : kHeadSamples, "m",
       [](Row row) { return WithThousands(row.mean.samples_per_s); }},
      {kHeadInterval, "d",
       [](Row row) { return row.samples_per_s_95 ? RangeText(*row.samples_per_s_95) : ""; }},
      {kHeadSpeedup, "d", [](Row row) { return Number(row.speedup, 2); }},
      {kHeadStep, "m", [](Row row) { return Ms(row.mean.step_ms); }},
      {kHeadSimulated, "s",
       [](Row row) { return row.prediction ? Ms(1e3 * row.prediction->prediction.step) : ""; }},
      {kHeadOff, "d",
       [](Row row) {
         if (!row.prediction) return std::string();
         const Residual& residual = row.prediction->residual;
         return Signed(100 * residual.total() / residual.predicted);
       }},
      {kHeadAgainst, "d", [](Row row) { return Signed(row.cost_against_none_ms); }},
      {kHeadCompute, "m", [](Row row) { return Ms(row.mean.compute_ms); }},
      {kHeadExposed, "m", [](Row row) { return Ms(IfCommunicates(row, row.mean.exposed_comm_ms)); }},
      {kHeadBusy, "m", [](Row row) { return Ms(IfCommunicates(row, row.mean.comm_busy_ms)); }},
      {kHeadWait, "d", [](Row row) { return Ms(row.mean.wait_ms); }},
      {kHeadTheory, "d", [](Row row) { return Ms(row.predicted_comm_ms); }},
      {kHeadSent, "m",
       [](Row row) { return Number(IfCommunicates(row, row.mean.payload_tx_bytes / 1e6), 2); }},
      {kHeadSentTheory, "d",
       [](Row row) {
         return row.predicted_payload_bytes ? Number(*row.predicted_payload_bytes / 1e6, 2) : "";
       }},
      {kHeadStale, "m",
       [](Row row) {
         return row.configuration.strategy.synchronous ? "" : Number(row.mean.staleness_mean, 2);
       }},
      {kHeadDropped, "m",
       [](Row row) { return row.mean.dropped_share ? Number(100 * *row.mean.dropped_share, 1) : ""; }},
      {kHeadRate, "",
       [](Row row) {
         const Configuration& configuration = row.configuration;
         return configuration.tried_lrs.empty() ? "" : absl::StrFormat("%g", configuration.update.lr);
       }},
      {kHeadAccuracy, "m", [](Row row) { return Number(row.test_accuracy, 4); }, /*learned=*/true},
      {kHeadTarget, "m", [](Row row) { return Number(row.time_to_target_s, 2); }},
      {kHeadPerPush, "",
       [](Row row) {
         const int each = row.configuration.workers_per_push();
         return each > 1 ? absl::StrCat(each) : "";
       }},
      {kHeadWire, "", [language](Row row) { return WireText(row.mean.wires, language); }},
  };
}

// Of the rows that send anything, whatever their libraries: TCP and gRPC over TCP do not differ.
bool WiresDiffer(const std::vector<SummaryRow>& rows) {
  std::set<std::string> media;
  for (Row row : rows) media.insert(MediumText(ComparedWires(rows, row), Language::kEnglish));
  media.erase("");
  return media.size() > 1;
}

std::vector<Column> ShortColumns(const std::vector<SummaryRow>& rows, Language language) {
  const bool with_wires = WiresDiffer(rows);
  const auto hidden = [](Row row) { return std::max(0.0, row.mean.comm_busy_ms - row.mean.exposed_comm_ms); };
  return {
      {kHeadStrategy, "", [](Row row) { return NameWithServers(row, Language::kEnglish); }},
      {kShortWorkers, "",
       [](Row row) {
         return absl::StrCat(row.configuration.workers, row.configuration.oversubscribed ? "*" : "",
                             row.valid ? "" : "!");
       }},
      {ReadsText(rows) ? kShortTokens : kShortSamples, "m",
       [](Row row) { return WithThousands(row.mean.samples_per_s); }},
      {kShortInterval, "d",
       [](Row row) { return row.samples_per_s_95 ? RangeText(*row.samples_per_s_95) : ""; }},
      {kShortEfficiency, "d",
       [](Row row) { return row.efficiency ? absl::StrFormat("%.0f%%", 100 * *row.efficiency) : ""; }},
      {kShortExposed, "m", [](Row row) { return Ms(IfCommunicates(row, row.mean.exposed_comm_ms)); }},
      {kShortHidden, "d", [hidden](Row row) { return Ms(IfCommunicates(row, hidden(row))); }},
      {kShortAccuracy, "m", [](Row row) { return Number(row.test_accuracy, 4); }, /*learned=*/true},
      {kHeadWire, "", [=](Row row) { return with_wires ? WireText(row.mean.wires, language) : ""; }},
  };
}

bool TimesAreSimulated(const std::vector<SummaryRow>& rows) {
  return !rows.empty() && rows.front().TimeBasis() == Basis::kSimulated;
}

// A class of a row's workers as a row: what is known of it.
SummaryRow RowOfClass(Row row, const WorkerClass& workers, bool rest, Language language) {
  SummaryRow line{.configuration = row.configuration, .valid = row.valid};
  line.configuration.strategy.name =
      Say(language,
          rest                        ? kOtherWorkers
          : workers.ranks.size() == 1 ? kThisWorker
                                      : kTheseWorkers,
          Joined(language, workers.ranks), absl::StrFormat("%.0f", 100 * workers.share));
  line.configuration.workers = static_cast<int>(workers.ranks.size());
  line.configuration.tried_lrs.clear();
  line.configuration.strategy.uses_servers = false;  // they serve all workers
  line.configuration.strategy.uses_group = true;     // it communicates
  const WorkerFigures& mean = workers.mean;
  line.mean = {.samples_per_s = mean.samples_per_s,
               .step_ms = mean.step_ms,
               .compute_ms = mean.compute_ms,
               .comm_busy_ms = mean.comm_busy_ms,
               .exposed_comm_ms = mean.exposed_comm_ms,
               .payload_tx_bytes = row.mean.payload_tx_bytes,
               .staleness_mean = mean.staleness_mean};
  return line;
}

// The table's lines: rows, and classes of their workers.
struct Lines {
  std::vector<SummaryRow> shown;
  std::vector<size_t> rows;  // by line
};

Lines LinesOf(const std::vector<SummaryRow>& rows, Language language) {
  Lines lines;
  for (size_t r = 0; r < rows.size(); ++r) {
    lines.shown.push_back(rows[r]);
    bool rest = false;
    for (const WorkerClass& workers : ClassesOf(rows[r])) {
      lines.shown.push_back(RowOfClass(rows[r], workers, rest, language));
      rest = true;
    }
    lines.rows.resize(lines.shown.size(), r);
  }
  return lines;
}

// The columns that have any content.
std::vector<TableColumn> Filled(const std::vector<Column>& columns, const std::vector<SummaryRow>& lines,
                                Language language) {
  std::vector<TableColumn> filled;
  const bool simulated = TimesAreSimulated(lines);
  for (const Column& column : columns) {
    std::vector<std::string> cells;
    for (const SummaryRow& line : lines) cells.push_back(column.text(line));
    if (std::ranges::all_of(cells, &std::string::empty)) continue;
    const bool timed = simulated && *column.mark == 'm' && !column.learned;
    filled.push_back({In(language, column.heading.first), In(language, column.heading.second),
                      timed ? "s" : column.mark, std::move(cells)});
  }
  return filled;
}

const char* MarkInWords(const std::string& mark, Language language) {
  return mark == "m"   ? In(language, kMeasuredWord)
         : mark == "d" ? In(language, kDerivedWord)
         : mark == "s" ? In(language, kSimulatedWord)
                       : "";
}

// What the marks of the columns mean. `predictions`: the table has the column of --predict.
std::string BasisText(const std::vector<SummaryRow>& rows, bool predictions, Language language) {
  if (TimesAreSimulated(rows)) {
    const Configuration& first = rows.front().configuration;
    return Say(language, kSimulatedBasis,
               first.scaled() ? Say(language, kBySlowing, first.training.time_scale)
                              : std::string(In(language, kByVirtualClock)));
  }
  const bool predicted = std::ranges::any_of(rows, [](Row row) { return row.prediction.has_value(); });
  return Say(language, kBasis,
             In(language, !predicted    ? kNothingSimulated
                          : predictions ? kBySimulator
                                        : kSimulatedElsewhere));
}

std::string WithoutTrailingSpace(std::string line) {
  line.erase(line.find_last_not_of(' ') + 1);
  return line + "\n";
}

// The headings, the lines, and the legend.
std::string Layout(const TableParts& parts, const std::vector<SummaryRow>& rows) {
  std::string first, second, marks;
  std::vector<std::string> lines(parts.rows.size());
  for (size_t c = 0; c < parts.columns.size(); ++c) {
    const TableColumn& column = parts.columns[c];
    const auto pad = c == 0 ? PadRight : PadLeft;
    size_t width = std::max(TextColumns(column.first), TextColumns(column.second));
    width = std::max(width, TextColumns(column.mark));
    for (const std::string& text : column.cells) width = std::max(width, TextColumns(text));
    const std::string gap = c == 0 ? "" : " ";
    first += gap + pad(column.first, width);
    second += gap + pad(column.second, width);
    marks += gap + pad(column.mark, width);
    for (size_t i = 0; i < lines.size(); ++i) lines[i] += gap + pad(column.cells[i], width);
  }
  std::string table;
  for (const std::string& sentence : parts.above) table += Wrap(sentence, "");
  if (!table.empty()) table += "\n";
  table += WithoutTrailingSpace(first) + WithoutTrailingSpace(second) + WithoutTrailingSpace(marks);
  const auto workers = [&](size_t line) { return rows[parts.rows[line]].configuration.workers; };
  for (size_t i = 0; i < lines.size(); ++i) {
    if (i > 0 && workers(i) != workers(i - 1)) table += "\n";
    table += WithoutTrailingSpace(lines[i]);
  }
  table += "\n";
  for (const std::string& sentence : parts.legend) table += Wrap(sentence, "");
  return table;
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

std::vector<std::string> AboveTable(const std::vector<SummaryRow>& rows, Language language) {
  if (rows.empty()) return {};
  const Configuration& configuration = rows.front().configuration;
  const TrainingOptions& training = configuration.training;
  const int64_t parameters = std::max(rows.front().sample.parameters, configuration.model.parameters);
  std::vector<std::string> sentences;
  if (parameters > 0 || configuration.model.has_tables) {
    const double megabytes = 4e-6 * static_cast<double>(parameters);
    const Phrase& line = configuration.model.has_tables ? kModelWithTablesLine : kModelLine;
    sentences.push_back(Say(language, line, configuration.model.name,
                            WithThousands(static_cast<double>(parameters)),
                            megabytes < 100 ? absl::StrFormat("%.3g", megabytes) : WithThousands(megabytes)));
  }
  const char* const samples = In(language, training.reads_text() ? kBatchTexts : kBatchSamples);
  sentences.push_back(
      training.global_batch > 0
          ? Say(language, kStrongScaling, training.global_batch, samples)
          : Say(language, kWeakScaling, WorkerBatch(training) * training.reference_workers, samples));
  return sentences;
}

TableParts PartsOfTable(const std::vector<SummaryRow>& rows, Language language) {
  TableParts parts{.above = AboveTable(rows, language)};
  const bool simulated = !rows.empty() && rows.front().configuration.simulated();
  const bool scaled = !rows.empty() && rows.front().configuration.scaled();
  const Lines lines = LinesOf(rows, language);
  parts.columns = Filled(Columns(rows, language), lines.shown, language);
  parts.rows = lines.rows;
  const auto any_row = [&](auto is) { return std::ranges::any_of(rows, is); };
  const bool predicted = any_row([](Row row) { return row.prediction.has_value(); });
  const auto say = [&](const Phrase& phrase, auto... values) {
    parts.legend.push_back(Say(language, phrase, values...));
  };
  say(simulated || scaled || predicted ? kMarksSimulated : kMarks, UnitOf(ReadsText(rows), language));
  parts.legend.push_back(BasisText(rows, /*predictions=*/true, language));
  if (predicted) say(kPredictedColumns);
  if (any_row(MovesGradients)) say(simulated ? kColumnsSimulated : kColumns);
  if (any_row([](Row row) { return row.sample.rows.all() > 0; })) say(kRowsColumn);
  if (any_row([](Row row) { return row.reached_target > 0; })) {
    say(kTargetColumn, rows.front().configuration.target_accuracy);
  }
  for (Row row : rows) {
    if (row.configuration.tried_lrs.empty()) continue;
    say(kRateColumn, row.configuration.tried_lrs.size(), row.configuration.training.validation);
    break;
  }
  if (any_row([](Row row) { return row.configuration.workers_per_push() > 1; })) say(kPerPushColumn);
  if (lines.shown.size() > rows.size()) say(kClassLines);
  if (any_row([](Row row) { return row.configuration.oversubscribed; })) say(kOversubscribed);
  if (any_row([](Row row) { return !row.valid; })) say(kNotValid);
  return parts;
}

std::string Table(const std::vector<SummaryRow>& rows, Language language) {
  return Layout(PartsOfTable(rows, language), rows);
}

std::string ShortTable(const std::vector<SummaryRow>& rows, Language language) {
  const Lines lines = LinesOf(rows, language);
  TableParts parts{.above = AboveTable(rows, language),
                   .columns = Filled(ShortColumns(rows, language), lines.shown, language),
                   .rows = lines.rows};
  for (TableColumn& column : parts.columns) column.mark = MarkInWords(column.mark, language);
  const auto any_row = [&](auto is) { return std::ranges::any_of(rows, is); };
  parts.legend.push_back(BasisText(rows, /*predictions=*/false, language));
  if (any_row([](Row row) { return row.configuration.strategy.name == "none"; })) {
    parts.legend.push_back(In(language, kNoneRow));
  }
  if (any_row(MovesGradients)) parts.legend.push_back(In(language, kShortColumns));
  if (lines.shown.size() > rows.size()) parts.legend.push_back(In(language, kClassLines));
  if (any_row([](Row row) { return row.configuration.oversubscribed; })) {
    parts.legend.push_back(In(language, kOversubscribed));
  }
  if (any_row([](Row row) { return !row.valid; })) parts.legend.push_back(In(language, kNotValid));
  return Layout(parts, rows);
}

}  // namespace psring
