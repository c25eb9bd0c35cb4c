// Compares measured steps with the simulator's prediction of the same case. Pure.
//
// All parts are ms of a mean step, measured minus predicted, and add up to the residual:
//   computing    until the gradient is complete, *measured*
//   waiting      for the last peer to be ready, *derived* from the ranks' records, which share one clock
//   update       the workers' optimizer, *measured*
//   congestion   retransmissions, *derived* from TCP's counters (RetransmissionMs)
//   scheduling   time that runnable threads waited for a processor, *derived* from schedstat
//   unexplained  the rest; below 0, the prediction is too slow
// Congestion and scheduling are upper bounds, because not every such delay lengthens the step. In this order,
// they explain at most the rest of a positive residual.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/workloads/workload.h"
#include "experiments/analysis/summarise.h"
#include "experiments/simulator/prediction.h"

namespace psring {

// The other inputs of predictions.
struct PredictionInputs {
  Wires wires;
  int cores = 1;
  std::optional<Workload> workload;  // recorded computing times; else the measured ones are used
};

// Predicts `row` with the simulator: its strategy, workers, servers, placement and buckets, on links with the
// measured rate, latency and burst. Computing is as measured in `none` (if null: in the row itself), or else
// the workload's; the workers' updates are also `none`'s. Workers and servers beyond the machine's cores
// share them. FailedPrecondition: the simulator does not support the case.
absl::StatusOr<RowPrediction> PredictRow(const SummaryRow& row, const SummaryRow* none,
                                         const PredictionInputs& inputs);

// Sets the prediction of every row that communicates, or the reason why it has none.
void PredictRows(const PredictionInputs& inputs, std::vector<SummaryRow>& rows);

Residual ResidualOf(const RunFigures& measured, const Prediction& predicted);

// residuals.csv: a line for each configuration and round, and one for their mean, with an empty round.
std::string ResidualsCsv(const std::vector<SummaryRow>& rows, const std::vector<ConfigurationRuns>& runs);

// The accuracy of the predictions, notable residuals, and rows without a prediction.
std::vector<std::string> ResidualFindings(const std::vector<SummaryRow>& rows);

}  // namespace psring
