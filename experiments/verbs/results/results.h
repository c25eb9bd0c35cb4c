// psring results: lists the runs in a folder.
#pragma once

#include <string>

#include "experiments/launch/progress.h"

namespace CLI {
class App;
}

namespace psring {

struct RawResultsFlags {
  std::string folder = "runs";
};

CLI::App* AddResults(CLI::App& app, RawResultsFlags& raw);

// Prints two lines for each run, the latest first: when it began, its folder, verb and settings; then its
// verdict, or that it did not finish. Runs without settings, such as benchmarks, show their flags. Returns
// the exit code: 2 if `raw.folder` is no folder or has no run.
int RunResults(const RawResultsFlags& raw, Display& display);

}  // namespace psring
