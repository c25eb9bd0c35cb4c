// From the figures of launches to the rows of the summary. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "common/measure/records.h"
#include "experiments/plan/plan.h"
#include "experiments/simulator/prediction.h"
#include "experiments/stats/statistics.h"
#include "experiments/summary/launch_figures.h"
#include "experiments/theory/cost_model.h"
#include "experiments/virtual_cluster/link.h"

namespace psring {

enum class Basis { kGiven, kMeasured, kDerived, kSimulated };
const char* BasisName(Basis basis);  // "given", "measured", ...

// One field of a row. monostate: the figure does not apply.
struct Cell {
  const char* column;
  std::variant<std::monostate, bool, int64_t, double, std::string> value;
  Basis basis;
};

// Where a step's measured time parts from the predicted one, in ms; see residuals.h.
struct Residual {
  double measured = 0, predicted = 0;
  double computing = 0, waiting = 0, update = 0, congestion = 0, scheduling = 0, unexplained = 0;
  double total() const { return measured - predicted; }
};

// The simulator's word on a row.
struct RowPrediction {
  Prediction prediction;
  std::string compute_from;  // whose computing it has
  Residual residual;         // of the mean over rounds
};

// 95%, bootstrapped over rounds, of a figure by its column's name; "comm_moving_ms" is comm_busy_ms -
// wait_ms.
struct FigureInterval {
  const char* figure;
  Interval interval;
};

// One configuration, over all its rounds.
struct SummaryRow {
  std::string run_id;
  Configuration configuration;
  RankResult sample;  // rank 0's: what was resolved at run time (backend, transport, device, parameters)
  int rounds = 0;
  RunFigures mean;  // over rounds; without cost rounds, of the accuracy trainings
  bool measured_cost = false;
  std::optional<Interval> samples_per_s_95;
  std::vector<FigureInterval> intervals_95;  // of other figures
  std::optional<double> speedup, efficiency;
  double step_ms_p10 = 0, step_ms_p90 = 0;
  std::optional<double> predicted_comm_ms, predicted_payload_bytes;
  std::optional<RowPrediction> prediction;  // --predict
  std::string why_not_predicted;            // where it was asked for and there is none
  std::optional<double> cost_against_none_ms;
  std::optional<Interval> cost_against_none_95;
  std::optional<double> test_accuracy, train_loss;  // of the accuracy trainings, mean over seeds
  std::optional<Interval> test_accuracy_95;         // over trainings
  std::optional<double> time_to_target_s;           // mean over trainings; empty unless all got there
  std::optional<Interval> time_to_target_95;
  int reached_target = 0;  // so many trainings
  int trainings = 0;
  int64_t trained_samples = 0;
  double foreign_cpu_pct = 0;  // the most in any of its runs
  LinkReport link;
  bool valid = true;
  std::string note;

  // Of times, and of what follows from their order.
  Basis TimeBasis() const;

  // Per round, in the order of the rounds: what pairs are made of.
  std::vector<double> round_samples_per_s, round_step_ms;
};

// Everything that was run of one configuration.
struct ConfigurationRuns {
  Configuration configuration;
  RankResult sample;
  std::vector<RunFigures> cost;      // a round each
  std::vector<RunFigures> accuracy;  // a training each
};

// Bytes that nobody counted: the collectives of others do not say how many they send.
bool BytesAreDerived(const SummaryRow& row);

// Rows in the order of `runs`. `wires` is what the calibration found, `link` what the workers stood on.
std::vector<SummaryRow> Summarise(const std::string& run_id, const std::vector<ConfigurationRuns>& runs,
                                  const std::optional<Wires>& wires, const LinkReport& link = {});

// The columns of summary.csv, in their order.
std::vector<Cell> Cells(const SummaryRow& row);

}  // namespace psring
