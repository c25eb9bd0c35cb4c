// Formats the summary as tables. Pure.
#pragma once

#include <string>
#include <vector>

#include "experiments/analysis/summarise.h"

namespace psring {

// AboveTable, then one line per row, grouped by number of workers; below a row with ClassesOf
// (row_queries.h), a line for each class of its workers. Below the headings, a line marks each column as m
// (measured), d (derived) or s (simulated). A legend follows. Empty columns are omitted. At most 120 columns
// without pipelines, and the wires.
std::string Table(const std::vector<SummaryRow>& rows);

// AboveTable and the main columns, with the marks in words: samples/s and its interval, scaling efficiency,
// exposed and hidden communication, test accuracy; the bubble of pipelines, and their steps if they are cut
// in several places; and the wires if rows differ in them. 80 columns, without the wires, for strategies with
// short names.
std::string ShortTable(const std::vector<SummaryRow>& rows);

// What was trained: the model with its size, and the samples of a step. Empty without rows.
std::vector<std::string> AboveTable(const std::vector<SummaryRow>& rows);

// What layouts are, and with `has_stages` bubbles: part of the legend if a replica has several ranks.
std::string LayoutsText(bool has_stages);

// The parts of Table, for the page. One cell per line.
struct TableColumn {
  std::string first, second;  // the heading's lines; "wor-" and "kers" are one word
  std::string mark;           // of PartsOfTable: "m", "d", "s" or empty
  std::vector<std::string> cells;
};
struct TableParts {
  std::vector<std::string> above;  // AboveTable
  std::vector<TableColumn> columns;
  std::vector<size_t> rows;  // by line: its row
  std::vector<std::string> legend;
};
TableParts PartsOfTable(const std::vector<SummaryRow>& rows);

// Of float32 gradients, as text without the unit: 1863690 -> "7.45".
std::string MegabytesOf(int64_t parameters);

// 14551.2 -> "14,551".
std::string WithThousands(double value);

}  // namespace psring
