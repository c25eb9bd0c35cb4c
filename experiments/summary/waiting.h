// Who waited for whom, from the records of a launch. Pure, and *derived*: on the clock that the ranks of one
// host share.
//
// A worker's step is *ready* when it has computed and handed over its whole gradient; it is *released* when,
// by the strategy's rule, nobody has to be waited for any more: synchronous, when the last worker is ready;
// bounded staleness K, when the others have pushed the step K before; with backup workers, when the last
// admitted one is ready; asynchronous, at once. What is left of the exchange after that is the server's and
// the wires' time.
#pragma once

#include <vector>

#include "experiments/summary/summarise.h"

namespace psring {

// Of one step of one worker, in ms.
struct StepWait {
  double waited_ms = 0;    // from ready to released, at most until the exchange was over
  double exchange_ms = 0;  // from released to the weights in place
};

// By rank and step, in the order of `records`. Without communication all are 0. A dropped gradient waits for
// nobody.
std::vector<std::vector<StepWait>> WaitsOf(const StrategyInfo& strategy, const RunRecords& records);

// When a step was ready, and when it was over.
int64_t ReadyNs(const StepRecord& step);
int64_t OverNs(const StepRecord& step);

// `records.ranks` may be empty: then without staleness.
std::vector<WorkerFigures> WorkerFiguresOf(const StrategyInfo& strategy, const RunRecords& records);

// Of several launches, worker by worker.
std::vector<WorkerFigures> MeanWorkers(const std::vector<RunFigures>& runs);

// Mean staleness of each worker's gradients where nobody waits, from the workers' rates (the sum over
// j != i of rate_j / rate_i).
std::vector<double> StalenessOfRates(const std::vector<double>& rates);

}  // namespace psring
