// psring rerun: does a run again from its manifest.
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

// Says what is typed again and what is not as it was, then becomes that run: where all is well this does not
// return. Else the exit code, after one line.
int RunRerun(const RawRerunFlags& raw, const Interrupt& interrupt, Display& display);

}  // namespace psring
