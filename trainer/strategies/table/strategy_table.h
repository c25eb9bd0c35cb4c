// The table of strategies: what each is, needs, exchanges and costs. Pure: the trainer, psring and the tests
// read it, and functions with a `rows` parameter accept another table. trainer/strategies/registry.cc
// implements the rows.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace psring {

class RowStrategy;
struct Scheme;
struct Strategy;
struct StrategyContext;

// How replicas divide sharded state: S `ranks` have one copy together, of C `copies` (--dp_shard).
struct ShardSplit {
  int ranks = 1, copies = 1;

  // The bytes of a step relative to an all-reduce of float32 over all replicas. A worker sends (S-1)/S of the
  // state in each of the `halves` of an all-reduce within its copy, and once 2 (C-1)/C of the gradient of its
  // shard, 1/S of all, in `wire_part` of float32.
  double SentPart(double halves, double wire_part) const {
    if (copies == 1) return halves / 2;
    const double s = ranks, c = copies;
    return (halves * (s - 1) / s + wire_part * 2 * (c - 1) / c / s) / (2 * (s * c - 1) / (s * c));
  }
};

struct StrategyRow {
  // FindStrategy adds the number to `name`, and to the `algorithm` of servers or of a schedule that takes it:
  // "ps-ssp:2", "ssp:2".
  std::string name, summary;
  bool uses_group = false, uses_servers = false;  // what it communicates through; it may use both
  // Separated by commas: names that are accepted for this strategy; its names in other programs; and names of
  // what psring does not have, to which this strategy is nearest. Errors suggest it for the latter two.
  std::string aliases = {}, also_called = {}, resembles = {};
  std::string backend = {};      // of its collectives or servers: "native", "gloo", "mpi", "nccl"; "": none
  std::string algorithm = {};    // of the process group, or the server's consistency
  std::string transport = {};    // of the process group, whatever --transport says; "": the flag's
  bool synchronous = true;       // all ranks hold equal weights after every step
  bool single_process = false;   // rejects a world size above 1
  bool replicates = false;       // one process with a replica of the model on each of several devices
  bool shares_steps = false;     // workers take their steps from a common budget
  bool drops_gradients = false;  // those of the slowest workers of a step
  // Each worker updates one shard of the weights, and has the optimizer state only of this shard: a
  // reduce-scatter of the gradient, then an all-gather of the weights.
  bool shards_updates = false;
  // And has only this shard of the sum of the gradients, so that every micro-batch needs a reduce-scatter;
  // and of the weights, which are gathered for each unit before forward and before backward. Not with tables.
  bool shards_gradients = false, shards_weights = false;
  double default_momentum = .9;
  // The number in "ps-ssp:2". Empty letter: the strategy takes none.
  std::string number_letter = {}, number_meaning = {};
  int number_least = 0;
  bool number_optional = false;
  bool number_below_workers = false;
  int number = 0;
  // The cost of an exchange in theory (cost_model.h). Null: theory omits the strategy.
  const Scheme* scheme = nullptr;
  // Exchanges per step for a number, on average; null: one.
  double (*exchanges)(int number) = nullptr;
  // The sentences that `psring explain` prints for a step; empty: composed from the fields above.
  std::vector<std::string> step = {};
  // Its maker in trainer/strategies/registry.cc; not used if `make` is set.
  std::string implementation = "none";
  absl::StatusOr<Strategy> (*make)(const StrategyContext& context) = nullptr;
  // For a model with tables. Null with `make`: the strategy cannot train such models.
  absl::StatusOr<std::unique_ptr<RowStrategy>> (*make_rows)(const StrategyContext& context) = nullptr;
  // Its place among the colours of charts, so that the usual ones differ; below 0: after those with a place.
  int chart_place = -1;

  bool has_number() const { return !number_letter.empty(); }
  // "ps-ssp:K" in the table.
  std::string display_name() const {
    return has_number() && !number_optional ? name + ":" + number_letter : name;
  }
  bool communicates() const { return uses_group || uses_servers; }
  // Between processes, or between the replicas in one process.
  bool moves_gradients() const { return communicates() || replicates; }
  // The servers have all parameters.
  bool has_parameters_on_servers() const { return uses_servers && !uses_group; }
  // The servers have only the rows of tables; the group synchronizes the other parameters.
  bool has_only_rows_on_servers() const { return uses_servers && uses_group; }
  // Each push to a server is an update of its own.
  bool asynchronous() const { return uses_servers && !synchronous; }
  // Workers wait for others, but not for all: spare workers, or a bound on staleness.
  bool waits_for_some() const { return uses_servers && number > 0; }
  // The servers count the pushes of each worker, to know what is late.
  bool counts_pushes() const { return has_parameters_on_servers() && (!synchronous || drops_gradients); }
  // Whether --local_aggregation applies: one update from all workers' gradients (ps-sync).
  bool can_aggregate() const { return has_parameters_on_servers() && !counts_pushes(); }
  // The bytes of a step whose gradients are sent in `wire_part` of float32, relative to an all-reduce of
  // float32, which is a reduce-scatter and an all-gather. The weights of shards are float32. `reshards`:
  // --reshard forward, for which this is the most.
  double SentPart(double wire_part, int micro_batches = 1, bool reshards = true,
                  const ShardSplit& split = {}) const {
    if (!shards_updates) return wire_part;
    const int reductions = shards_gradients ? micro_batches : 1;
    const int gathers = shards_weights && reshards ? 2 * micro_batches : 1;
    return split.SentPart(reductions * wire_part + gathers, wire_part);
  }
  ShardSplit SplitOf(int replicas, int dp_shard) const {
    const bool is_split = shards_updates && dp_shard > 0 && dp_shard < replicas;
    return is_split ? ShardSplit{dp_shard, replicas / dp_shard} : ShardSplit{replicas, 1};
  }
  double exchanges_per_step() const { return exchanges == nullptr ? 1 : exchanges(number); }
};
using StrategyTable = std::vector<StrategyRow>;
const StrategyTable& StrategyRows();

// An all-reduce of gradients by one of psring's schedules.
StrategyRow AllReduceRow(const std::string& algorithm);

// The row of a name as users give it, with its number: "ring", "ps-ssp:2". NotFound suggests the strategy
// with that other name or the closest name, and lists all; for a schedule without a strategy it names the
// verbs that know it. InvalidArgument: a number is missing, too small, too large, or not accepted. `given`:
// the names beside which `name` is given; they are not suggested.
absl::StatusOr<StrategyRow> FindStrategy(const std::string& name, const std::vector<std::string>& given = {},
                                         const StrategyTable& rows = StrategyRows());
// InvalidArgument: the number in the name of an all-reduce does not suit as many workers.
absl::Status CheckRanks(const StrategyRow& strategy, int workers);
// `name` with an alias replaced by the row's name: "ring" for "allreduce". Unknown names are returned as
// given.
std::string CanonicalStrategy(const std::string& name);
// The same for --strategies. InvalidArgument: two names are of the same strategy.
absl::Status UseCanonicalStrategies(std::vector<std::string>& names);

// "ps-ssp" for "ps-ssp:2": the name in the table.
std::string BaseName(const std::string& strategy);

}  // namespace psring
