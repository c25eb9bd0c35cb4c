// What was measured beside what the simulator says of the very same case, and where the two part. Pure.
//
// All parts are ms of a mean step, measured minus predicted, and add up to the residual:
//   computing    until the whole gradient was handed over, *measured*
//   waiting      for the last peer to be ready, *derived* from the ranks' records; ranks of one host share
//   one
//                monotonic clock, so there is nothing to align
//   update       the workers' own optimizer, *measured*
//   congestion   sending again what queues had dropped, *derived* from TCP's counters: the bytes at the
//   link's
//                rate, and the shortest time-out of a connection that had to wait for one
//   scheduling   threads that could have run and waited for a processor, *derived* from schedstat
//   unexplained  the rest; below 0, the prediction takes something for slower than it is
// Congestion and scheduling are at most what was counted, because not everything that is late is waited for;
// they explain what the three before them leave, in this order, and never more than that.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/workloads/workload.h"
#include "experiments/simulator/prediction.h"
#include "experiments/summary/summarise.h"
#include "experiments/texts/phrase.h"

namespace psring {

// What is known of a run beside its rows.
struct PredictionGround {
  Wires wires;
  int cores = 1;
  std::optional<Workload> workload;  // recorded times of computing; else those that were measured are taken
};

// The simulator's (predict_model.h) prediction of `row`: its strategy, workers, servers and their place, its
// buckets, at the links' measured rate, latency and burst. Computing is the workload's, or else as long as
// measured in `none` (where null: in the row itself); the workers' updates are `none`'s, too. Workers and
// servers beyond the machine's cores take turns adding. FailedPrecondition: why the simulator does not know
// this case.
absl::StatusOr<RowPrediction> PredictRow(const SummaryRow& row, const SummaryRow* none,
                                         const PredictionGround& ground);

// Gives every row that communicates its prediction, or the reason why it has none.
void PredictRows(const PredictionGround& ground, std::vector<SummaryRow>& rows);

Residual ResidualOf(const RunFigures& measured, const Prediction& predicted);

// residuals.csv: a line a configuration and round, and one of their mean (round is empty there).
std::string ResidualsCsv(const std::vector<SummaryRow>& rows, const std::vector<ConfigurationRuns>& runs);

// How far predictions are off, each residual that is worth a sentence, what has no prediction.
std::vector<std::string> ResidualFindings(const std::vector<SummaryRow>& rows,
                                          Language language = Language::kEnglish);

}  // namespace psring
