// The strategies, one row each. `compare`, --help and the conformance test read this table.
#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/suggestions/suggestions.h"
#include "trainer/strategies/strategies.h"

namespace psring {

// all_reduce.cc: the group sums the gradients, and every rank makes the same update. A single rank needs no
// group.
absl::StatusOr<Strategy> MakeAllReduce(const StrategyContext& context);
// gathered_rows.cc: the group exchanges the rows that all ranks touched.
absl::StatusOr<std::unique_ptr<RowStrategy>> MakeGatheredRows(const StrategyContext& context);

// A strategy is one file with such a function, and one row.
const std::vector<StrategyRow>& Strategies() {
  static const std::vector<StrategyRow> strategies = {
      {.name = "none",
       .summary = "no communication; replicas diverge: an upper bound on speed",
       .synchronous = false,
       .make = MakeNone,
       .make_rows = MakeLocalRows},
      {.name = "single",
       .summary = "one process: the reference for results",
       .single_process = true,
       .make = MakeNone,
       .make_rows = MakeLocalRows},
      {.name = "dp",
       .summary = "PyTorch's DataParallel: one process; device 0 distributes to replicas, adds and updates",
       .single_process = true,
       .make = MakeNone,
       .replicates = true,
       .also_called = "dataparallel,data-parallel"},
      {.name = "star",
       .summary = "all-reduce through rank 0, which gathers, adds and sends back",
       .needs = {.process_group = true},
       .backend = "native",
       .algorithm = "star",
       .make = MakeAllReduce,
       .make_rows = MakeGatheredRows},
      {.name = "ring",
       .summary = "ring all-reduce: scatter-reduce, then all-gather",
       .needs = {.process_group = true},
       .backend = "native",
       .algorithm = "ring",
       .make = MakeAllReduce,
       .make_rows = MakeGatheredRows,
       .aliases = "allreduce,all-reduce",
       .also_called = "ddp,distributed-data-parallel,distributeddataparallel,ring-allreduce,horovod,hvd,"
                      "mirrored,mirroredstrategy,multiworkermirroredstrategy",
       .resembles = "fsdp,fsdp2,fully-sharded,zero,zero1,zero2,zero3,deepspeed,megatron,fairscale,sharded"},
      {.name = "direct",
       .summary = "all-reduce in which every rank sums one shard, like servers on all workers",
       .needs = {.process_group = true},
       .backend = "native",
       .algorithm = "direct",
       .make = MakeAllReduce,
       .make_rows = MakeGatheredRows},
      {.name = "halving-doubling",
       .summary = "all-reduce between partners at doubling distance: few rounds",
       .needs = {.process_group = true},
       .backend = "native",
       .algorithm = "halving-doubling",
       .make = MakeAllReduce,
       .make_rows = MakeGatheredRows},
      {.name = "double-binary-tree",
       .summary = "all-reduce up and down two trees: few rounds, full speed",
       .needs = {.process_group = true},
       .backend = "native",
       .algorithm = "double-binary-tree",
       .make = MakeAllReduce,
       .make_rows = MakeGatheredRows},
      {.name = "gloo",
       .summary = "Gloo's ring all-reduce",
       .needs = {.process_group = true},
       .backend = "gloo",
       .algorithm = "ring",
       .make = MakeAllReduce,
       .make_rows = MakeGatheredRows},
      {.name = "mpi",
       .summary = "MPI's all-reduce, with the algorithm its tuner chooses; started by mpirun",
       .needs = {.process_group = true},
       .backend = "mpi",
       .algorithm = "default",
       .make = MakeAllReduce,
       .make_rows = MakeGatheredRows},
      {.name = "nccl",
       .summary = "NCCL's all-reduce between GPUs, with the algorithm its tuner chooses",
       .needs = {.process_group = true},
       .backend = "nccl",
       .algorithm = "default",
       .make = MakeAllReduce,
       .make_rows = MakeGatheredRows},
      {.name = "nccl-tcp",
       .summary = "NCCL's all-reduce restricted to TCP sockets, to compare it with servers over TCP",
       .needs = {.process_group = true},
       .backend = "nccl",
       .algorithm = "default",
       .transport = "tcp",
       .make = MakeAllReduce,
       .make_rows = MakeGatheredRows},
      {.name = "ps-sync",
       .summary = "parameter server, one update from all workers' gradients",
       .needs = {.servers = true},
       .backend = "native",
       .algorithm = "sync",
       .make = MakeParameterServer,
       .make_rows = MakeServerRows,
       .aliases = "ps",
       .also_called = "parameter-server,byteps,ps-lite,pslite,dist-sync,bsp,sync-sgd,sync,synchronous"},
      {.name = "ps-backup",
       .summary = "parameter server with B spare workers: the last B gradients of a step are dropped",
       .needs = {.servers = true},
       .backend = "native",
       .algorithm = "backup",
       .make = MakeParameterServer,
       .make_rows = MakeServerRows,
       .number = {.letter = "B", .meaning = "spare workers", .least = 0, .below_workers = true},
       .drops_gradients = true,
       .also_called = "backup,backup-workers,sync-replicas,syncreplicas"},
      {.name = "ps-ssp",
       .summary = "parameter server, one update per gradient, no worker more than K steps ahead",
       .needs = {.servers = true},
       .backend = "native",
       .algorithm = "ssp",
       .synchronous = false,
       .default_momentum = 0,
       .make = MakeParameterServer,
       .make_rows = MakeServerRows,
       .number = {.letter = "K", .meaning = "the most steps that a worker may be ahead", .least = 1},
       .also_called = "ssp,stale-synchronous,stale-synchronous-parallel,bounded-staleness,petuum"},
      // Momentum accumulates gradients that are N-1 updates late: 0.9 diverges where plain SGD converges.
      {.name = "ps-async",
       .summary = "parameter server, one update per gradient as it arrives",
       .needs = {.servers = true},
       .backend = "native",
       .algorithm = "async",
       .synchronous = false,
       .default_momentum = 0,
       .make = MakeParameterServer,
       .make_rows = MakeServerRows,
       .shares_steps = true,
       .also_called =
           "async,asynchronous,asgd,async-sgd,hogwild,downpour,dist-async,parameterserverstrategy"},
      {.name = "hybrid",
       .summary = "models with tables: a ring for dense parameters, parameter servers for rows (Parallax)",
       .needs = {.process_group = true, .servers = true},
       .backend = "native",
       .algorithm = "ring",
       .make = MakeAllReduce,
       .make_rows = MakeOnlyRowsOnServers,
       .also_called = "parallax"},
  };
  return strategies;
}

namespace {

constexpr int kMostNumber = 1'000'000;

std::string DisplayName(const StrategyRow& row) {
  return row.has_number() ? absl::StrCat(row.name, ":", row.number.letter) : row.name;
}

// `colon`: its position in `name`, or npos.
absl::Status CheckNumber(const StrategyRow& row, const std::string& name, size_t colon) {
  if (!row.has_number()) {
    return colon == std::string::npos ? absl::OkStatus()
                                      : absl::InvalidArgumentError(absl::StrCat(
                                            "strategy '", name, "': ", row.name, " takes no number"));
  }
  int number = 0;
  const bool given = colon != std::string::npos;
  if (given && absl::SimpleAtoi(name.substr(colon + 1), &number) && number >= row.number.least &&
      number <= kMostNumber) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("strategy '", name, "': ", DisplayName(row), " needs a whole number from ",
                   row.number.least, given ? absl::StrCat(" to ", kMostNumber) : "", " (", row.number.letter,
                   ": ", row.number.meaning, "), as in ", row.name, ":", std::max(1, row.number.least)));
}

}  // namespace

absl::StatusOr<const StrategyRow*> FindStrategy(const std::string& name) {
  const size_t colon = name.find(':');
  const std::string word = name.substr(0, colon);
  std::vector<KnownName> known;
  for (const StrategyRow& row : Strategies()) {
    if (row.name == word || !MeantByOtherName(word, {row.name}, {row.aliases}).empty()) {
      PSRING_RETURN_IF_ERROR(CheckNumber(row, name, colon));
      return &row;
    }
    known.push_back({.name = DisplayName(row), .also_called = row.also_called, .resembles = row.resembles});
  }
  return UnknownName("strategy", name, known);
}

std::string CanonicalStrategy(const std::string& name) {
  const absl::StatusOr<const StrategyRow*> row = FindStrategy(name);
  if (!row.ok()) return name;
  return absl::StrCat((*row)->name, (*row)->has_number() ? name.substr(name.find(':')) : "");
}

int NumberOf(const std::string& name) {
  int number = 0;
  const size_t colon = name.find(':');
  if (colon != std::string::npos) PSRING_CHECK(absl::SimpleAtoi(name.substr(colon + 1), &number));
  return number;
}

std::string AlgorithmOf(const StrategyRow& row, const std::string& name) {
  return row.has_number() ? absl::StrCat(row.algorithm, ":", NumberOf(name)) : row.algorithm;
}

}  // namespace psring
