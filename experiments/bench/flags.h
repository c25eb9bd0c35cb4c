// The flags of `psring bench`: nccl-tests' where it has them, with its letters and meanings.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "experiments/bench/plan.h"
#include "experiments/texts/phrase.h"

namespace CLI {
class App;
}

namespace psring {

// As they are given, before they are understood.
struct RawBenchFlags {
  std::string min_bytes, max_bytes, step_bytes, step_factor, sizes;
  std::string collectives, backends, algorithms, transports, buffers, workers, servers, types, ops;
  std::string segment, sockets, ranks_per_node, out, json_file, profile, language = "en";
  int root = 0, iterations = 20, aggregated = 0, warmup = 5, checks = 1, average = 3, rounds = 0;
  double timeout_s = 60;
  std::string device = "cpu";
  bool limits = false, no_pin = false, dry_run = false, oversubscribe = false;
};

struct BenchFlags {
  BenchRequest request;
  std::string out;        // empty: runs/<UTC time>-bench
  std::string json_file;  // empty: none
  std::string profile;    // file for the machine's profile; empty: none
  bool dry_run = false;
  Language language = Language::kEnglish;
  std::vector<std::string> command_line;
};

CLI::App* AddBench(CLI::App& app, RawBenchFlags& raw);

// InvalidArgument in one line.
absl::StatusOr<BenchFlags> UnderstandBench(const RawBenchFlags& raw,
                                           const std::vector<std::string>& command_line);

}  // namespace psring
