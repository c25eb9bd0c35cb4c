// The report: one self-contained HTML file, made from page/ and D3, which CMake embeds in the program.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "experiments/page/run_data.h"
#include "experiments/pool/pool.h"

namespace psring {

// The page opens in the current language. `pool`: PoolRuns of `runs`, shown if it has several machines or
// runs side by side. Deterministic.
std::string ReportPage(const std::vector<RunData>& runs, const Pool& pool = {});

// Writes FOLDER/report.html at the end of a run.
absl::Status WriteRunReport(const std::string& folder);

// `json` with <, >, & and JavaScript's two line separators as \u escapes, so that it cannot end a script
// element or start a comment. Values do not change.
std::string ForScriptElement(const std::string& json);

}  // namespace psring
