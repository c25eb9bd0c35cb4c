// The strategies, one row each.
#include "trainer/strategies/table/strategy_table.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/text/suggestions.h"
#include "common/text/translate.h"
#include "ring_worker/schedules/schedule.h"
#include "trainer/strategies/table/cost_model.h"

namespace psring {
namespace {

StrategyRow AllReduce(const char* name, const char* summary, const char* backend, const char* algorithm,
                      int chart_place = -1) {
  StrategyRow row = AllReduceRow(algorithm);
  row.name = name;
  row.summary = summary;
  row.backend = backend;
  row.chart_place = chart_place;
  return row;
}

StrategyRow Hierarchical() {
  StrategyRow row = AllReduce("hierarchical",
                              "all-reduce within each machine, then between machines; hierarchical:G groups "
                              "G workers",
                              "native", "hierarchical");
  row.also_called = std::string("hierarchical-allreduce,two-level");
  row.number_letter = std::string("G");
  row.number_meaning = TrNoop("workers per machine");
  row.number_least = 1;
  row.number_optional = true;
  return row;
}

}  // namespace

StrategyRow AllReduceRow(const std::string& algorithm) {
  return {.name = algorithm,
          .uses_group = true,
          .backend = "native",
          .algorithm = algorithm,
          .scheme = &Scheme::kAllReduce,
          .implementation = "all-reduce"};
}

const StrategyTable& StrategyRows() {
  static const auto& rows = *new StrategyTable{
      {.name = "none",
       .summary = "no communication; replicas diverge: an upper bound on speed",
       .synchronous = false,
       .scheme = &Scheme::kNone,
       .chart_place = 7},
      {.name = "single",
       .summary = "one process: the reference for results",
       .single_process = true,
       .scheme = &Scheme::kNone,
       .chart_place = 3},
      {.name = "data-parallel",
       .summary = "PyTorch's DataParallel: one process; device 0 distributes to replicas, adds and updates",
       .also_called = "dataparallel,dp",
       .single_process = true,
       .replicates = true,
       .scheme = &Scheme::kNone,
       .implementation = "replicas"},
      AllReduce("star", "all-reduce through rank 0, which gathers, adds and sends back", "native", "star", 6),
      {.name = "ring",
       .summary = "ring all-reduce: scatter-reduce, then all-gather",
       .uses_group = true,
       .aliases = "allreduce,all-reduce",
       .also_called = "ddp,distributed-data-parallel,distributeddataparallel,ring-allreduce,horovod,hvd,"
                      "mirrored,mirroredstrategy,multiworkermirroredstrategy",
       .resembles = "megatron",
       .backend = "native",
       .algorithm = "ring",
       .scheme = &Scheme::kAllReduce,
       .implementation = "all-reduce",
       .chart_place = 0},
      {.name = "zero1",
       .summary = "ZeRO stage 1: each worker updates one shard of the weights and has its optimizer state",
       .uses_group = true,
       .also_called = "zero,zero-1,zero-stage-1,zeroredundancyoptimizer,distributed-optimizer,oss",
       .resembles = "deepspeed,fairscale",
       .backend = "native",
       .algorithm = "ring",
       .shards_updates = true,
       .scheme = &Scheme::kAllReduce,
       .step =
           {TrNoop("Each worker computes the gradient of its own samples."),
            TrNoop("As soon as backward has finished a bucket, a reduce-scatter gives each worker the sum of "
                   "one part of it, its shard."),
            TrNoop("Each worker updates the weights of its shard, and only it has the optimizer state for "
                   "them. So this is a parameter server without a server process, with one shard per "
                   "worker."),
            TrNoop("An all-gather sends all shards of the weights to all workers. It and the "
                   "reduce-scatter are the two halves of a ring all-reduce, and send as many bytes.")},
       .implementation = "shards"},
      {.name = "zero2",
       .summary = "ZeRO stage 2: each worker also has only its shard of the gradient",
       .uses_group = true,
       .also_called = "zero-2,zero-stage-2,shardedddp,sharded-ddp",
       .backend = "native",
       .algorithm = "ring",
       .shards_updates = true,
       .shards_gradients = true,
       .scheme = &Scheme::kAllReduce,
       .step =
           {TrNoop("Each worker computes the gradient of its own samples, unit by unit, in memory for two "
                   "units."),
            TrNoop(
                "As soon as backward has finished a unit, a reduce-scatter gives each worker the sum of its "
                "shard, and the memory of the unit's gradient is free for another."),
            TrNoop(
                "With M micro-batches there are M reduce-scatters, whose sums each worker adds up: (M+1)/2 "
                "times the bytes of a ring, which sends one gradient whatever M is."),
            TrNoop(
                "Each worker updates the weights of its shard, and an all-gather sends them to all, as with "
                "zero1.")},
       .implementation = "shards and units"},
      {.name = "fsdp",
       .summary = "ZeRO stage 3: of weights, gradient and optimizer state each worker has only its shard",
       .uses_group = true,
       .also_called = "fsdp2,fully-sharded,fullysharded,fullyshardeddataparallel,fully-sharded-data-parallel,"
                      "fully-shard,zero3,zero-3,zero-stage-3,sharded",
       .backend = "native",
       .algorithm = "ring",
       .shards_updates = true,
       .shards_gradients = true,
       .shards_weights = true,
       .scheme = &Scheme::kAllReduce,
       .step =
           {TrNoop(
                "Forward: before a unit, such as half a transformer block, is computed, an all-gather gives "
                "each worker its weights, while the unit before it is computed. At most two units are "
                "complete at a time."),
            TrNoop(
                "Backward, the last unit first: the weights are gathered again, unless --reshard never has "
                "kept them since forward."),
            TrNoop(
                "As soon as backward has finished a unit, a reduce-scatter gives each worker the sum of its "
                "shard of the gradient. With M micro-batches there are M of them."),
            TrNoop("Each worker updates its shard. Per micro-batch that is one reduce-scatter and two "
                   "all-gathers: 1.5 times the bytes of a ring, for 1/N of its memory.")},
       .implementation = "shards and units"},
      AllReduce("direct", "all-reduce in which every rank sums one shard, like servers on all workers",
                "native", "direct", 4),
      AllReduce("halving-doubling", "all-reduce between partners at doubling distance: few rounds", "native",
                "halving-doubling", 8),
      AllReduce("double-binary-tree", "all-reduce up and down two trees: few rounds, full speed", "native",
                "double-binary-tree", 9),
      Hierarchical(),
      AllReduce("gloo", "Gloo's ring all-reduce", "gloo", "ring"),
      AllReduce("mpi", "MPI's all-reduce, with the algorithm its tuner chooses; started by mpirun", "mpi",
                "default"),
      AllReduce("nccl", "NCCL's all-reduce between GPUs, with the algorithm its tuner chooses", "nccl",
                "default"),
      {.name = "nccl-tcp",
       .summary = "NCCL's all-reduce restricted to TCP sockets, to compare it with servers over TCP",
       .uses_group = true,
       .backend = "nccl",
       .algorithm = "default",
       .transport = "tcp",
       .scheme = &Scheme::kAllReduce,
       .implementation = "all-reduce"},
      {.name = "ps-sync",
       .summary = "parameter server, one update from all workers' gradients",
       .uses_servers = true,
       .aliases = "ps",
       .also_called = "parameter-server,byteps,ps-lite,pslite,dist-sync,bsp,sync-sgd,sync,synchronous",
       .backend = "native",
       .algorithm = "sync",
       .scheme = &Scheme::kServerSync,
       .implementation = "servers",
       .chart_place = 1},
      {.name = "ps-backup",
       .summary = "parameter server with B spare workers: the last B gradients of a step are dropped",
       .uses_servers = true,
       .also_called = "backup,backup-workers,sync-replicas,syncreplicas",
       .backend = "native",
       .algorithm = "backup",
       .drops_gradients = true,
       .number_letter = "B",
       .number_meaning = TrNoop("spare workers"),
       .number_below_workers = true,
       .implementation = "servers"},
      {.name = "ps-ssp",
       .summary = "parameter server, one update per gradient, no worker more than K steps ahead",
       .uses_servers = true,
       .also_called = "ssp,stale-synchronous,stale-synchronous-parallel,bounded-staleness,petuum",
       .backend = "native",
       .algorithm = "ssp",
       .synchronous = false,
       .default_momentum = 0,
       .number_letter = "K",
       .number_meaning = TrNoop("the most steps that a worker may be ahead"),
       .number_least = 1,
       .scheme = &Scheme::kServerAsync,
       .implementation = "servers"},
      // Momentum accumulates gradients that are N-1 updates late: 0.9 diverges where plain SGD converges.
      {.name = "ps-async",
       .summary = "parameter server, one update per gradient as it arrives",
       .uses_servers = true,
       .also_called = "async,asynchronous,asgd,async-sgd,hogwild,downpour,dist-async,parameterserverstrategy",
       .backend = "native",
       .algorithm = "async",
       .synchronous = false,
       .shares_steps = true,
       .default_momentum = 0,
       .scheme = &Scheme::kServerAsync,
       .implementation = "servers",
       .chart_place = 2},
      {.name = "hybrid",
       .summary = "models with tables: a ring for dense parameters, parameter servers for rows (Parallax)",
       .uses_group = true,
       .uses_servers = true,
       .also_called = "parallax",
       .backend = "native",
       .algorithm = "ring",
       .scheme = &Scheme::kAllReduce,
       .implementation = "all-reduce and rows on servers",
       .chart_place = 5},
  };
  return rows;
}

absl::StatusOr<StrategyRow> FindStrategy(const std::string& name, const std::vector<std::string>& given,
                                         const StrategyTable& rows) {
  constexpr int kMaxNumber = 1'000'000;
  const std::string word = BaseName(name);
  std::vector<KnownName> known;
  const StrategyRow* found = nullptr;
  for (const StrategyRow& row : rows) {
    if (row.name == word || IsOneOf(word, row.aliases)) found = &row;
    known.push_back({.name = row.display_name(),
                     .also_called = row.also_called,
                     .resembles = row.resembles,
                     .given = std::ranges::any_of(
                         given, [&](const std::string& other) { return BaseName(other) == row.name; })});
  }
  const ScheduleRow* const schedule = FindSchedule(name);
  if (found == nullptr && schedule != nullptr && schedule->offers(Collective::kAllReduce)) {
    return absl::NotFoundError(
        Tr("'$0' is a schedule that psring predict and psring explain know, but no strategy trains with it; "
           "use ring",
           name));
  }
  if (found == nullptr) return UnknownName(TrNoop("strategy"), name, known);
  StrategyRow row = *found;
  const bool has_number = word != name;
  if (!row.has_number()) {
    if (!has_number) return row;
    return absl::InvalidArgumentError(Tr("strategy '$0': $1 takes no number", name, row.name));
  }
  if (!has_number && row.number_optional) return row;
  if (!has_number || !absl::SimpleAtoi(name.substr(word.size() + 1), &row.number) ||
      row.number < row.number_least || row.number > kMaxNumber) {
    const std::string meaning = Tr(row.number_meaning);
    const std::string example = absl::StrCat(row.name, ":", std::max(1, row.number_least));
    return absl::InvalidArgumentError(
        has_number ? Tr("strategy '$0': $1 needs a whole number from $2 to $3 ($4: $5), as in $6", name,
                        row.display_name(), row.number_least, kMaxNumber, row.number_letter, meaning, example)
                   : Tr("strategy '$0': $1 needs a whole number from $2 ($3: $4), as in $5", name,
                        row.display_name(), row.number_least, row.number_letter, meaning, example));
  }
  absl::StrAppend(&row.name, ":", row.number);
  if (row.uses_servers || NeedsRanksPerNode(row.algorithm)) absl::StrAppend(&row.algorithm, ":", row.number);
  return row;
}

absl::Status CheckRanks(const StrategyRow& strategy, int workers) {
  if (!strategy.uses_group || strategy.number == 0 || FindSchedule(strategy.algorithm) == nullptr) {
    return absl::OkStatus();
  }
  return MakeSchedule(strategy.algorithm, Collective::kAllReduce, {.ranks = workers}).status();
}

std::string CanonicalStrategy(const std::string& name) {
  const absl::StatusOr<StrategyRow> row = FindStrategy(name);
  return row.ok() ? row->name : name;
}

absl::Status UseCanonicalStrategies(std::vector<std::string>& names) {
  for (auto name = names.begin(); name != names.end(); ++name) {
    *name = CanonicalStrategy(*name);
    if (std::find(names.begin(), name, *name) == name) continue;
    return absl::InvalidArgumentError(Tr("--strategies names $0 twice; name it once", *name));
  }
  return absl::OkStatus();
}

std::string BaseName(const std::string& strategy) { return strategy.substr(0, strategy.find(':')); }

}  // namespace psring
