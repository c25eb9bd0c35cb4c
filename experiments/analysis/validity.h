// Whether the times that the verdict uses can be trusted: one line below the verdict, on the terminal and on
// the page. Pure.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "experiments/analysis/summarise.h"

namespace psring {

struct Validity {
  const char* state = "";  // "valid", "limited", "simulated" or "invalid"
  std::string title;       // "Valid with limits."
  std::string why;         // one or more sentences

  std::string Text() const;  // "Valid with limits. One round: no intervals."
};

// About the rows of RowsOfVerdict, or all if there are none; other rows that are not valid are named
// separately. `cores`: of all machines; empty: the rows are the records of one launch, which do not say where
// it ran. Empty: no rows.
std::optional<Validity> ValidityOf(const std::vector<SummaryRow>& rows, std::optional<int> cores);

// "mlp, 7.45 MB, 1, 2, 4 workers, 1 Gbit/s, valid, 5 rounds": what was run, in one line. Empty: no rows.
std::string SettingsText(const std::vector<SummaryRow>& rows, std::optional<int> cores);

}  // namespace psring
