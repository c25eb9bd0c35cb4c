// psring report: writes the page of one or more existing runs, from their folders or their pages.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "experiments/processes/progress.h"
#include "experiments/texts/phrase.h"
#include "experiments/theory/catalog.h"

namespace CLI {
class App;
}

namespace psring {

struct RawReportFlags {
  std::vector<std::string> runs;
  std::string out, language = "en", kineto;
  bool cite = false, pack = false;
};

using MakeCatalog = std::function<absl::StatusOr<Catalog>()>;

CLI::App* AddReport(CLI::App& app, RawReportFlags& raw);

// Returns the exit code. Inputs that are not runs are reported on stderr and skipped; runs that cannot be
// pooled are reported and shown without being pooled. `catalog` is called if a folder has the records of one
// launch.
int RunReport(const RawReportFlags& raw, const MakeCatalog& catalog, Display& display);

}  // namespace psring
