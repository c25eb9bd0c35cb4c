// Formats the summary as a table of at most 120 columns. Pure.
#pragma once

#include <string>
#include <vector>

#include "experiments/summary/summarise.h"
#include "experiments/texts/phrase.h"

namespace psring {

// One line per row, grouped by number of workers. Below the headings, a line marks each column as m
// (measured), d (derived) or s (simulated). A legend follows. Empty columns are omitted.
std::string Table(const std::vector<SummaryRow>& rows, Language language = Language::kEnglish);

// The table's parts, for the page. One cell per row; the mark is "m", "d", "s" or empty.
struct TableColumn {
  std::string first, second;  // the heading's lines; "wor-" and "kers" are one word
  std::string mark;
  std::vector<std::string> cells;
};
struct TableParts {
  std::vector<TableColumn> columns;
  std::vector<std::string> legend;
};
TableParts PartsOfTable(const std::vector<SummaryRow>& rows, Language language);

// 14551.2 -> "14,551".
std::string WithThousands(double value);

}  // namespace psring
