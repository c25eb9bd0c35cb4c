// Formats the files of a run folder from rows and records. Pure.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "common/measure/records.h"
#include "experiments/analysis/summarise.h"

namespace psring {

// Identifies a launch of a configuration in runs.csv, steps.jsonl and curves.csv.
struct RunLabel {
  std::string run_id;
  std::string part;  // "cost", "accuracy" or "training"
  int repeat = 0;    // round or training, from 0
  uint64_t seed = 1;
  std::string records = {};  // its record folder, relative to the run folder
};

// `rows` is not empty, and all rows have the same columns.
std::string CellsCsv(const std::vector<std::vector<Cell>>& rows);
std::string CellsJson(const std::vector<std::vector<Cell>>& rows);

std::string SummaryCsv(const std::vector<SummaryRow>& rows);
// An array of rows: {"figures": {column: value}, "basis": {column: basis}, "cost_against_none_ms": ...}.
std::string SummaryJson(const std::vector<SummaryRow>& rows);

// The printed table for the page, in both languages:
// {en: {columns: [{heading, mark}], rows: [[cell]], legend: [sentence], verdict: text, facts: [[label,
// text]],
//       settings: text, validity: {state, title, why}}, zh: likewise,
//  recommended: [strategy], verdict_rows: [place]}
// The first column names the row, the last one is its note. legend: what was trained, then the table's.
// verdict, facts: VerdictOf, absent if empty. settings, validity: SettingsText and ValidityOf (of `cores`),
// absent without rows. recommended: Recommended. verdict_rows: RowsOfVerdict.
std::string TableJson(const std::vector<SummaryRow>& rows, const std::optional<Wires>& wires,
                      std::optional<int> cores);

std::string RunsCsvHeader();
std::string RunsCsvLine(const RunLabel& label, const Configuration& configuration, const RunFigures& figures);

std::string CurvesCsvHeader();
std::string CurvesCsvLines(const RunLabel& label, const Configuration& configuration,
                           const std::vector<CurvePoint>& curve);

// One StepRecord per line, after its launch and, if its workers wait for all, the derived wait_ms.
std::string StepsJsonl(const RunLabel& label, const Configuration& configuration, const RunRecords& records);

// One line of DdpFigures per rank, after its launch, rank and requested bucket size.
std::string DdpJsonl(const RunLabel& label, const Configuration& configuration, const RunRecords& records);

}  // namespace psring
