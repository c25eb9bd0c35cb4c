#include "experiments/analysis/table.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/cli/wrap.h"
#include "common/text/translate.h"
#include "common/text/units.h"
#include "experiments/analysis/row_queries.h"
#include "experiments/design/plan.h"
#include "trainer/programs/pipeline_flags.h"

namespace psring {
namespace {

using Row = const SummaryRow&;

struct Column {
  const char* heading;  // its two lines: "range of|9 in 10"
  const char* mark;     // "m", "d", "s" or ""
  std::function<std::string(Row)> text;
  bool learned = false;  // measured even if times are simulated
};

std::string Number(const std::optional<double>& value, int digits) {
  return value ? Fixed(*value, digits) : "";
}

std::string Signed(const std::optional<double>& value) {
  return value ? absl::StrFormat("%+.1f", *value) : "";
}

std::string Ms(const std::optional<double>& ms) { return Number(ms, ms && std::abs(*ms) >= 100 ? 0 : 1); }

// With decimals if the ends would look equal; one number if they still do.
std::string RangeText(const Interval& interval) {
  std::string low = WithThousands(interval.low), high = WithThousands(interval.high);
  if (low != high) return absl::StrCat(low, "-", high);
  if (interval.high >= 1000) return low;
  const std::string from = Fixed(interval.low), to = Fixed(interval.high);
  return from == to ? from : absl::StrCat(from, "-", to);
}

bool ReadsText(const std::vector<SummaryRow>& rows) {
  return !rows.empty() && rows.front().configuration.training.reads_text();
}

bool MovesGradients(Row row) { return row.configuration.strategy.moves_gradients(); }

std::optional<double> IfCommunicates(Row row, double value) {
  return MovesGradients(row) ? std::optional<double>(value) : std::nullopt;
}

bool IsCut(Row row) { return row.configuration.training.pp > 1; }

bool AnyIsCut(const std::vector<SummaryRow>& rows) { return std::ranges::any_of(rows, IsCut); }

// Whether a replica has several ranks.
bool AnyIsDivided(const std::vector<SummaryRow>& rows) {
  return std::ranges::any_of(rows, [](Row row) { return ReplicaRanks(row.configuration.training) > 1; });
}

std::string Percent(const std::optional<double>& part) { return part ? Fixed(100 * *part, 1) : ""; }

// With the marks of AddMarks.
std::string WorkersText(Row row) {
  return absl::StrCat(row.configuration.workers, row.configuration.oversubscribed ? "*" : "",
                      row.valid ? "" : "!");
}

// Of the rank with the most.
std::string MemoryOf(Row row, MemoryFigures RankMemory::*which) {
  const double mb = MostMemoryMb(row.mean.memory, which);
  return mb > 0 ? Number(mb, mb < 100 ? 1 : 0) : "";
}

// Empty without pipelines. They are measured and simulated.
std::vector<Column> BubbleColumns() {
  return {{TrNoop("bubble|%"), "m", [](Row row) { return Percent(row.mean.bubble_fraction); }},
          {TrNoop("bubble|%"), "s", [](Row row) { return Percent(row.predicted_bubble); }}};
}

std::vector<Column> Columns(const std::vector<SummaryRow>& rows) {
  const bool several_servers =
      std::ranges::any_of(rows, [](Row row) { return row.configuration.servers() > 1; });
  const bool divided = AnyIsDivided(rows);
  std::vector<Column> columns = {
      {TrNoop("|strategy"), "", [](Row row) { return row.configuration.strategy.name; }},
      {TrNoop("wor-|kers"), "", WorkersText},
      {TrNoop("layout|"), "", [divided](Row row) { return divided ? row.configuration.layout() : ""; }},
      {TrNoop("|program"), "", [](Row row) { return IsCut(row) ? row.configuration.training.program : ""; }},
      {TrNoop("|cut"), "",
       [](Row row) { return row.configuration.names_cuts ? row.configuration.training.cuts : ""; }},
      {TrNoop("micro-|batches"), "",
       [](Row row) { return IsCut(row) ? absl::StrCat(row.configuration.training.micro_batches) : ""; }},
      {TrNoop("ser-|vers"), "",
       [several_servers](Row row) {
         const int servers = row.configuration.servers();
         return several_servers && servers > 0 ? absl::StrCat(servers) : "";
       }},
      {ReadsText(rows) ? TrNoop("tokens|/s") : TrNoop("samples|/s"), "m",
       [](Row row) { return WithThousands(row.mean.samples_per_s); }},
      {TrNoop("95%|interval"), "d",
       [](Row row) { return row.samples_per_s_95 ? RangeText(*row.samples_per_s_95) : ""; }},
      {TrNoop("speed-|up"), "d", [](Row row) { return Number(row.speedup, 2); }},
      {TrNoop("step|ms"), "m", [](Row row) { return Ms(row.mean.step_ms); }},
      {TrNoop("simu-|lated"), "s",
       [](Row row) {
         return Ms(row.prediction ? 1e3 * row.prediction->prediction.step : row.predicted_step_ms);
       }},
      {TrNoop("off|%"), "d",
       [](Row row) {
         if (!row.prediction) return std::string();
         const Residual& residual = row.prediction->residual;
         return Signed(100 * residual.total() / residual.predicted);
       }},
      {TrNoop("against|none"), "d", [](Row row) { return Signed(row.cost_against_none_ms); }},
      {TrNoop("com-|pute"), "m", [](Row row) { return Ms(row.mean.compute_ms); }},
      {TrNoop("ex-|posed"), "m", [](Row row) { return Ms(IfCommunicates(row, row.mean.exposed_comm_ms)); }},
      {TrNoop("comm.|busy"), "m", [](Row row) { return Ms(IfCommunicates(row, row.mean.comm_busy_ms)); }},
      {TrNoop("of it|wait"), "d", [](Row row) { return Ms(row.mean.wait_ms); }},
      {TrNoop("comm.|theory"), "d", [](Row row) { return Ms(row.predicted_comm_ms); }},
      {TrNoop("MB|sent"), "m",
       [](Row row) { return Number(IfCommunicates(row, row.mean.payload_tx_bytes / 1e6), 2); }},
      {TrNoop("MB|theory"), "d",
       [](Row row) {
         return row.predicted_payload_bytes ? Number(*row.predicted_payload_bytes / 1e6, 2) : "";
       }},
      {TrNoop("stale|mean"), "m",
       [](Row row) {
         const bool stale =
             !row.configuration.strategy.synchronous || UpdatesWithoutFlush(row.configuration.training);
         return stale ? Number(row.mean.staleness_mean, 2) : "";
       }},
      {TrNoop("drop-|ped %"), "m",
       [](Row row) { return row.mean.dropped_share ? Number(100 * *row.mean.dropped_share, 1) : ""; }},
      {TrNoop("best|lr"), "",
       [](Row row) {
         const Configuration& configuration = row.configuration;
         return configuration.tried_lrs.empty() ? "" : absl::StrFormat("%g", configuration.update.lr);
       }},
      {TrNoop("test|acc."), "m", [](Row row) { return Number(row.test_accuracy, 4); }, /*learned=*/true},
      {TrNoop("target|s"), "m", [](Row row) { return Number(row.time_to_target_s, 2); }},
      {TrNoop("workers|/push"), "",
       [](Row row) {
         const int each = row.configuration.workers_per_push();
         return each > 1 ? absl::StrCat(each) : "";
       }},
  };
  std::ranges::copy(BubbleColumns(), std::back_inserter(columns));
  if (divided) {
    columns.push_back(
        {TrNoop("memory|MiB"), "m", [](Row row) { return MemoryOf(row, &RankMemory::measured); }});
    columns.push_back(
        {TrNoop("memory|theory"), "d", [](Row row) { return MemoryOf(row, &RankMemory::predicted); }});
  }
  columns.push_back({TrNoop("|wire"), "", [](Row row) { return WireText(row.mean.wires); }});
  return columns;
}

// Of the rows that send anything, whatever their libraries: TCP and gRPC over TCP do not differ.
bool WiresDiffer(const std::vector<SummaryRow>& rows) {
  std::set<std::string> media;
  for (Row row : rows) media.insert(MediumText(ComparedWires(rows, row)));
  media.erase("");
  return media.size() > 1;
}

std::vector<Column> ShortColumns(const std::vector<SummaryRow>& rows) {
  const bool with_wires = WiresDiffer(rows);
  const bool any_is_cut = AnyIsCut(rows);
  // Of cuts, step and bubble are compared: they replace the interval and what is exposed.
  const bool cuts_differ = std::ranges::any_of(rows, [](Row row) { return row.configuration.names_cuts; });
  // Of a pipeline's busy time a part is waiting for other stages. Bubbles replace efficiency.
  const auto hidden = [any_is_cut](Row row) -> std::optional<double> {
    if (any_is_cut) return std::nullopt;
    return IfCommunicates(row, std::max(0.0, row.mean.comm_busy_ms - row.mean.exposed_comm_ms));
  };
  std::vector<Column> columns = {
      {TrNoop("|strategy"), "", [](Row row) { return NameWithServers(row); }},
      {TrNoop("|workers"), "", WorkersText},
      {ReadsText(rows) ? TrNoop("tokens|per second") : TrNoop("samples|per second"), "m",
       [](Row row) { return WithThousands(row.mean.samples_per_s); }},
      {TrNoop("95%|interval"), "d",
       [cuts_differ](Row row) {
         return row.samples_per_s_95 && !cuts_differ ? RangeText(*row.samples_per_s_95) : "";
       }},
      {TrNoop("step|ms"), "m", [cuts_differ](Row row) { return cuts_differ ? Ms(row.mean.step_ms) : ""; }},
      {TrNoop("step|ms"), "s",
       [cuts_differ](Row row) { return cuts_differ ? Ms(row.predicted_step_ms) : ""; }},
      {TrNoop("scaling|efficiency"), "d",
       [any_is_cut](Row row) {
         return row.efficiency && !any_is_cut ? absl::StrFormat("%.0f%%", 100 * *row.efficiency) : "";
       }},
      {TrNoop("exposed,|ms"), "m",
       [cuts_differ](Row row) {
         return cuts_differ ? "" : Ms(IfCommunicates(row, row.mean.exposed_comm_ms));
       }},
      {TrNoop("hidden,|ms"), "d", [hidden](Row row) { return Ms(hidden(row)); }},
      {TrNoop("test|accuracy"), "m", [](Row row) { return Number(row.test_accuracy, 4); }, /*learned=*/true},
  };
  std::ranges::copy(BubbleColumns(), std::back_inserter(columns));
  columns.push_back(
      {TrNoop("|wire"), "", [=](Row row) { return with_wires ? WireText(row.mean.wires) : ""; }});
  return columns;
}

bool TimesAreSimulated(const std::vector<SummaryRow>& rows) {
  return !rows.empty() && rows.front().TimeBasis() == Basis::kSimulated;
}

// A class of a row's workers as a row: what is known of it.
SummaryRow RowOfClass(Row row, const WorkerClass& workers, bool rest) {
  SummaryRow line{.configuration = row.configuration, .valid = row.valid};
  line.configuration.strategy.name =
      Tr(rest                        ? TrNoop("- others: $1%")
         : workers.ranks.size() == 1 ? TrNoop("- worker $0: $1%")
                                     : TrNoop("- workers $0: $1%"),
         absl::StrJoin(workers.ranks, Tr(", ")), Fixed(100 * workers.share, 0));
  line.configuration.workers = workers.ranks.size();
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

Lines LinesOf(const std::vector<SummaryRow>& rows) {
  Lines lines;
  for (size_t r = 0; r < rows.size(); ++r) {
    lines.shown.push_back(rows[r]);
    bool rest = false;
    for (const WorkerClass& workers : ClassesOf(rows[r])) {
      lines.shown.push_back(RowOfClass(rows[r], workers, rest));
      rest = true;
    }
    lines.rows.resize(lines.shown.size(), r);
  }
  return lines;
}

// The columns that have any content.
std::vector<TableColumn> Filled(const std::vector<Column>& columns, const std::vector<SummaryRow>& lines) {
  std::vector<TableColumn> filled;
  const bool simulated = TimesAreSimulated(lines);
  for (const Column& column : columns) {
    std::vector<std::string> cells;
    for (const SummaryRow& line : lines) cells.push_back(column.text(line));
    if (std::ranges::all_of(cells, &std::string::empty)) continue;
    const bool timed = simulated && *column.mark == 'm' && !column.learned;
    const std::pair<std::string, std::string> heading = absl::StrSplit(Tr(column.heading), '|');
    filled.push_back({heading.first, heading.second, timed ? "s" : column.mark, std::move(cells)});
  }
  return filled;
}

std::string MarkInWords(const std::string& mark) {
  return mark == "m" ? Tr("measured") : mark == "d" ? Tr("derived") : mark == "s" ? Tr("simulated") : "";
}

// What the marks of the columns mean. `predictions`: the table has the column of --predict.
std::string BasisText(const std::vector<SummaryRow>& rows, bool predictions) {
  if (TimesAreSimulated(rows)) {
    const Configuration& first = rows.front().configuration;
    return Tr(
        "Measured: by a clock or a counter. Simulated: $0. Derived: computed from measured and simulated "
        "values.",
        first.scaled() ? Tr("measured with links and computing $0 times slower, then divided by $0 (--scale)",
                            first.training.time_scale)
                       : Tr("times of the virtual clock"));
  }
  const bool predicted = std::ranges::any_of(rows, [](Row row) { return row.prediction.has_value(); });
  const bool only_bubbles =
      !predicted && std::ranges::any_of(rows, [](Row row) { return row.predicted_bubble.has_value(); });
  return Tr("Measured: by a clock or a counter. Derived: computed from measured values. $0",
            Tr(only_bubbles  ? TrNoop("Only what a walk of a pipeline's program gives is simulated.")
               : !predicted  ? TrNoop("In this table nothing is simulated.")
               : predictions ? TrNoop("Simulated: by psring's simulator (--predict).")
                             : TrNoop("Nothing in this table is simulated; the simulated steps (--predict) "
                                      "are in report.html and residuals.csv.")));
}

// What the signs of lines and of numbers of workers mean.
void AddMarks(const std::vector<SummaryRow>& rows, const Lines& lines, std::vector<std::string>& legend) {
  if (lines.shown.size() > rows.size()) {
    legend.push_back(
        Tr("Lines that begin with -: workers with unequal shares of the samples; times are means of these "
           "workers."));
  }
  if (std::ranges::any_of(rows, [](Row row) { return row.configuration.oversubscribed; })) {
    legend.push_back(
        Tr("* oversubscribed: more workers than cores, so computing takes longer than on machines of their "
           "own."));
  }
  if (std::ranges::any_of(rows, [](Row row) { return !row.valid; })) {
    legend.push_back(
        Tr("! not valid: other programs used too much of the processors, or ranks shared a GPU; see the note "
           "in summary.csv."));
  }
}

// The headings, the lines, and the legend.
std::string TextOf(const TableParts& parts, const std::vector<SummaryRow>& rows) {
  std::vector<std::vector<std::string>> cells(parts.rows.size() + 3);  // two headings and the marks first
  for (const TableColumn& column : parts.columns) {
    cells[0].push_back(column.first);
    cells[1].push_back(column.second);
    cells[2].push_back(column.mark);
    for (size_t i = 0; i < column.cells.size(); ++i) cells[i + 3].push_back(column.cells[i]);
  }
  const std::vector<std::string> lines = AlignedLines(cells, " ", [](size_t column) { return column > 0; });
  std::string table;
  for (const std::string& sentence : parts.above) table += Wrap(sentence, "");
  if (!table.empty()) table += "\n";
  table += lines[0] + lines[1] + lines[2];
  const auto workers = [&](size_t line) { return rows[parts.rows[line]].configuration.workers; };
  for (size_t i = 0; i < parts.rows.size(); ++i) {
    if (i > 0 && workers(i) != workers(i - 1)) table += "\n";
    table += lines[i + 3];
  }
  table += "\n";
  for (const std::string& sentence : parts.legend) table += Wrap(sentence, "");
  return table;
}

}  // namespace

TableParts PartsOfTable(const std::vector<SummaryRow>& rows) {
  TableParts parts{.above = AboveTable(rows)};
  const bool simulated = !rows.empty() && rows.front().configuration.simulated();
  const bool scaled = !rows.empty() && rows.front().configuration.scaled();
  const Lines lines = LinesOf(rows);
  parts.columns = Filled(Columns(rows), lines.shown);
  parts.rows = lines.rows;
  const auto any_row = [&](auto is) { return std::ranges::any_of(rows, is); };
  const bool predicted = any_row([](Row row) { return row.prediction.has_value(); });
  const auto say = [&](const char* english, auto... values) {
    parts.legend.push_back(Tr(english, values...));
  };
  say(simulated || scaled || predicted
          ? TrNoop("m measured, d derived, s simulated. $0/s and step are geometric means over rounds, with "
                   "a 95% interval by Student's t. Times are ms per step.")
          : TrNoop("m measured, d derived. $0/s and step are geometric means over rounds, with a 95% "
                   "interval by Student's t. Times are ms per step."),
      UnitOf(ReadsText(rows)));
  parts.legend.push_back(BasisText(rows, /*predictions=*/true));
  if (predicted) {
    say(
        TrNoop("simulated: the step that psring predict computes for this configuration; off: how much "
               "longer the measured step is."));
  }
  if (any_row(MovesGradients)) {
    say(simulated
            ? TrNoop("exposed: communication that is not hidden behind computation. MB: payload that a "
                     "worker sends per step, in 10^6 bytes.")
            : TrNoop("against none: the step minus a step of the same rounds without communication. exposed: "
                     "communication that is not hidden behind computation. theory: an exchange of the actual "
                     "buckets, mean over workers, at the speeds measured at the start, without processor "
                     "time and without the queue before a server of ps-async. MB: payload that a worker "
                     "sends per step, in 10^6 bytes."));
  }
  if (AnyIsDivided(rows)) parts.legend.push_back(LayoutsText(AnyIsCut(rows)));
  if (AnyIsDivided(rows) && any_row([](Row row) { return !row.mean.memory.empty(); })) {
    say(
        TrNoop("memory: weights, gradients, optimizer state and activations of the worker with the most; "
               "theory: what was predicted before the run."));
  }
  if (any_row([](Row row) { return row.sample.rows.all() > 0; }))
    say(TrNoop("Communication, theory and MB include the rows of tables that a step touched."));
  if (any_row([](Row row) { return row.reached_target > 0; })) {
    say(TrNoop("target: seconds of training until the first evaluation with a test accuracy of $0; empty if "
               "a training did not reach it."),
        rows.front().configuration.target_accuracy);
  }
  for (Row row : rows) {
    if (row.configuration.tried_lrs.empty()) continue;
    say(TrNoop("best lr: of $0 learning rates tried for the row (rates.csv), the one with the highest "
               "accuracy on $1 held-out samples."),
        row.configuration.tried_lrs.size(), row.configuration.training.validation);
    break;
  }
  if (any_row([](Row row) { return row.configuration.workers_per_push() > 1; })) {
    say(
        TrNoop("workers/push: --local_aggregation; so many workers of a machine add up their gradients and "
               "push one sum."));
  }
  AddMarks(rows, lines, parts.legend);
  return parts;
}

std::string Table(const std::vector<SummaryRow>& rows) { return TextOf(PartsOfTable(rows), rows); }

std::string ShortTable(const std::vector<SummaryRow>& rows) {
  const Lines lines = LinesOf(rows);
  TableParts parts{
      .above = AboveTable(rows), .columns = Filled(ShortColumns(rows), lines.shown), .rows = lines.rows};
  for (TableColumn& column : parts.columns) column.mark = MarkInWords(column.mark);
  const auto any_row = [&](auto is) { return std::ranges::any_of(rows, is); };
  parts.legend.push_back(BasisText(rows, /*predictions=*/false));
  if (any_row([](Row row) { return row.configuration.strategy.name == "none"; })) {
    parts.legend.push_back(Tr("none: the same workers without communication."));
  }
  if (AnyIsDivided(rows)) parts.legend.push_back(LayoutsText(AnyIsCut(rows)));
  if (!AnyIsCut(rows) && any_row(MovesGradients)) {
    parts.legend.push_back(
        Tr("Scaling efficiency: the speed over that of a single worker, divided by the number of workers. "
           "Exposed: communication of a step that computing does not hide; hidden: the rest."));
  }
  AddMarks(rows, lines, parts.legend);
  return TextOf(parts, rows);
}

}  // namespace psring
