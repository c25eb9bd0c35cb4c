// The table of strategies (registry.cc) and what their makers receive.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/parameters.h"
#include "common/device/device.h"
#include "common/measure/trace.h"
#include "common/ops/optimizer.h"
#include "trainer/strategies/capabilities.h"
#include "trainer/strategies/row_strategy.h"

namespace psring {

class Ops;
class ProcessGroup;
class PsClient;
struct ServerJob;

// How summed gradients change weights.
struct UpdateRule {
  OptimizerConfig optimizer;
  LrSchedule schedule;
  double clip_norm = 0;  // bound on the norm of the mean gradient over all parameters; 0: not clipped
};

// For strategies with parameter servers.
struct ServerUse {
  PsClient* client = nullptr;    // null: another rank of this machine has it (local_aggregation.h)
  std::string consistency;       // WaitingRule: "sync", "ssp:2"
  bool asynchronous = false;     // StrategyRow::asynchronous
  bool drops_gradients = false;  // StrategyRow::drops_gradients
  bool deterministic = false;
  bool serial = false;
  bool staleness_lr = false;  // asynchronous: the learning rate is divided by the staleness
  // Synchronous servers that restart after a failure: the interval in steps of the residuals that are kept to
  // go back to; 0: servers do not restart.
  int64_t kept_every = 0;
  absl::Duration timeout = absl::Seconds(60);
  std::function<void(const std::string& note)> on_note = [](const std::string&) {};
};

// What a strategy is made from. Borrowed; outlives the strategy.
struct StrategyContext {
  int rank = 0;
  int world_size = 1;
  Device& device;
  Ops& ops;         // for the compute thread
  Stream& compute;  // the stream of forward and backward
  Trace& trace;
  int threads = 1;  // for Ops of the strategy's own
  // Of a model that has only tables: none, or CountingBucket.
  std::vector<Bucket> buckets;
  std::vector<Table> tables;  // whose rows are synchronized by a RowStrategy
  uint64_t seed = 1;          // of their initial values
  UpdateRule update;
  DType wire = DType::kFloat32;   // of gradients in transit
  bool records_steps = false;     // with --cuda_graph, if the group permits it
  ProcessGroup* group = nullptr;  // null: no group needed, or a single rank
  ServerUse servers = {};
};

// For a model that has only tables, if the servers count pushes: one bucket of padding. Each step pushes it,
// so versions, staleness, waiting and dropped gradients are those of any other bucket.
inline Bucket CountingBucket() { return {.count = ParameterLayout::kAlignment}; }

// What a strategy communicates through; it may use both.
struct Needs {
  bool process_group = false;
  bool servers = false;
  bool none() const { return !process_group && !servers; }
};

// The number in "ps-ssp:2". No letter: the strategy has none.
struct StrategyNumber {
  const char* letter = "";
  const char* meaning = "";
  int least = 0;
  bool below_workers = false;
};

struct StrategyRow {
  const char* name;
  const char* summary;
  Needs needs = {};
  const char* backend = "";     // of its collectives or servers: "native", "gloo", "mpi", "nccl"; "": none
  const char* algorithm = "";   // of the process group, or the server's consistency without its number
  const char* transport = "";   // of the process group, whatever --transport says; "": the flag's
  bool synchronous = true;      // all ranks hold equal weights after every step
  bool single_process = false;  // rejects a world size above 1
  double default_momentum = .9;
  absl::StatusOr<Strategy> (*make)(const StrategyContext& context);
  // For a model with tables; null: the strategy cannot train such models.
  absl::StatusOr<std::unique_ptr<RowStrategy>> (*make_rows)(const StrategyContext& context) = nullptr;
  StrategyNumber number = {};
  bool replicates = false;       // one process with a replica of the model on each of several devices
  bool shares_steps = false;     // workers take their steps from a common budget
  bool drops_gradients = false;  // those of the slowest workers of a step
  // Separated by commas: names that are accepted for this strategy; its names in other programs; and names of
  // what psring does not have, to which this strategy is nearest. Errors suggest it for the latter two.
  const char* aliases = "";
  const char* also_called = "";
  const char* resembles = "";

  bool has_number() const { return *number.letter != 0; }
  // The servers have all parameters.
  bool has_parameters_on_servers() const { return needs.servers && !needs.process_group; }
  // The servers have only the rows of tables; the group synchronizes the other parameters.
  bool has_only_rows_on_servers() const { return needs.servers && needs.process_group; }
  // The servers count the pushes of each worker, to know what is late.
  bool counts_pushes() const { return has_parameters_on_servers() && (!synchronous || drops_gradients); }
  // Each push to a server is an update of its own.
  bool asynchronous() const { return needs.servers && !synchronous; }
};
const std::vector<StrategyRow>& Strategies();

// The row of a name as users give it: "ring", "ps-ssp:2". NotFound lists all names and the nearest;
// InvalidArgument: a number is missing, too small, or not accepted.
absl::StatusOr<const StrategyRow*> FindStrategy(const std::string& name);
// `name` with an alias replaced by the row's name: "ring" for "allreduce". Unknown names are returned as
// given.
std::string CanonicalStrategy(const std::string& name);
// The number in `name`, which has a row; 0: it has none.
int NumberOf(const std::string& name);
// The row's algorithm with the name's number: "sync", "ssp:2".
std::string AlgorithmOf(const StrategyRow& row, const std::string& name);

// none.cc: no communication; every rank applies its own gradient.
absl::StatusOr<Strategy> MakeNone(const StrategyContext& context);

// local_rows.cc: every rank applies its own gradient to its tables.
absl::StatusOr<std::unique_ptr<RowStrategy>> MakeLocalRows(const StrategyContext& context);

// server_rows.cc: tables are on the servers. The strategy of the other parameters joins the servers.
absl::StatusOr<std::unique_ptr<RowStrategy>> MakeServerRows(const StrategyContext& context);
// The same, but the servers have nothing except the tables.
absl::StatusOr<std::unique_ptr<RowStrategy>> MakeOnlyRowsOnServers(const StrategyContext& context);

// parameter_server.cc: the servers sum and update.
absl::StatusOr<Strategy> MakeParameterServer(const StrategyContext& context);
// What servers that have all parameters must know, if the job begins with step 0.
ServerJob JobOf(const StrategyContext& context);

}  // namespace psring
