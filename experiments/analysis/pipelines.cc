// The figures of pipelines: their bubble, measured and simulated, and what they send and need compared with
// replicas.
#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/options/server_arguments.h"
#include "common/text/translate.h"
#include "common/text/units.h"
#include "experiments/analysis/row_queries.h"
#include "experiments/analysis/summarise.h"
#include "experiments/analysis/table.h"
#include "experiments/analysis/verdict.h"
#include "experiments/design/estimate.h"
#include "experiments/simulator/pipeline.h"
#include "trainer/programs/mesh.h"
#include "trainer/programs/pipeline_flags.h"
#include "trainer/programs/program_rows.h"

namespace psring {
namespace {

// What a rank sends for the sums of its stages' gradients.
double GradientBytes(const Configuration& configuration, const Scheme& scheme, const RankResult& rank) {
  double bytes = 0;
  for (const int64_t elements : rank.bucket_elements) {
    bytes += PayloadBytesPerWorker(PatternOf(configuration, scheme), ExchangeBytes(configuration, elements));
  }
  return bytes;
}

absl::StatusOr<Mesh> MeshOf(const Configuration& configuration) {
  const TrainingOptions& training = configuration.training;
  return Mesh::Create(configuration.workers, training.pp, training.rank_order, training.tp, training.cp);
}

// By position, mean over replicas; empty: computing was not measured.
std::vector<DeviceSeconds> DevicesOf(const SummaryRow& row) {
  const Configuration& configuration = row.configuration;
  const absl::StatusOr<Mesh> mesh = MeshOf(configuration);
  if (!mesh.ok()) return {};
  std::vector<DeviceSeconds> devices(mesh->positions());
  for (const WorkerFigures& worker : row.mean.workers) {
    if (worker.rank >= mesh->workers()) return {};
    DeviceSeconds& device = devices[mesh->PlaceOf(worker.rank).position];
    const double share = 1e-3 / (mesh->replicas() * mesh->shares() * mesh->segments());
    const double forward_share = worker.forward_share > 0 ? worker.forward_share : 1. / 3;
    device.forward += share * worker.compute_ms * forward_share;
    device.backward += share * worker.compute_ms * (1 - forward_share);
    device.activation += share * worker.activation_message_ms;
    device.gradient += share * worker.gradient_message_ms;
  }
  const bool measured = std::ranges::all_of(devices, [](const DeviceSeconds& of) { return of.forward > 0; });
  return measured ? devices : std::vector<DeviceSeconds>();
}

// A step without exposed communication.
double HiddenMs(const SummaryRow& row) { return row.mean.step_ms - row.mean.exposed_comm_ms; }

double Rounded(double value) {
  double rounded = value;
  (void)absl::SimpleAtod(ThreeDigits(value), &rounded);
  return rounded;
}

// Where the slower of two layouts wins; empty: nowhere, or not known.
std::string Turn(const SummaryRow& copy, const SummaryRow& cut) {
  const bool copy_wins = copy.mean.step_ms < cut.mean.step_ms;
  const SummaryRow &winner = copy_wins ? copy : cut, &other = copy_wins ? cut : copy;
  const std::string name = NameWithServers(other);
  if (cut.link.bits_per_s > 0) {
    // hidden + exposed x is equal for both, at 1/x times the rate.
    const double x =
        (HiddenMs(other) - HiddenMs(winner)) / (winner.mean.exposed_comm_ms - other.mean.exposed_comm_ms);
    if (!(x > 0) || !std::isfinite(x)) return "";
    return Tr(
        x > 1 ? TrNoop("$0 wins below $1 per link (derived)") : TrNoop("$0 wins from $1 per link (derived)"),
        name, BitRateText(Rounded(cut.link.bits_per_s / x)));
  }
  // Of the replicas, what is exposed grows with the gradient; ranks of a sequence add it up, too.
  if (cut.configuration.training.cp > 1) return "";
  const double x = (cut.mean.step_ms - HiddenMs(copy)) / copy.mean.exposed_comm_ms;
  if (!(x > 0) || !std::isfinite(x) || copy.sample.parameters == 0) return "";
  const std::string megabytes =
      MegabytesOf(static_cast<int64_t>(x * static_cast<double>(copy.sample.parameters)));
  return Tr(x > 1 ? TrNoop("$0 wins from $1 MB of gradients (derived)")
                  : TrNoop("$0 wins below $1 MB of gradients (derived)"),
            name, megabytes);
}

// What the largest workers allocated; empty: about the same, or not known.
std::string MemoryText(const SummaryRow& copy, const SummaryRow& cut) {
  constexpr double kClearlyMore = 1.1;
  const double of_copy = MostMemoryMb(copy.mean.memory, &RankMemory::measured),
               of_cut = MostMemoryMb(cut.mean.memory, &RankMemory::measured);
  const auto [least, most] = std::minmax(of_copy, of_cut);
  if (least == 0 || most <= kClearlyMore * least) return "";
  return Tr("a worker needs up to $0 MiB with $1, $2 MiB with $3", ThreeDigits(of_cut), NameWithServers(cut),
            ThreeDigits(of_copy), NameWithServers(copy));
}

}  // namespace

size_t BucketsAt(const Configuration& configuration, const RunRecords& records, int server) {
  const TrainingOptions& training = configuration.training;
  const absl::StatusOr<Mesh> mesh = MeshOf(configuration);
  if (!mesh.ok() || training.pp == 1) return records.ranks.front().bucket_elements.size();
  const int position = PartOfServer(training, server, configuration.servers()) / mesh->shares();
  const auto of_position =
      std::ranges::find(records.ranks, mesh->RankAt({.position = position}), &RankResult::rank);
  return of_position == records.ranks.end() ? 0 : of_position->bucket_elements.size();
}

void AddPipelineFigures(const Configuration& configuration, const RunRecords& records, RunFigures& figures) {
  const TrainingOptions& training = configuration.training;
  const absl::StatusOr<Mesh> mesh = MeshOf(configuration);
  const absl::StatusOr<NamedProgram> program = FindStepProgram(training.program);
  const std::optional<Scheme> scheme = SchemeOf(configuration.strategy);
  std::vector<double> bubbles, boundaries;
  for (size_t rank = 0; rank < records.steps.size(); ++rank) {
    const std::vector<StepRecord>& steps = records.steps[rank];
    const double step_ms = MeanOf(steps, &StepRecord::step_ms),
                 tx_bytes = MeanOf(steps, &StepRecord::payload_tx_bytes);
    if (step_ms <= 0) continue;
    const RankResult& result = records.ranks[rank];
    if (training.pp == 1) {
      if (!scheme) continue;
      const double sums = tx_bytes - GradientBytes(configuration, *scheme, result);
      boundaries.push_back(sums / training.micro_batches);
      continue;
    }
    bubbles.push_back(MeanOf(steps, &StepRecord::bubble_ms) / step_ms);
    const bool is_first =
        mesh.ok() && result.rank < mesh->workers() && mesh->PlaceOf(result.rank).position == 0;
    if (!is_first || !program.ok() || !scheme || configuration.divides()) continue;
    // It sends the activations of all of its stages, and the gradients of all but the first.
    const double messages = static_cast<double>(training.micro_batches) * (2 * program->chunks - 1);
    // Of the tensor that it shares with the last stage it sends all to that one, as one of two ranks.
    const double sums = UpdatesOfStep(training) * (GradientBytes(configuration, *scheme, result) +
                                                   sizeof(float) * static_cast<double>(result.tied_elements));
    boundaries.push_back((tx_bytes - sums) / messages);
  }
  if (!bubbles.empty()) figures.bubble_fraction = Mean(bubbles);
  if (!boundaries.empty() && Mean(boundaries) > 0) figures.boundary_bytes = Mean(boundaries);
}

void AddWalk(SummaryRow& row) {
  const TrainingOptions& training = row.configuration.training;
  const absl::StatusOr<NamedProgram> program = FindStepProgram(training.program);
  if (training.pp == 1 || !program.ok()) return;
  const std::vector<DeviceSeconds> devices = DevicesOf(row);
  if (devices.empty() || row.mean.step_ms <= 0) {
    if (program->row.bubble != nullptr)
      row.predicted_bubble = program->row.bubble(training.pp, program->chunks, training.micro_batches);
    return;
  }
  const absl::StatusOr<WalkSeconds> walk = SecondsOfWalk(*program, training.micro_batches, devices,
                                                         training.copy_streams, TiedEvery(training) > 0);
  if (!walk.ok()) return;
  row.predicted_bubble = 1e3 * walk->bubble / row.mean.step_ms;
  if (row.configuration.replicas() == 1)
    row.predicted_step_ms = 1e3 * walk->step + row.mean.update_ms.value_or(0);
}

std::string LayoutsText(bool has_stages) {
  const std::string layouts =
      Tr("Layouts: dp, replicas of the model; pp, stages of a replica; tp, workers that divide its matrices; "
         "cp, workers that divide its sequences.");
  if (!has_stages) return layouts;
  return absl::StrCat(
      layouts, SentenceGap(),
      Tr("A rank waits for bytes that are on their way (exposed) and for other stages to compute (bubble, a "
         "part of the step); simulated: of the program with the measured times of the stages."));
}

std::string CopyOrCut(const SummaryRow& copy, const SummaryRow& cut) {
  const std::string gradients = MegabytesOf(copy.sample.parameters);
  const TrainingOptions& training = cut.configuration.training;
  const std::string sent =
      cut.mean.boundary_bytes
          ? Tr(training.pp > 1
                   ? TrNoop("$0 sends $1 MB of activations per micro-batch, $2 $3 MB of gradients per step")
               : training.cp > 1 && training.tp == 1
                   ? TrNoop("$0 sends $1 MB for attention per micro-batch, both $3 MB of gradients per step")
                   : TrNoop("$0 sends $1 MB for sums of activations per micro-batch, $2 $3 MB of gradients "
                            "per step"),
               NameWithServers(cut), ThreeDigits(*cut.mean.boundary_bytes / 1e6), NameWithServers(copy),
               gradients)
          : Tr("$0 cuts the model, $1 exchanges $2 MB of gradients per step", NameWithServers(cut),
               NameWithServers(copy), gradients);
  std::vector<std::string> parts = {sent, Turn(copy, cut), MemoryText(copy, cut)};
  std::erase(parts, "");
  return absl::StrJoin(parts, Tr("; "));
}

}  // namespace psring
