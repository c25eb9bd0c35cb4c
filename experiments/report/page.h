// The report: one self-contained HTML file, made from page/ and D3, which CMake embeds in the program.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "experiments/pool/pool.h"
#include "experiments/report/run_data.h"
#include "experiments/texts/phrase.h"

namespace psring {

// `language`: the language that the page shows first. `pool`: PoolRuns of `runs`, shown if it has several
// machines. Pure and deterministic.
std::string ReportPage(const std::vector<RunData>& runs, Language language, const Pool& pool = {});

// Writes FOLDER/report.html at the end of a run. `language`: the language that the page shows first.
absl::Status WriteRunReport(const std::string& folder, Language language);

// `json` with <, >, & and JavaScript's two line separators as \u escapes, so that it cannot end a script
// element or start a comment. Values do not change.
std::string ForScriptElement(const std::string& json);

}  // namespace psring
