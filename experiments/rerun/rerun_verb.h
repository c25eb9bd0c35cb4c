// psring rerun: repeats a run from its manifest.
#pragma once

#include <string>

#include "experiments/processes/interrupt.h"
#include "experiments/processes/progress.h"

namespace CLI {
class App;
}

namespace psring {

struct RawRerunFlags {
  std::string run, out;
  bool dry_run = false, anyway = false;
};

CLI::App* AddRerun(CLI::App& app, RawRerunFlags& raw);

// Prints the command line and the differences, then replaces this process with the run, and so does not
// return. On errors, and with dry_run, returns the exit code; an error prints one line.
int RunRerun(const RawRerunFlags& raw, const CLI::App& app, const Interrupt& interrupt, Display& display);

}  // namespace psring
