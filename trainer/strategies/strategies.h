// How the strategies of the table (table/strategy_table.h) are made, and what from.
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
#include "trainer/strategies/table/shard_plan.h"
#include "trainer/strategies/table/strategy_table.h"

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
  // Of a pipeline's rank: the sum over its stages of their sums of squares, called once per step by all of
  // them; and ranges, increasing, that are in another rank's sum. Null: this rank has the whole model.
  std::function<absl::StatusOr<double>(double own)> sum_over_stages = nullptr;
  std::vector<ParameterRange> counted_elsewhere = {};
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
  // With --dp_shard: parts of `group`, the ranks that have one copy of sharded state together, and those with
  // the same shard. Null: all ranks have one copy.
  ProcessGroup *shard_group = nullptr, *copies = nullptr;
  ServerUse servers = {};
  int number = 0;  // StrategyRow::number
  // Of UnitMemory: where the gradient and the weights are, and how often each bucket is reduced in a step:
  // once for each micro-batch.
  ShardPlan shards = {};
  int reductions = 1;
};

// For a model that has only tables, if the servers count pushes: one bucket of padding. Each step pushes it,
// so versions, staleness, waiting and dropped gradients are those of any other bucket.
inline Bucket CountingBucket() { return {.count = ParameterLayout::kAlignment}; }

// Make the strategy of `row`, and for a model with tables, if TrainsTables, how their rows are synchronized.
absl::StatusOr<Strategy> Implement(const StrategyRow& row, const StrategyContext& context);
absl::StatusOr<std::unique_ptr<RowStrategy>> ImplementRows(const StrategyRow& row,
                                                           const StrategyContext& context);
bool TrainsTables(const StrategyRow& row);

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
