// psring report: makes the page of runs again.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "experiments/processes/progress.h"
#include "experiments/texts/phrase.h"

namespace CLI {
class App;
}

namespace psring {

struct RawReportFlags {
  std::vector<std::string> runs;
  std::string out, language = "en", export_to;
};

CLI::App* AddReport(CLI::App& app, RawReportFlags& raw);

// Returns the exit code. A folder of several that is no run is said on stderr, and the others are shown.
int RunReport(const RawReportFlags& raw, Display& display);

// Writes FOLDER/report.html at the end of a run; it opens in `language`.
absl::Status WriteRunReport(const std::string& folder, Language language);

}  // namespace psring
