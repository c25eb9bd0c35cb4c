// Computes the rows of the summary from the figures of launches. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "common/measure/records.h"
#include "experiments/analysis/launch_figures.h"
#include "experiments/design/plan.h"
#include "experiments/simulator/prediction.h"
#include "experiments/stats/statistics.h"
#include "experiments/virtual_cluster/link.h"
#include "trainer/strategies/table/cost_model.h"

namespace psring {

enum class Basis { kGiven, kMeasured, kDerived, kSimulated };
const char* BasisName(Basis basis);  // "given", "measured", ...

// One field of a row. monostate: not applicable.
struct Cell {
  const char* column;
  std::variant<std::monostate, bool, int64_t, double, std::string> value;
  Basis basis;
};

// Parts of the difference between measured and predicted step time, in ms; see residuals.h.
struct Residual {
  double measured = 0, predicted = 0;
  double computing = 0, waiting = 0, update = 0, congestion = 0, scheduling = 0, unexplained = 0;
  double total() const { return measured - predicted; }
};
struct ResidualPart {
  const char* column;
  double Residual::*ms;
};
inline constexpr ResidualPart kResidualParts[] = {
    {"computing_ms", &Residual::computing},   {"waiting_ms", &Residual::waiting},
    {"update_ms", &Residual::update},         {"congestion_ms", &Residual::congestion},
    {"scheduling_ms", &Residual::scheduling}, {"unexplained_ms", &Residual::unexplained}};

// The simulator's prediction of a row.
struct RowPrediction {
  Prediction prediction;
  std::string compute_from;  // the source of its computing times
  Residual residual;         // of the mean over rounds
};

// The 95% interval over rounds of the column `figure`; "comm_moving_ms" is comm_busy_ms - wait_ms.
struct FigureInterval {
  const char* figure;
  Interval interval;
};

// One configuration over all its rounds.
struct SummaryRow {
  std::string run_id;
  Configuration configuration;
  RankResult sample;  // rank 0's, for values resolved at run time (backend, transport, device, parameters)
  int rounds = 0;
  // Over rounds, or over accuracy trainings if there are no rounds. step_ms and samples_per_s are geometric
  // means.
  RunFigures mean;
  bool measured_cost = false;
  std::optional<Interval> samples_per_s_95;
  std::vector<FigureInterval> intervals_95;  // of other figures
  std::optional<double> speedup, efficiency;
  double step_ms_p10 = 0, step_ms_p90 = 0;
  std::optional<double> predicted_comm_ms;  // of the actual buckets, mean over workers
  std::optional<double> predicted_payload_bytes;
  std::optional<double> predicted_bubble, predicted_step_ms;  // AddWalk
  std::optional<RowPrediction> prediction;                    // --predict
  std::string why_not_predicted;                              // with --predict and without a prediction
  std::optional<double> cost_against_none_ms;
  std::optional<Interval> cost_against_none_95;
  std::optional<double> test_accuracy, train_loss;  // of the accuracy trainings, mean over seeds
  std::optional<Interval> test_accuracy_95;         // over trainings
  std::optional<double> time_to_target_s;  // geometric mean over trainings; empty unless all reached it
  std::optional<Interval> time_to_target_95;
  int reached_target = 0;  // number of trainings
  int trainings = 0;
  int64_t trained_samples = 0;
  double foreign_cpu_pct = 0;  // the maximum over its runs
  int other_psring = 0;        // process ID of another psring that measured during one of them; 0: none
  LinkReport link;
  bool valid = true;
  std::string note;

  // The basis of times, and of figures that depend on the order of events.
  Basis TimeBasis() const;

  // By round, for paired comparisons.
  std::vector<double> round_samples_per_s, round_step_ms;
};

// All launches of one configuration.
struct ConfigurationRuns {
  Configuration configuration;
  RankResult sample;
  std::vector<RunFigures> cost;      // one per round
  std::vector<RunFigures> accuracy;  // one per training
};

// What a reader must know about the row, separated by semicolons; a footnote of the table.
std::string NoteOf(const SummaryRow& row);

// Whether the row's bytes are derived, because an external library does not count them.
bool BytesAreDerived(const SummaryRow& row);

// What this machine's processors move of the payload of the row's servers, by its --server_wire, in bytes/s;
// 0: it has no servers, or their wire was not measured.
double ServerRateOf(const SummaryRow& row, const Wires& wires);

// `wires` for the row: with the update time of its optimizer (plain SGD accesses as much memory as adding),
// and for servers with ServerRateOf: in place of the machine's medium or, with links, as the rate of each
// server's host, of which those in a virtual cluster get equal shares.
Wires WiresOf(const SummaryRow& row, Wires wires);
// The same for the rows of tables, which are on servers also if gradients are not (`hybrid`).
Wires WiresOfTables(const SummaryRow& row, Wires wires);

// Sets the bubble of a pipeline, as a part of the measured step: by a walk of its program with the times that
// its ranks computed and that its messages took (simulated); if computing was not measured, by the program's
// formula. It stays empty without a pipeline or formula. Of one replica
// also the step, by the walk and the measured update.
void AddWalk(SummaryRow& row);

// Rows in the order of `runs`. `wires`: from calibration or preflight.
std::vector<SummaryRow> Summarise(const std::string& run_id, const std::vector<ConfigurationRuns>& runs,
                                  const std::optional<Wires>& wires, const LinkReport& link = {});

// The columns of summary.csv, in their order.
std::vector<Cell> Cells(const SummaryRow& row);

}  // namespace psring
