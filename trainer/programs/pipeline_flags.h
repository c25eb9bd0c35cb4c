// The flags of pipelines that training and psring predict share, and their checks; also those of --tp, of
// --cp and of shards. Pure.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/options/training_options.h"
#include "trainer/programs/program_rows.h"
#include "trainer/strategies/table/strategy_table.h"

namespace CLI {
class App;
}

namespace psring {

// Micro-batches of a replica by default, for each of its ranks: the bubble of 1f1b is then below a fifth.
inline constexpr int kMicroBatchesPerRank = 4;

// Adds the names of the programs that cut a model to the help of --program.
void AddPrograms(CLI::App& app);

// The value of --program. NotFound or InvalidArgument: see FindStepProgram, or the program is for one rank.
absl::StatusOr<NamedProgram> FindPipelineProgram(const std::string& name);

// Whether weights are updated without a flush (--program pipedream); and how many updates a step has.
bool UpdatesWithoutFlush(const TrainingOptions& options);
int UpdatesOfStep(const TrainingOptions& options);
// The name under which the trainer answers how a training with `strategy` updates weights: that of the
// strategy, or kWithoutFlush.
inline constexpr char kWithoutFlush[] = "without-flush";
std::string UpdateRuleOf(const TrainingOptions& options, const std::string& strategy);
// `options`, with a program without a flush if they have none.
TrainingOptions WithoutFlush(TrainingOptions options);
// InvalidArgument names what a program without a flush does not support.
absl::Status CheckWithoutFlush(const TrainingOptions& options, const StrategyRow& strategy);
// Without a flush: after how many micro-batches the first and the last stage add up the gradients of a tensor
// that they share, as those of transformers do. 0: they share none, or the program has a flush.
int TiedEvery(const TrainingOptions& options);

// The value of --cuts for so many stages; nothing if it is empty. InvalidArgument: it is not a list of
// stages - 1 ascending numbers.
absl::StatusOr<std::vector<size_t>> ParseCuts(const std::string& cuts, int stages);

struct GivenFlag {
  bool given;
  std::string name;
};
// InvalidArgument names the first flag of `need_pp` that is given without --pp, or of `exclude_pp` that is
// given with it.
absl::Status CheckBesidePp(bool has_pp, const std::vector<GivenFlag>& need_pp,
                           const std::vector<GivenFlag>& exclude_pp);

// InvalidArgument: --rank_order is given, but no axis divides a replica.
absl::Status CheckRankOrder(const std::string& rank_order, bool divides_replica);

// InvalidArgument or NotFound, in one line: flags, `strategy` or this number of workers do not suit --pp,
// --tp or --cp, or flags need it.
absl::Status CheckPipelineFlags(const TrainingOptions& options, const StrategyRow& strategy, int workers);

// InvalidArgument names a flag that `strategy` does not support because ranks have only shards of gradients:
// the memory of units changes from step to step, and there are no rounding errors to keep; or --dp_shard,
// which does not divide this number of replicas (names numbers that do) or is for other strategies.
absl::Status CheckShardFlags(const TrainingOptions& options, const StrategyRow& strategy, int replicas);

}  // namespace psring
