#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "common/base/check.h"
#include "common/io/files.h"
#include "common/io/untrusted_json.h"
#include "common/text/units.h"
#include "experiments/analysis/row_queries.h"
#include "experiments/verbs/report/report_verb.h"

namespace psring {
namespace {

using Json = UntrustedJson;

constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();
constexpr size_t kMaxRows = 1000;

std::string FixedOrEmpty(double value, int digits) {
  return std::isfinite(value) ? Fixed(value, digits) : "";
}

// One row of the table: strategy, workers, samples/s, interval, efficiency, exposed and hidden communication.
std::vector<std::string> CellsOf(const Json& figures) {
  const double low = NumberAt(figures, "samples_per_s_lo95", kUnknown);
  const double high = NumberAt(figures, "samples_per_s_hi95", kUnknown);
  const double exposed = NumberAt(figures, "exposed_comm_ms", kUnknown);
  const double busy = NumberAt(figures, "comm_busy_ms", kUnknown);
  const double share = NumberAt(figures, "most_samples_share", 0);
  const bool uneven = share * NumberAt(figures, "workers", 0) > kUnevenShare;
  const std::string program = TextAt(figures, "program");  // of a pipeline
  const std::string name =
      program.empty() ? TextAt(figures, "strategy") : absl::StrCat(TextAt(figures, "layout"), " ", program);
  return {
      uneven ? absl::StrFormat("%s (one worker makes %.0f%% of the samples)", name, 100 * share) : name,
      FixedOrEmpty(NumberAt(figures, "workers", kUnknown), 0),
      FixedOrEmpty(NumberAt(figures, "samples_per_s", kUnknown), 1),
      std::isfinite(low) && std::isfinite(high)
          ? absl::StrCat(FixedOrEmpty(low, 1), " to ", FixedOrEmpty(high, 1))
          : "",
      FixedOrEmpty(NumberAt(figures, "efficiency", kUnknown), 2),
      FixedOrEmpty(exposed, 1),
      std::isfinite(exposed) && std::isfinite(busy) ? FixedOrEmpty(std::max(0.0, busy - exposed), 1) : ""};
}

// `rows`: the figures. The samples of a text are its tokens.
std::vector<std::string> Headings(const std::vector<const Json*>& rows) {
  const bool tokens = std::ranges::any_of(
      rows, [](const Json* row) { return std::isfinite(NumberAt(*row, "tokens_per_s", kUnknown)); });
  return {"strategy",
          "workers",
          tokens ? "tokens/s" : "samples/s",
          "95% interval",
          "scaling efficiency",
          "exposed communication (ms)",
          "hidden communication (ms)"};
}

std::string Latex(const std::string& text) {
  return absl::StrReplaceAll(text, {{"\\", "\\textbackslash{}"},
                                    {"%", "\\%"},
                                    {"_", "\\_"},
                                    {"&", "\\&"},
                                    {"#", "\\#"},
                                    {"$", "\\$"},
                                    {"{", "\\{"},
                                    {"}", "\\}"}});
}

std::string MarkdownTable(const std::vector<std::string>& headings,
                          const std::vector<std::vector<std::string>>& rows) {
  std::string text = absl::StrCat("| ", absl::StrJoin(headings, " | "), " |\n|");
  for (size_t i = 0; i < headings.size(); ++i) text += "---|";
  text += "\n";
  for (const auto& row : rows) absl::StrAppend(&text, "| ", absl::StrJoin(row, " | "), " |\n");
  return text;
}

std::string LatexTable(const std::vector<std::string>& headings,
                       const std::vector<std::vector<std::string>>& rows) {
  const auto line = [](const std::vector<std::string>& cells) {
    std::vector<std::string> escaped;
    for (const std::string& cell : cells) escaped.push_back(Latex(cell));
    return absl::StrCat(absl::StrJoin(escaped, " & "), " \\\\\n");
  };
  std::string text = absl::StrCat("\\begin{tabular}{l", std::string(headings.size() - 1, 'r'), "}\n\\hline\n",
                                  line(headings), "\\hline\n");
  for (const auto& row : rows) text += line(row);
  return absl::StrCat(text, "\\hline\n\\end{tabular}\n");
}

std::string BibTex(const Json& manifest) {
  const std::string revision = TextAt(FieldAt(manifest, "versions"), "revision");
  const std::string started = TextAt(manifest, "started_utc");
  return absl::StrCat(
      "@software{psring,\n  author  = {{The psring authors}},\n",
      "  title   = {psring: parameter servers and all-reduce compared in one trainer},\n", "  version = {",
      Latex(TextAt(FieldAt(manifest, "versions"), "psring")), "},\n",
      started.size() >= 4 ? absl::StrCat("  year    = {", Latex(started.substr(0, 4)), "},\n") : "",
      revision.empty() ? "" : absl::StrCat("  note    = {revision ", Latex(revision), "},\n"), "}\n");
}

// The values of a column that differ, in their order.
std::string Different(const std::vector<const Json*>& figures, const char* column, bool number) {
  std::vector<std::string> values;
  for (const Json* row : figures) {
    const double value = NumberAt(*row, column, kUnknown);
    std::string text = !number                ? TextAt(*row, column)
                       : std::isfinite(value) ? absl::StrFormat("%g", value)
                                              : "";
    if (!text.empty() && std::ranges::find(values, text) == values.end()) values.push_back(std::move(text));
  }
  return absl::StrJoin(values, ", ");
}

std::string Methods(const Json& manifest, const std::vector<const Json*>& rows) {
  const Json &versions = FieldAt(manifest, "versions"), &machine = FieldAt(manifest, "machine");
  const Json &link = FieldAt(manifest, "link"), &cost = FieldAt(manifest, "cost");
  std::string text = absl::StrFormat(
      "We ran %s with %s workers in psring %s (revision %s) on one machine: %s, %.0f cores, %.0f MB of "
      "memory, %s, Linux %s. ",
      Different(rows, "strategy", false), Different(rows, "workers", true), TextAt(versions, "psring"),
      TextAt(versions, "revision"), TextAt(machine, "cpu"), NumberAt(machine, "cores", 0),
      NumberAt(machine, "memory_mb", 0), TextAt(machine, "system"), TextAt(machine, "kernel"));
  const double mbps = NumberAt(link, "mbps", kUnknown);
  text += std::isfinite(mbps)
              ? absl::StrFormat("Every worker had its own link of %g Mbit/s (%s), with %g ms of latency. ",
                                mbps, TextAt(link, "shaping"), NumberAt(link, "latency_ms", 0))
              : "All processes shared the machine's loopback. ";
  absl::StrAppend(&text, "Model: ", Different(rows, "model", false), " with ",
                  Different(rows, "parameters", true), " parameters; batch ",
                  Different(rows, "batch_per_worker", true), " per worker. ");
  if (const double rounds = NumberAt(cost, "rounds_done", 0); rounds > 0) {
    absl::StrAppendFormat(&text,
                          "Each of %.0f rounds launched every configuration once, in random order, with %.0f "
                          "warm-up and %.0f measured steps. ",
                          rounds, NumberAt(cost, "warmup_steps", 0), NumberAt(cost, "steps", 0));
  }
  text += "Samples/s are geometric means over rounds, with 95% intervals by Student's t on logarithms. ";
  const auto is_valid = [](const Json* row) { return !row->contains("valid") || (*row)["valid"] != false; };
  const auto invalid = std::ranges::count_if(rows, std::not_fn(is_valid));
  text += invalid == 0 ? "All rows are valid: other programs used at most a third of the processors. "
                       : absl::StrFormat(
                             "%d of %d rows are not valid, because other programs used more than a third of "
                             "the processors, another psring ran or ranks shared a GPU. ",
                             invalid, rows.size());
  const std::string tried = Different(rows, "lr_tried", false);
  absl::StrAppend(&text, tried.empty() ? absl::StrCat("Learning rates: ", Different(rows, "lr", true),
                                                      "; no others were tried. ")
                                       : absl::StrCat("Learning rates tried: ", tried, ". "));
  const std::string basis = Different(rows, "basis", false);
  return absl::StrCat(text, "Basis of times: ", basis.empty() ? "measured" : basis,
                      "; efficiency and hidden communication are derived.\n");
}

}  // namespace

absl::StatusOr<std::string> CitationOf(const std::string& manifest_text, const std::string& summary_text) {
  const Json manifest = ParseUntrusted(manifest_text), summary = ParseUntrusted(summary_text);
  if (!manifest.is_object()) return absl::InvalidArgumentError("manifest.json is not a JSON object");
  if (!summary.is_array() || summary.empty() || summary.size() > kMaxRows) {
    return absl::InvalidArgumentError("summary.json contains no rows of a comparison or training");
  }
  std::vector<const Json*> rows;
  std::vector<std::vector<std::string>> table;
  for (const Json& row : summary) {
    const Json& figures = FieldAt(row, "figures");
    if (!figures.is_object() || TextAt(figures, "strategy").empty()) {
      return absl::InvalidArgumentError("summary.json contains no rows of a comparison or training");
    }
    rows.push_back(&figures);
    table.push_back(CellsOf(figures));
  }
  return absl::StrCat("% BibTeX\n", BibTex(manifest), "\n% Methods\n", Methods(manifest, rows),
                      "\n% Markdown\n", MarkdownTable(Headings(rows), table), "\n% LaTeX\n",
                      LatexTable(Headings(rows), table));
}

absl::StatusOr<std::string> CiteRun(const std::string& folder) {
  PSRING_ASSIGN_OR_RETURN(const std::string manifest, ReadFile(folder + "/manifest.json"));
  PSRING_ASSIGN_OR_RETURN(const std::string summary, ReadFile(folder + "/summary.json"));
  absl::StatusOr<std::string> citation = CitationOf(manifest, summary);
  if (citation.ok()) return citation;
  return absl::Status(citation.status().code(), absl::StrCat(folder, ": ", citation.status().message()));
}

}  // namespace psring
