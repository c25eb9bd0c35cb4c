// Derives how long workers waited for each other from the records of a launch. Pure; assumes one clock.
//
// A worker's step is *ready* when its gradient is complete. It is *released* when the strategy's rule
// requires no further waiting: synchronous, when the last worker is ready; bounded staleness K, when the
// last worker is ready with step - K; backup workers, when the last admitted worker is ready; asynchronous,
// immediately. The rest of the exchange is the time of servers and links.
#pragma once

#include <optional>
#include <vector>

#include "experiments/analysis/summarise.h"

namespace psring {

// One step of one worker, in ms.
struct StepWait {
  double waited_ms = 0;    // from ready to released, but not beyond the end of the exchange
  double exchange_ms = 0;  // from released to the end of the exchange
};

// By rank and step, in the order of `records`. 0 without communication; dropped gradients do not wait.
std::vector<std::vector<StepWait>> WaitsOf(const StrategyRow& strategy, const RunRecords& records);

// The time in ms that a rank waits for its peers in one step, *derived*: for each bucket, from the rank's
// start until the last rank's start, but not beyond the end of its own exchange. Overlapping waits count
// once. `steps` holds this step of every rank, with times on one clock.
double WaitMs(const std::vector<const StepRecord*>& steps, int rank);
// Its mean over ranks and measured steps that all ranks have.
std::optional<double> MeanWait(const RunRecords& records);

// When the slowest rank's first bucket is ready minus the mean over ranks, in ms, each from the start of its
// step: how long a collective waits if all ranks start together.
double MeanLate(const RunRecords& records);

// When a step was ready, and when it ended.
int64_t ReadyNs(const StepRecord& step);
int64_t EndNs(const StepRecord& step);

// By rank; without staleness if `records.ranks` is empty.
std::vector<WorkerFigures> WorkerFiguresOf(const StrategyRow& strategy, const RunRecords& records);

// Means over several launches, by worker.
std::vector<WorkerFigures> MeanWorkers(const std::vector<RunFigures>& runs);

// Worker i's mean staleness if no worker waits, from the workers' rates: sum over j != i of rate_j / rate_i.
std::vector<double> StalenessOfRates(const std::vector<double>& rates);

}  // namespace psring
