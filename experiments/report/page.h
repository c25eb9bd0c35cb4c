// The report: one self-contained HTML file, made of the files in page/ and D3, which CMake embeds.
#pragma once

#include <string>
#include <vector>

#include "experiments/report/run_data.h"
#include "experiments/texts/phrase.h"

namespace psring {

// `language`: in which the page opens. Pure and deterministic.
std::string ReportPage(const std::vector<RunData>& runs, Language language);

// `json` with <, >, & and JavaScript's two line separators as \u escapes, so that it cannot end a script
// element or start a comment. Values do not change.
std::string ForScriptElement(const std::string& json);

}  // namespace psring
