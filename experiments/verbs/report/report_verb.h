// psring report: writes the page of one or more existing runs, from their folders or their pages.
#pragma once

#include <string>
#include <vector>

#include "experiments/launch/progress.h"

namespace CLI {
class App;
}

namespace psring {

struct RawReportFlags {
  std::vector<std::string> runs;
  std::string out, kineto, grade;
  bool cite = false, pack = false;
};

CLI::App* AddReport(CLI::App& app, RawReportFlags& raw);

// Returns the exit code. Inputs that are not runs are reported on stderr and skipped; runs that cannot be
// pooled are reported and shown without being pooled.
int RunReport(const RawReportFlags& raw, Display& display);

}  // namespace psring
