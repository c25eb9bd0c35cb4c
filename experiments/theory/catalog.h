// The trainer's strategies, models and data, as `trainer --describe` prints them. psring keeps no list of its
// own, so a new strategy or model appears in every verb.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace psring {

struct StrategyInfo {
  std::string name, summary;                      // includes the number ("ps-ssp:2"), except in the catalog
  bool uses_group = false, uses_servers = false;  // means of communication
  std::string aliases;                            // accepted names, separated by commas
  std::string also_called, resembles;             // names in other programs, likewise (KnownName)
  std::string backend;                            // implements the collectives or the server; empty: none
  std::string algorithm;                          // of the process group, or the server's consistency
  bool synchronous = false;
  bool single_process = false;
  bool replicates = false;    // its one process has a replica for each worker
  bool shares_steps = false;  // workers take their steps from one shared total
  bool drops_gradients = false;
  double default_momentum = 0;
  // The number in "ps-ssp:2". Empty letter: the strategy takes none.
  std::string number_letter, number_meaning;
  int number_least = 0;
  bool number_below_workers = false;
  int number = 0;

  bool communicates() const { return uses_group || uses_servers; }
  // The servers have only the rows of tables; the group synchronizes the other parameters.
  bool has_only_rows_on_servers() const { return uses_group && uses_servers; }
  // Between processes, or between the replicas in one process.
  bool moves_gradients() const { return communicates() || replicates; }
};

struct ModelInfo {
  std::string name, summary;
  double default_lr = 0;        // synchronous modes
  double default_async_lr = 0;  // asynchronous modes
  int64_t parameters = 0;       // outside of tables
  bool has_tables = false;      // whose gradients are rows (trainer/tables.md)
};

struct Catalog {
  std::vector<StrategyInfo> strategies;
  std::vector<ModelInfo> models;
  std::vector<std::string> data;
};

absl::StatusOr<Catalog> CatalogFromJson(const std::string& text);

// Finds a strategy by its name or an alias. NotFound suggests the strategy with that other name or the
// closest name, and lists all: "unknown strategy 'rign'; did you mean 'ring'? Use one of none, single, ..."
// `given`: the names beside which `name` is given; they are not suggested.
// For a schedule without a strategy it names the verbs that know it. InvalidArgument: the number is missing,
// too small, too large, or not allowed. The returned name and algorithm include the number.
absl::StatusOr<StrategyInfo> FindStrategy(const Catalog& catalog, const std::string& name,
                                          const std::vector<std::string>& given = {});
// Replaces aliases in --strategies by the strategies' names; unknown names stay. InvalidArgument: two names
// are of the same strategy.
absl::Status UseCatalogNames(const Catalog& catalog, std::vector<std::string>& names);
absl::StatusOr<ModelInfo> FindModel(const Catalog& catalog, const std::string& name);
absl::Status RequireData(const Catalog& catalog, const std::string& name);

// "ps-ssp" for "ps-ssp:2": the name in the catalog.
std::string BaseName(const std::string& strategy);

// True for strategies whose pushes are applied as they arrive.
bool IsAsynchronousServer(const StrategyInfo& strategy);
// Whether --local_aggregation applies: one update from all workers' gradients (ps-sync).
bool CanAggregate(const StrategyInfo& strategy);

}  // namespace psring
