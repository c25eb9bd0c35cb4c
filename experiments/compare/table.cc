#include "experiments/compare/table.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace psring {
namespace {

struct Column {
  const char* first;  // the heading's two lines
  const char* second;
  const char* mark;  // "m", "d" or ""
  std::function<std::string(const SummaryRow&)> text;
};

std::string Ms(const std::optional<double>& ms) {
  if (!ms) return "";
  return std::abs(*ms) < 100 ? absl::StrFormat("%.1f", *ms) : absl::StrFormat("%.0f", *ms);
}

std::string Megabytes(const std::optional<double>& bytes) {
  return bytes ? absl::StrFormat("%.2f", *bytes / 1e6) : "";
}

bool Communicates(const SummaryRow& row) { return row.configuration.strategy.moves_gradients(); }

std::optional<double> IfItTalks(const SummaryRow& row, double value) {
  return Communicates(row) ? std::optional<double>(value) : std::nullopt;
}

// `samples/s` and what belongs to it are blank where only an accuracy training was run beside cost rounds of
// others.
std::vector<Column> Columns(const std::vector<SummaryRow>& rows) {
  const bool several_servers = std::any_of(
      rows.begin(), rows.end(), [](const SummaryRow& row) { return row.configuration.servers() > 1; });
  return {
      {"", "strategy", "", [](const SummaryRow& row) { return row.configuration.strategy.name; }},
      {"wor-", "kers", "",
       [](const SummaryRow& row) {
         return absl::StrCat(row.configuration.workers, row.configuration.oversubscribed ? "*" : "",
                             row.valid ? "" : "!");
       }},
      {"ser-", "vers", "",
       [several_servers](const SummaryRow& row) {
         const int servers = row.configuration.servers();
         return several_servers && servers > 0 ? absl::StrCat(servers) : "";
       }},
      {"samples", "/s", "m", [](const SummaryRow& row) { return WithThousands(row.mean.samples_per_s); }},
      {"95%", "interval", "d",
       [](const SummaryRow& row) {
         return row.samples_per_s_95 ? absl::StrCat(WithThousands(row.samples_per_s_95->low), "-",
                                                    WithThousands(row.samples_per_s_95->high))
                                     : "";
       }},
      {"speed-", "up", "d",
       [](const SummaryRow& row) { return row.speedup ? absl::StrFormat("%.2f", *row.speedup) : ""; }},
      {"step", "ms", "m", [](const SummaryRow& row) { return Ms(row.mean.step_ms); }},
      {"simu-", "lated", "s",
       [](const SummaryRow& row) {
         return Ms(row.prediction ? std::optional<double>(1e3 * row.prediction->prediction.step)
                                  : std::nullopt);
       }},
      {"off", "%", "d",
       [](const SummaryRow& row) {
         if (!row.prediction) return std::string();
         const Residual& residual = row.prediction->residual;
         return absl::StrFormat("%+.1f", 100 * residual.total() / residual.predicted);
       }},
      {"against", "none", "d",
       [](const SummaryRow& row) {
         return row.cost_against_none_ms ? absl::StrFormat("%+.1f", *row.cost_against_none_ms) : "";
       }},
      {"com-", "pute", "m", [](const SummaryRow& row) { return Ms(row.mean.compute_ms); }},
      {"ex-", "posed", "m",
       [](const SummaryRow& row) { return Ms(IfItTalks(row, row.mean.exposed_comm_ms)); }},
      {"comm.", "busy", "m", [](const SummaryRow& row) { return Ms(IfItTalks(row, row.mean.comm_busy_ms)); }},
      {"of it", "wait", "d", [](const SummaryRow& row) { return Ms(row.mean.wait_ms); }},
      {"comm.", "theory", "d", [](const SummaryRow& row) { return Ms(row.predicted_comm_ms); }},
      {"MB", "sent", "m",
       [](const SummaryRow& row) { return Megabytes(IfItTalks(row, row.mean.payload_tx_bytes)); }},
      {"MB", "theory", "d", [](const SummaryRow& row) { return Megabytes(row.predicted_payload_bytes); }},
      {"stale", "mean", "m",
       [](const SummaryRow& row) {
         return row.mean.staleness_mean && !row.configuration.strategy.synchronous
                    ? absl::StrFormat("%.2f", *row.mean.staleness_mean)
                    : "";
       }},
      {"drop-", "ped %", "m",
       [](const SummaryRow& row) {
         return row.mean.dropped_share ? absl::StrFormat("%.1f", 100 * *row.mean.dropped_share) : "";
       }},
      {"test", "acc.", "m",
       [](const SummaryRow& row) {
         return row.test_accuracy ? absl::StrFormat("%.4f", *row.test_accuracy) : "";
       }},
      {"target", "s", "m",
       [](const SummaryRow& row) {
         return row.time_to_target_s ? absl::StrFormat("%.2f", *row.time_to_target_s) : "";
       }},
  };
}

std::string Padded(const std::string& text, size_t width, bool left) {
  const std::string space(width - std::min(width, text.size()), ' ');
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

std::string Table(const std::vector<SummaryRow>& rows) {
  std::vector<std::vector<std::string>> texts;  // by column
  std::vector<Column> columns;
  for (Column& column : Columns(rows)) {
    std::vector<std::string> cells;
    bool any = false;
    for (const SummaryRow& row : rows) {
      cells.push_back(column.text(row));
      any = any || !cells.back().empty();
    }
    if (!any) continue;
    texts.push_back(std::move(cells));
    columns.push_back(std::move(column));
  }
  const bool simulated = !rows.empty() && rows.front().configuration.simulated();
  std::string first, second, marks;
  std::vector<std::string> lines(rows.size());
  for (size_t c = 0; c < columns.size(); ++c) {
    const bool left = c == 0;
    size_t width = std::max(std::string(columns[c].first).size(), std::string(columns[c].second).size());
    for (const std::string& text : texts[c]) width = std::max(width, text.size());
    const std::string gap = c == 0 ? "" : " ";
    first += gap + Padded(columns[c].first, width, left);
    second += gap + Padded(columns[c].second, width, left);
    const bool timed = std::string(columns[c].mark) == "m" && std::string(columns[c].first) != "test";
    marks += gap + Padded(simulated && timed ? "s" : columns[c].mark, width, left);
    for (size_t r = 0; r < rows.size(); ++r) lines[r] += gap + Padded(texts[c][r], width, left);
  }
  std::string table =
      WithoutTrailingSpace(first) + WithoutTrailingSpace(second) + WithoutTrailingSpace(marks);
  for (size_t r = 0; r < rows.size(); ++r) {
    if (r > 0 && rows[r].configuration.workers != rows[r - 1].configuration.workers) table += "\n";
    table += WithoutTrailingSpace(lines[r]);
  }
  const bool predicted =
      std::any_of(rows.begin(), rows.end(), [](const SummaryRow& row) { return row.prediction.has_value(); });
  table += absl::StrCat("\nm measured, d derived", simulated || predicted ? ", s simulated" : "",
                        ". Times are ms of a mean step.\n");
  if (predicted) {
    table +=
        "simulated: the step that psring predict has for this very case; off: how much longer the measured "
        "one "
        "is.\n";
  }
  const bool communicates = std::any_of(rows.begin(), rows.end(), Communicates);
  if (communicates && simulated) {
    table +=
        "exposed: the part of communication that computing stands still for. MB: payload that a worker sends "
        "in "
        "a\nstep, in 10^6 bytes.\n";
  } else if (communicates) {
    table +=
        "against none: the step minus the same rounds' step without any communication. exposed: the part of\n"
        "communication that computing stands still for. theory: the wires alone, at the speeds measured at "
        "the\n"
        "start. MB: payload that a worker sends in a step, in 10^6 bytes.\n";
  }
  if (std::any_of(rows.begin(), rows.end(), [](const SummaryRow& row) { return row.reached_target > 0; })) {
    table += absl::StrFormat(
        "target: s of training to the first evaluation with a test accuracy of %g; blank where a training "
        "did\n"
        "not get there.\n",
        rows.front().configuration.target_accuracy);
  }
  const bool crowded = std::any_of(rows.begin(), rows.end(),
                                   [](const SummaryRow& row) { return row.configuration.oversubscribed; });
  if (crowded)
    table += "* oversubscribed: more workers than cores, so the times say how processes take turns.\n";
  if (std::any_of(rows.begin(), rows.end(), [](const SummaryRow& row) { return !row.valid; })) {
    table +=
        "! not valid, with the reason in summary.csv's note: others used too much of the processors "
        "meanwhile, the\nhost did not carry the network, or ranks shared a GPU.\n";
  }
  return table;
}

}  // namespace psring
