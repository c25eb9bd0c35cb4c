// The summary as a table that fits 120 columns. Pure.
#pragma once

#include <string>
#include <vector>

#include "experiments/summary/summarise.h"
#include "experiments/texts/phrase.h"

namespace psring {

// A line a row, grouped by number of workers; under the names a line that marks each column m (measured) or d
// (derived), and below it the legend. Empty columns are left out.
std::string Table(const std::vector<SummaryRow>& rows, Language language = Language::kEnglish);

// The same in parts, for the page. A cell per row; the mark is "m", "d", "s" or empty.
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
