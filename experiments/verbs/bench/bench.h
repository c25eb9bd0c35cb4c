// psring bench: compares the collectives of all backends with each other and with the machine's limits. Flags
// that nccl-tests has, too, have the same letters and meanings.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "experiments/launch/interrupt.h"
#include "experiments/launch/nodes.h"
#include "experiments/launch/progress.h"
#include "experiments/verbs/bench/plan.h"

namespace CLI {
class App;
}

namespace psring {

struct BenchFlags {
  BenchRequest request;
  NodesOptions nodes;
  std::string out;        // empty: runs/<UTC time>-bench
  std::string json_file;  // empty: none
  bool dry_run = false;
  std::vector<std::string> command_line;
};

// The flags as parsed. `flags` holds those that need no conversion.
struct RawBenchFlags {
  BenchFlags flags;
  std::string min_bytes, max_bytes, step_bytes, step_factor, sizes;
  std::string collectives, backends, algorithms, transports, buffers, workers, servers, server_wires, types,
      ops;
  std::string of_threads;  // nccl-tests' -g and -t, which are rejected
  bool no_pin = false;
  absl::StatusOr<NodeLauncher> launcher = NodeLauncher();  // of this process; used with --nnodes
};

CLI::App* AddBench(CLI::App& app, RawBenchFlags& raw);

// InvalidArgument, with a message of one line.
absl::StatusOr<BenchFlags> UnderstandBench(const RawBenchFlags& raw,
                                           const std::vector<std::string>& command_line);

// Returns the exit code: 0; 2 for bad input, before anything is started; 1 for a failure, without printing
// figures, or after printing them if they are below --require_busbw.
int RunBench(const BenchFlags& flags, const Interrupt& interrupt, Display& display);

}  // namespace psring
