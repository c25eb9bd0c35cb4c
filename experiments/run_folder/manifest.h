// manifest.json: what is needed to repeat a run, and the machine that it ran on.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "experiments/design/plan.h"
#include "experiments/machine/machine.h"
#include "experiments/machine/network_report.h"
#include "experiments/run_folder/recorded_run.h"
#include "experiments/virtual_cluster/link.h"
#include "trainer/strategies/table/cost_model.h"

namespace psring {

struct Manifest {
  std::string run_id, verb;
  std::vector<std::string> command_line;
  std::string started_utc;
  Machine machine;
  std::optional<Wires> wires;
  LinkReport link;
  std::vector<std::string> machines;     // of --nnodes, "HOST at ADDRESS"; empty: one machine
  std::optional<NetworkReport> network;  // between them
  Plan plan;
  TrainingOptions disturbances;  // only --straggler and --jitter_ms are used
  Provenance provenance;
  int rounds_done = 0;
  std::vector<std::string> trainings_done;  // of the accuracy part, by record folder
  double wall_s = 0;                        // 0: not finished
  double earlier_s = 0;                     // part of wall_s: before the run was resumed
  std::string ended;                        // why the run stopped early; empty: it did not
  std::string bench;                        // a benchmark's plan, as JSON; empty: it is none

  bool finished() const { return wall_s > 0 && ended.empty(); }
};
std::string ManifestJson(const Manifest& manifest);

}  // namespace psring
