// The texts of a run folder's files, from rows and records. Pure.
#pragma once

#include <string>
#include <vector>

#include "common/measure/records.h"
#include "experiments/summary/summarise.h"

namespace psring {

// A launch, as runs.csv, steps.jsonl and curves.csv name it.
struct RunLabel {
  std::string run_id;
  std::string part;  // "cost" or "accuracy"
  std::string strategy;
  int workers = 1;
  int repeat = 0;  // round or training, from 0
  uint64_t seed = 1;
  std::string records;  // its record folder, from the run folder
  int servers = 0;
};

// Rows of cells that have the same columns, of which there is at least one row.
std::string CellsCsv(const std::vector<std::vector<Cell>>& rows);
std::string CellsJson(const std::vector<std::vector<Cell>>& rows);

std::string SummaryCsv(const std::vector<SummaryRow>& rows);
// An array of rows: {"figures": {column: value}, "basis": {column: basis}, "cost_against_none_ms": ...}.
std::string SummaryJson(const std::vector<SummaryRow>& rows);

// The printed table for the page, in both languages:
// {en: {columns: [{heading, mark}], rows: [[cell]], legend: [sentence]}, zh: likewise}
// The first column names the row, the last one is its note.
std::string TableJson(const std::vector<SummaryRow>& rows);

std::string RunsCsvHeader();
std::string RunsCsvLine(const RunLabel& label, const RunFigures& figures);

std::string CurvesCsvHeader();
std::string CurvesCsvLines(const RunLabel& label, const std::vector<CurvePoint>& curve);

// A StepRecord a line, with the launch it belongs to and its derived wait_ms in front.
std::string StepsJsonl(const RunLabel& label, const RunRecords& records, bool synchronous);

// What DDP logs, a line a rank: DdpFigures with the launch they belong to, the rank and the bucket size asked
// for in front.
std::string DdpJsonl(const RunLabel& label, double bucket_mb, const RunRecords& records);

}  // namespace psring
