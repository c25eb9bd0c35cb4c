// psring bench: collectives of every backend, compared with each other and with the machine's limits. Its
// flags are nccl-tests' where those exist, with their letters and meanings.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "experiments/bench/plan.h"
#include "experiments/processes/interrupt.h"
#include "experiments/processes/progress.h"
#include "experiments/texts/phrase.h"

namespace CLI {
class App;
}

namespace psring {

struct BenchFlags {
  BenchRequest request;
  std::string out;        // empty: runs/<UTC time>-bench
  std::string json_file;  // empty: none
  std::string profile;    // file for the machine's profile; empty: none
  bool dry_run = false;
  Language language = Language::kEnglish;
  std::vector<std::string> command_line;
};

// The flags as parsed; `flags` holds those that are used as they are.
struct RawBenchFlags {
  BenchFlags flags;
  std::string min_bytes, max_bytes, step_bytes, step_factor, sizes;
  std::string collectives, backends, algorithms, transports, buffers, workers, servers, types, ops;
  std::string language = "en";
  bool no_pin = false;
};

CLI::App* AddBench(CLI::App& app, RawBenchFlags& raw);

// InvalidArgument in one line.
absl::StatusOr<BenchFlags> UnderstandBench(const RawBenchFlags& raw,
                                           const std::vector<std::string>& command_line);

// Returns the exit code: 0, 2 for bad input (nothing is started then), 1 for a failure (no figure is printed
// then).
int RunBench(const BenchFlags& flags, const Interrupt& interrupt, Display& display);

}  // namespace psring
