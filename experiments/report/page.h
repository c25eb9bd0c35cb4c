// The report: one HTML file that needs nothing else. Its parts are files of this folder and D3, put into the
// program by CMake.
#pragma once

#include <string>
#include <vector>

#include "experiments/report/run_data.h"
#include "experiments/texts/phrase.h"

namespace psring {

// `language`: what the page opens with. Pure, and the same bytes for the same input.
std::string ReportPage(const std::vector<RunData>& runs, Language language);

// `json` so that no text in it ends a script element or begins a comment: <, >, & and the two line separators
// of JavaScript become \u escapes, which change no value.
std::string ForScriptElement(const std::string& json);

}  // namespace psring
