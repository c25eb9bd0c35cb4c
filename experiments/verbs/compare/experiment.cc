#include "experiments/verbs/compare/experiment.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "common/base/check.h"
#include "common/base/deadline.h"
#include "common/base/own_process.h"
#include "common/base/wall_time.h"
#include "common/cli/delays.h"
#include "common/io/files.h"
#include "common/measure/records.h"
#include "common/measure/trace.h"
#include "common/text/translate.h"
#include "common/text/units.h"
#include "experiments/analysis/launch_figures.h"
#include "experiments/analysis/residuals.h"
#include "experiments/analysis/table.h"
#include "experiments/design/estimate.h"
#include "experiments/design/plan.h"
#include "experiments/engine/launch.h"
#include "experiments/machine/connections.h"
#include "experiments/run_folder/recorded_run.h"
#include "ps_server/bench/wire_rate.h"

namespace psring {
namespace {

constexpr double kClockShare = 0.05;  // of a step

// Whether the log of any process of a launch says that training diverged.
bool SaysDiverged(const std::string& folder) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    if (!absl::StartsWith(entry.path().filename().string(), "log-")) continue;
    const absl::StatusOr<std::string> log = ReadFile(entry.path().string(), kMaxRecordBytes);
    if (log.ok() && absl::StrContains(*log, "training diverged")) return true;
  }
  return false;
}

}  // namespace

absl::Status Experiment::ResolveTimes(const std::string& folder, Configuration& configuration) const {
  for (const bool computing : {true, false}) {
    std::string& time = computing ? configuration.training.compute_ms : configuration.training.network_ms;
    if (MeasuredIn(prepared_, time) == nullptr) continue;
    std::string which;
    PSRING_ASSIGN_OR_RETURN(const StepTimes times,
                            MeasuredTimes(prepared_, time, computing, configuration, which));
    const std::string path = absl::StrCat(folder, computing ? "/times-compute.json" : "/times-network.json");
    PSRING_RETURN_IF_ERROR(WriteFile(path, ToJson(times)));
    time = absl::StrCat(kTracePrefix, path);
  }
  return absl::OkStatus();
}

absl::StatusOr<TriedRate> Experiment::TryRate(const Configuration& configuration, double lr,
                                              const std::string& label) {
  Configuration tried = configuration;
  tried.training.lr = lr;
  tried.training.score = "validation";
  tried.training.eval_every = 0;
  tried.training.checkpoint_dir.clear();
  tried.training.checkpoint_every = 0;
  PSRING_ASSIGN_OR_RETURN(
      const std::string folder,
      folder_.RecordFolder(absl::StrFormat("records/rates/lr-%g/%s", lr, configuration.folder())));
  PSRING_RETURN_IF_ERROR(ResolveTimes(folder, tried));
  TriedRate rate{.strategy = configuration.strategy.name, .workers = configuration.workers, .lr = lr};
  const double expected_s = ExpectedLaunchSeconds(tried, prepared_.probe, prepared_.cores);
  const absl::StatusOr<Launched> launched =
      Launch(tried, folder, label, expected_s, prepared_.binaries, site_, interrupt_, display_);
  if (!launched.ok()) {
    // Divergence is a valid result. Any process may have reported it, not only the first to end.
    if (!SaysDiverged(folder)) return launched.status();
    display_.Say(absl::StrFormat("%s%s: lr %g, diverged", label, configuration.name(), lr));
    return rate;
  }
  for (const RankResult& rank : launched->records.ranks) {
    if (rank.curve.empty()) continue;
    rate.accuracy = rank.curve.back().test_accuracy;
    rate.loss = rank.curve.back().test_loss;
  }
  display_.Say(absl::StrFormat(
      "%s%s: lr %g, %s", label, configuration.name(), lr,
      rate.accuracy ? absl::StrFormat("validation accuracy %.4f", *rate.accuracy) : "not evaluated"));
  return rate;
}

absl::StatusOr<std::unique_ptr<Experiment>> Experiment::Start(const ExperimentFlags& flags,
                                                              const std::string& verb,
                                                              const Prepared& prepared, const Plan& plan,
                                                              const ResumedRun* resumed,
                                                              const Interrupt& interrupt, Display& display) {
  PSRING_ASSIGN_OR_RETURN(RunFolder folder,
                          (resumed == nullptr ? RunFolder::Create : RunFolder::Open)(*prepared.claim));
  PSRING_ASSIGN_OR_RETURN(const Provenance provenance, ProvenanceOf(flags, prepared, plan));
  auto experiment =
      std::unique_ptr<Experiment>(new Experiment(flags, prepared, interrupt, display, std::move(folder)));
  experiment->repeats_left_ = plan.cost.size();
  experiment->manifest_ = {.run_id = experiment->folder_.run_id(),
                           .verb = verb,
                           .command_line = flags.command_line,
                           .started_utc = Iso8601(WallNow()),
                           .machine = prepared.machine,
                           .plan = plan,
                           .disturbances = flags.options.training,
                           .provenance = provenance};
  if (resumed != nullptr) PSRING_RETURN_IF_ERROR(experiment->Restore(*resumed));
  PSRING_RETURN_IF_ERROR(experiment->MeasureWires());
  PSRING_RETURN_IF_ERROR(experiment->WriteManifest());
  return experiment;
}

absl::Status Experiment::MeasureWires() {
  if (std::isfinite(left_s())) site_.until = MonotonicNow() + absl::Seconds(left_s());
  if (manifest_.plan.simulated) return absl::OkStatus();
  site_.measuring = prepared_.measuring.get();
  site_.nodes = prepared_.site.nodes;
  site_.address = prepared_.site.address;
  if (site_.nodes != nullptr) return MeasureNodes();
  if (const VirtualCluster* const cluster = prepared_.virtual_cluster.cluster.get(); cluster != nullptr) {
    site_.cluster = cluster;
    manifest_.link = Nominal(cluster->report(), flags_.link.scale);
    Wires wires = prepared_.virtual_cluster.wires;
    MeasureServerWires(wires);
    manifest_.wires = DivideTimes(flags_.link.scale, wires);
    return absl::OkStatus();
  }
  display_.Redraw("measuring the loopback");
  const double time_s = std::clamp(0.1 * manifest_.plan.expected_s, 0.1, 0.4);  // short before a short run
  absl::StatusOr<Wires> wires = CalibrateLoopback(prepared_.machine.cores, absl::Seconds(time_s));
  if (wires.ok()) {
    if (flags_.options.training.transport == "tcp") MeasureServerWires(*wires);
    manifest_.wires = *wires;
  } else {
    note(Tr("no predictions: $0", wires.status().message()));
  }
  return interrupt_.Check();
}

void Experiment::MeasureServerWires(Wires& wires) {
  KeepFreedMemory();  // as workers and servers do
  // As many connections as CalibrateLoopback uses.
  const int workers = std::clamp(prepared_.machine.cores / 2, 1, 8);
  for (const auto& [wire, rate] :
       {std::pair("grpc", &wires.grpc_bytes_per_s), {"stream", &wires.stream_bytes_per_s}}) {
    const std::string name = wire;
    const bool is_used =
        std::ranges::any_of(manifest_.plan.cost, [&name](const Configuration& configuration) {
          return configuration.servers() > 0 && configuration.ranks() > 1 &&
                 configuration.training.server_wire == name;
        });
    if (!is_used) continue;
    display_.Redraw("measuring the wire of servers");
    const absl::StatusOr<double> measured = MeasureWireRate(name, workers, absl::Milliseconds(150));
    if (measured.ok()) {
      *rate = *measured;
    } else {
      note(Tr("the cost of --server_wire $0 is not in the predictions: $1", name,
              measured.status().message()));
    }
  }
}

absl::Status Experiment::MeasureNodes() {
  manifest_.machines = site_.nodes->Machines();
  if (manifest_.verb != "compare") {
    note(Tr("no predictions: the network between the machines was not measured"));
    return interrupt_.Check();
  }
  display_.Redraw("measuring the network between the machines");
  PSRING_ASSIGN_OR_RETURN(manifest_.network, site_.nodes->MeasureNetwork(interrupt_));
  const NetworkReport& network = *manifest_.network;
  manifest_.wires = WiresBetween(network);
  MeasureServerWires(*manifest_.wires);
  display_.Say(Tr(
      "network:   between the machines: latency $0 us, one pair at a time $1 Mbit/s, all at once $2 Mbit/s",
      Fixed(manifest_.wires->latency_s * 1e6, 0), Fixed(8e-6 * manifest_.wires->bytes_per_s, 0),
      Fixed(8e-6 * *std::ranges::min_element(network.ring), 0)));
  return interrupt_.Check();
}

ConfigurationRuns& Experiment::RunsOf(const Configuration& configuration) {
  for (ConfigurationRuns& runs : runs_) {
    if (runs.configuration.folder() == configuration.folder()) return runs;
  }
  return runs_.emplace_back(ConfigurationRuns{.configuration = configuration});
}

RunLabel Experiment::LabelOf(const Configuration& configuration, const std::string& part, int repeat) const {
  // Rounds repeat the same work; trainings differ by seed.
  const uint64_t seed = configuration.training.seed + (part == "cost" ? 0 : static_cast<uint64_t>(repeat));
  return {.run_id = manifest_.run_id,
          .part = part,
          .repeat = repeat,
          .seed = seed,
          .records = absl::StrFormat("records/%s-%d/%s", part, repeat + 1, configuration.folder())};
}

absl::Status Experiment::Run(const Configuration& configuration, const std::string& part, int repeat,
                             const std::string& label) {
  const RunLabel run = LabelOf(configuration, part, repeat);
  Configuration seeded = configuration;
  seeded.training.seed = run.seed;
  std::error_code error;
  std::filesystem::remove_all(folder_.path() + "/" + run.records, error);  // of a launch that did not end
  PSRING_ASSIGN_OR_RETURN(std::string folder, folder_.RecordFolder(run.records));
  PSRING_RETURN_IF_ERROR(ResolveTimes(folder, seeded));
  // One training uses --checkpoint_dir itself; each of several uses a subfolder.
  std::string& checkpoints = seeded.training.checkpoint_dir;
  if (!checkpoints.empty() && (manifest_.verb != "train" || manifest_.plan.rounds > 1)) {
    absl::StrAppend(&checkpoints, "/", absl::StripPrefix(run.records, "records/"));
  }
  const double expected_s = ExpectedLaunchSeconds(seeded, prepared_.probe, prepared_.cores);
  const double begin_s = seconds();
  const double slowness = expected_so_far_s_ > 0 ? took_so_far_s_ / expected_so_far_s_ : 1;
  display_.ExpectEndIn(slowness * ExpectedLeftSeconds());
  std::optional<EventFile> events;  // --tensorboard
  Site site = site_;
  // A comparison is not disturbed, and other machines' records come at the end.
  if (flags_.tensorboard && manifest_.verb == "train" && site_.nodes == nullptr && !seeded.simulated() &&
      !seeded.scaled()) {
    site.on_progress = [&] { (void)events->Follow(folder, seeded.ranks()); };  // Finish reports an error
  }
  const auto launch = [&]() -> absl::StatusOr<Launched> {
    if (flags_.tensorboard) {
      PSRING_ASSIGN_OR_RETURN(EventFile begun, BeginEvents(run, seeded));
      events.emplace(std::move(begun));
    }
    return Launch(seeded, folder, label, expected_s, prepared_.binaries, site, interrupt_, display_);
  };
  PSRING_ASSIGN_OR_RETURN(Launched launched, launch());
  if (part == "cost" && launched.records.foreign_cpu_pct > kMaxForeignCpuPct && repeats_left_ > 0 &&
      launched.wall_s < left_s()) {
    --repeats_left_;
    display_.Note(Tr("other programs used $1% of the processors during $0; psring repeats it",
                     configuration.name(), Fixed(launched.records.foreign_cpu_pct, 0)));
    std::filesystem::remove_all(folder, error);
    PSRING_ASSIGN_OR_RETURN(folder, folder_.RecordFolder(run.records));
    PSRING_RETURN_IF_ERROR(ResolveTimes(folder, seeded));
    PSRING_ASSIGN_OR_RETURN(launched, launch());
    // The load lasts, so repeating more launches would not help.
    if (launched.records.foreign_cpu_pct > kMaxForeignCpuPct) repeats_left_ = 0;
  }
  if (events.has_value()) PSRING_RETURN_IF_ERROR(events->Finish(launched.records));
  expected_so_far_s_ += expected_s;
  took_so_far_s_ += seconds() - begin_s;
  PSRING_ASSIGN_OR_RETURN(RunFigures figures, FiguresOf(seeded, launched.records));
  if (site_.nodes != nullptr && site_.nodes->clocks_within() > absl::ZeroDuration()) {
    const double within_ms = absl::ToDoubleMilliseconds(site_.nodes->clocks_within());
    // Waits are not meaningful if the clocks differ by a notable share of a step.
    const bool known = within_ms <= kClockShare * figures.step_ms;
    if (!known) figures.wait_ms.reset();
    display_.Note(Tr(known ? TrNoop("the machines' clocks agree within $0 ms")
                           : TrNoop("the machines' clocks agree only within $0 ms, which is too imprecise to "
                                    "determine which rank waited"),
                     absl::StrFormat("%.2g", within_ms)));
  }
  std::string line =
      Tr("$0$1: $2 $4/s, $3 ms a step", label, configuration.name(), WithThousands(figures.samples_per_s),
         Fixed(figures.step_ms, 1), UnitOf(configuration.training.reads_text()));
  if (figures.test_accuracy) line += Tr(", test accuracy $0", Fixed(*figures.test_accuracy, 4));
  if (part == "cost") {
    display_.SayPlain(line);
  } else {
    display_.Say(line);
  }
  Done done{run, configuration, std::move(launched.records), std::move(figures)};
  if (part == "accuracy") {
    PSRING_RETURN_IF_ERROR(Keep(done));
    PSRING_RETURN_IF_ERROR(folder_.ForceToDisk(run));
    return WriteManifest();
  }
  round_.push_back(std::move(done));
  return absl::OkStatus();
}

absl::Status Experiment::Keep(const Done& done) {
  const std::string& part = done.label.part;
  PSRING_RETURN_IF_ERROR(folder_.Append(done.label, done.configuration, done.records, done.figures));
  // The trace of all rounds would be too large for viewers.
  if (done.label.repeat == 0 && part != "accuracy") folder_.KeepTrace(done.label, done.configuration);
  ConfigurationRuns& runs = RunsOf(done.configuration);
  // Steps of the accuracy part touch other rows.
  if (part != "accuracy" || runs.cost.empty()) runs.sample = SampleOf(done.records);
  if (part != "accuracy") runs.cost.push_back(done.figures);
  if (part != "cost") runs.accuracy.push_back(done.figures);
  if (part == "accuracy") manifest_.trainings_done.push_back(done.label.records);
  return absl::OkStatus();
}

int Experiment::next_round() const {
  int round = 0;
  while (rounds_.contains(round)) ++round;
  return round;
}

absl::Status Experiment::EndRound() {
  if (!round_.empty()) rounds_.insert(round_.front().label.repeat);
  for (const Done& done : round_) {
    PSRING_RETURN_IF_ERROR(Keep(done));
    // The manifest counts only rounds that a power cut does not damage.
    if (manifest_.verb == "compare") PSRING_RETURN_IF_ERROR(folder_.ForceToDisk(done.label));
  }
  round_.clear();
  manifest_.rounds_done = rounds_.size();
  return WriteManifest();
}

absl::StatusOr<EventFile> Experiment::BeginEvents(const RunLabel& run,
                                                  const Configuration& configuration) const {
  const double now_s = absl::ToDoubleSeconds(WallNow() - absl::UnixEpoch());
  // A virtual clock begins at 0, which is mapped to the present.
  const double zero_s =
      configuration.simulated() || configuration.scaled() ? now_s : now_s - 1e-9 * MonotonicNanos();
  return EventFile::Begin(absl::StrFormat("%s/tensorboard/%s/%s-%d", folder_.path(), configuration.folder(),
                                          run.part, run.repeat + 1),
                          now_s, prepared_.machine.host, zero_s);
}

absl::Status Experiment::Predict(const std::vector<ConfigurationRuns>& runs, std::vector<SummaryRow>& rows) {
  if (!flags_.predict || !manifest_.wires) return absl::OkStatus();
  PredictionInputs inputs{.wires = *manifest_.wires, .cores = prepared_.cores};
  const TrainingOptions& training = flags_.options.training;
  if (!training.workload.empty()) {
    PSRING_ASSIGN_OR_RETURN(const Workload recorded, LoadWorkload(training.workload));
    inputs.workload = Faster(recorded, training.compute_speedup);
  }
  display_.Redraw("simulating what was measured");
  PredictRows(inputs, rows);
  return folder_.Write("residuals.csv", ResidualsCsv(rows, runs));
}

double Experiment::seconds() const { return 1e-9 * (MonotonicNanos() - prepared_.begin_ns); }

double Experiment::ExpectedLeftSeconds() const {
  const Plan& plan = manifest_.plan;
  const auto expected_s = [&](const Configuration& configuration) {
    return ExpectedLaunchSeconds(configuration, prepared_.probe, prepared_.cores);
  };
  double left_s = 0;
  for (const Configuration& configuration : plan.cost) {
    left_s += (plan.rounds - rounds_done()) * expected_s(configuration);
  }
  for (const Done& done : round_) left_s -= expected_s(done.configuration);
  for (int repeat = 0; repeat < plan.accuracy_repeats; ++repeat) {
    for (const Configuration& configuration : plan.accuracy) {
      if (!HasTraining(configuration, repeat)) left_s += expected_s(configuration);
    }
  }
  return std::max(0.0, left_s);
}

double Experiment::left_s() const {
  const CompareOptions& options = flags_.options;
  if (manifest_.verb != "compare" || !options.time_budget_given) return HUGE_VAL;
  return options.time_budget_s - kReportSeconds - seconds();
}

absl::Status Experiment::WithoutResults(const absl::Status& status) const {
  if (!absl::IsCancelled(status)) return status;
  const std::string message(status.message());
  const size_t line = std::min(message.find('\n'), message.size());  // then --resume of a checkpoint
  return absl::CancelledError(absl::StrCat(
      Tr("$0; there are no results; the logs are in $1", message.substr(0, line), folder_.path()),
      message.substr(line)));
}

}  // namespace psring
