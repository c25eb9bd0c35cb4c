// The trainer's strategies, models and data, as `trainer --describe` prints them: psring keeps no list, so a
// new strategy or model appears in every verb.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace psring {

struct StrategyInfo {
  std::string name, summary;                      // with its number: "ps-ssp:2"; in the catalog without
  bool uses_group = false, uses_servers = false;  // what it communicates through
  std::string backend;                            // whose collectives or server; empty: none
  std::string algorithm;                          // of the process group, or the server's consistency
  bool synchronous = false;
  bool single_process = false;
  bool replicates = false;    // its one process has a replica for each worker
  bool shares_steps = false;  // workers take their steps from one common number
  bool drops_gradients = false;
  double default_momentum = 0;
  // The number of "ps-ssp:2". No letter: the strategy takes none.
  std::string number_letter, number_meaning;
  int number_least = 0;
  bool number_below_workers = false;
  int number = 0;

  bool communicates() const { return uses_group || uses_servers; }
  // Between processes, or between the replicas of one.
  bool moves_gradients() const { return communicates() || replicates; }
};

struct ModelInfo {
  std::string name, summary;
  double default_lr = 0;        // synchronous modes
  double default_async_lr = 0;  // asynchronous modes
  int64_t parameters = 0;
};

struct Catalog {
  std::vector<StrategyInfo> strategies;
  std::vector<ModelInfo> models;
  std::vector<std::string> data;
};

absl::StatusOr<Catalog> CatalogFromJson(const std::string& text);

// NotFound names the nearest, or all: "unknown strategy 'rign'; did you mean 'ring'?"
// InvalidArgument: a number that is missing, too small, too large, or not taken. The returned name and
// algorithm include the number.
absl::StatusOr<StrategyInfo> FindStrategy(const Catalog& catalog, const std::string& name);
absl::StatusOr<ModelInfo> FindModel(const Catalog& catalog, const std::string& name);
absl::Status RequireData(const Catalog& catalog, const std::string& name);

// "ps-ssp" of "ps-ssp:2": the name of the row.
std::string BaseName(const std::string& strategy);

// True for strategies whose pushes are applied as they arrive.
bool IsAsynchronousServer(const StrategyInfo& strategy);

}  // namespace psring
