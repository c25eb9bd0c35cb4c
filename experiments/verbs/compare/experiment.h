// Shared by compare and train: launches, their records, the report.
#pragma once

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "experiments/design/rates.h"
#include "experiments/run_folder/manifest.h"
#include "experiments/run_folder/run_folder.h"
#include "experiments/run_folder/tensorboard.h"
#include "experiments/verbs/compare/compare.h"
#include "experiments/verbs/compare/prepare.h"

namespace psring {

// A run in progress: launches configurations, keeps the figures of finished rounds, and reports at the end.
class Experiment {
 public:
  // Creates the run folder, or restores the finished rounds of `resumed` (null: a new run), and measures the
  // loopback if there is no virtual cluster. compare's --time_budget is a limit for all launches from here
  // on.
  static absl::StatusOr<std::unique_ptr<Experiment>> Start(const ExperimentFlags& flags,
                                                           const std::string& verb, const Prepared& prepared,
                                                           const Plan& plan, const ResumedRun* resumed,
                                                           const Interrupt& interrupt, Display& display);

  // Trains `configuration` with the rate `lr`, scored on the validation samples. Divergence is not an error.
  absl::StatusOr<TriedRate> TryRate(const Configuration& configuration, double lr, const std::string& label);

  // Launches `configuration`. `part`: "cost", "accuracy", or "training", which is both. The figures of an
  // accuracy training are kept at once, others when their round ends. A launch of the cost part that other
  // programs disturb is repeated once, unless their load lasts. DeadlineExceeded with out_of_time(): the
  // launch was ended because of --time_budget.
  absl::Status Run(const Configuration& configuration, const std::string& part, int repeat,
                   const std::string& label);
  // Ends a round: keeps the figures of its launches.
  absl::Status EndRound();
  int rounds_done() const { return manifest_.rounds_done; }
  // The next round to run. After a resumption it may precede finished rounds.
  int next_round() const;
  bool all_done() const;  // of the plan
  // Whether this accuracy training is finished.
  bool HasTraining(const Configuration& configuration, int repeat) const;

  double seconds() const;  // since the verb began
  // Seconds until launches must end; infinite without --time_budget.
  double left_s() const;
  bool out_of_time() const { return left_s() <= 0; }
  void set_configurations(const Plan& plan) {
    manifest_.plan.cost = plan.cost;
    manifest_.plan.accuracy = plan.accuracy;
  }
  absl::Status WriteRates(const std::vector<TriedRate>& tried) {
    return folder_.Write("rates.csv", RatesCsv(tried));
  }
  absl::StatusOr<std::vector<TriedRate>> ReadRates() const;
  // Also prints it.
  void AddNote(const std::string& text) {
    note(text);
    display_.Note(text);
  }

  // `status`, which ended the run before any round did; if that was a signal, it also says what was kept.
  absl::Status WithoutResults(const absl::Status& status) const;
  // Writes the summary of the finished rounds; prints the answer and the run folder. `ended`: why the run
  // stopped early; empty: it did not.
  absl::Status Report(const std::string& ended);

 private:
  Experiment(const ExperimentFlags& flags, const Prepared& prepared, const Interrupt& interrupt,
             Display& display, RunFolder folder)
      : flags_(flags),
        prepared_(prepared),
        interrupt_(interrupt),
        display_(display),
        folder_(std::move(folder)) {}

  // Writes the times of the runs that --compute_ms and --network_ms name to files in `folder`, and sets the
  // flags of `configuration` to these files.
  absl::Status ResolveTimes(const std::string& folder, Configuration& configuration) const;

  ConfigurationRuns& RunsOf(const Configuration& configuration);

  // A successful launch.
  struct Done {
    RunLabel label;
    Configuration configuration;
    RunRecords records;
    RunFigures figures;
  };
  absl::Status Keep(const Done& done);
  RunLabel LabelOf(const Configuration& configuration, const std::string& part, int repeat) const;
  absl::Status Restore(const ResumedRun& resumed);
  // A round's launches, if the records of all of them can be read.
  absl::StatusOr<std::vector<Done>> ReadRound(int round) const;
  absl::StatusOr<Done> Read(const Configuration& configuration, const std::string& part, int repeat) const;

  absl::Status WriteManifest() const { return folder_.WriteManifest(manifest_); }

  // Measures the network for the cost model and sets where the processes run.
  absl::Status MeasureWires();
  absl::Status MeasureNodes();
  // Of the servers in the plan; those that cannot be measured stay unknown.
  void MeasureServerWires(Wires& wires);
  // Begins the launch's event file, in tensorboard/<configuration>/<part>-<n>/ of the run's folder.
  absl::StatusOr<EventFile> BeginEvents(const RunLabel& run, const Configuration& configuration) const;

  // Of the launches that are planned and not done, before correction by the time that the others took.
  double ExpectedLeftSeconds() const;

  // The verdict, the line on validity, the table and, with --verbose, the findings.
  void PrintAnswer(const std::vector<SummaryRow>& rows, const std::vector<std::string>& findings);

  // With --predict: adds predictions to `rows`, and writes residuals.csv.
  absl::Status Predict(const std::vector<ConfigurationRuns>& runs, std::vector<SummaryRow>& rows);

  void note(const std::string& text) { manifest_.plan.notes.push_back(text); }

  const ExperimentFlags& flags_;
  const Prepared& prepared_;
  const Interrupt& interrupt_;
  Display& display_;
  RunFolder folder_;
  Site site_;
  Manifest manifest_;
  std::vector<Done> round_;                           // the launches of the unfinished round
  std::set<int> rounds_;                              // finished ones
  double expected_so_far_s_ = 0, took_so_far_s_ = 0;  // of the launches in this process
  int repeats_left_ = 0;  // launches that may be repeated because of other programs' load
  std::vector<ConfigurationRuns> runs_;
};

}  // namespace psring
