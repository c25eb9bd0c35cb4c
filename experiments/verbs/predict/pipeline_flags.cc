#include "experiments/verbs/predict/pipeline_flags.h"

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/check.h"
#include "common/cli/command_line.h"
#include "common/text/translate.h"
#include "common/text/units.h"

namespace psring {
namespace {

constexpr int kMaxStages = 1 << 16, kMaxMicroBatches = 4096;

// Bytes of one sample's activations between two stages.
absl::StatusOr<double> BoundaryOf(const RawPredictFlags& raw, const Workload& workload) {
  if (!raw.boundary.empty()) {
    const absl::StatusOr<uint64_t> bytes = ParseByteSize(raw.boundary);
    if (bytes.ok()) return static_cast<double>(*bytes);
    return absl::Status(bytes.status().code(), absl::StrCat("--boundary: ", bytes.status().message()));
  }
  if (workload.activation_bytes > 0) return static_cast<double>(workload.activation_bytes);
  const std::vector<std::string> names =
      WorkloadNames([](const Workload& other) { return other.activation_bytes > 0; });
  return absl::InvalidArgumentError(Tr(
      "workload $0 does not contain the size of its activations; give the bytes of one sample's activations "
      "between two stages, such as --boundary 784K, or use one of $1",
      workload.name, absl::StrJoin(names, ", ")));
}

}  // namespace

std::vector<GivenFlag> FlagsOfPipelines(const RawPredictFlags& raw) {
  return {{!raw.program.empty(), "--program"},
          {raw.micro_batches > 0, "--micro_batches"},
          {!raw.cuts.empty(), "--cuts"},
          {!raw.boundary.empty(), "--boundary"},
          {raw.copy_streams > 0, "--copy_streams"}};
}

std::vector<GivenFlag> FlagsOfReplicas(const RawPredictFlags& raw) {
  const RawPredictFlags standard;
  return {{!raw.calibrate.empty(), "--calibrate"},
          {raw.exchange_only, "--exchange_only"},
          {raw.overlap != standard.overlap, "--overlap none"},
          {raw.partition_mb > 0, "--partition_mb"},
          {raw.local_aggregation, "--local_aggregation"},
          {raw.dp_shard > 0, "--dp_shard"},
          {raw.straggler != standard.straggler, "--straggler"},
          {raw.jitter_ms != standard.jitter_ms, "--jitter_ms"}};
}

void AddPipelineFlags(CLI::App& verb, RawPredictFlags& raw) {
  const auto add = [&](const std::string& group, const char* name, auto& to, const char* value,
                       const std::string& text, const ValueCheck& check = {}) {
    CLI::Option* const option = verb.add_option(name, to, text)->group(group)->option_text(value);
    if (check) option->check(check);
  };
  const char* group = "Pipelines";
  add(group, "--pp", raw.pp, "P",
      "Cut the model into P stages. --workers is the number of all devices, in replicas of P. Data "
      "parallelism on the same devices is shown beside it",
      WholeNumber(2, kMaxStages));
  add(group, "--program", raw.program, "NAME", "What each device computes in which order [1f1b]:");
  AddPrograms(verb);
  add(group, "--micro_batches", raw.micro_batches, "M",
      absl::StrCat("Batches (--batch) that a replica computes in a step [", kMicroBatchesPerRank, " P]"),
      WholeNumber(1, kMaxMicroBatches));
  add(group, "--boundary", raw.boundary, "BYTES",
      "Activations of one sample between two stages, such as 784K [the workload's, if it contains them]");
  add(InHelpAll(group), "--cuts", raw.cuts, "B,...",
      "The block of layers (from 0) with which each stage but the first begins [balanced by time]",
      CountsText(kMaxStages * 2));
  add(InHelpAll(group), "--copy_streams", raw.copy_streams, "1|2",
      "How a device's messages run: 2, each direction to each neighbour has its own stream, so that they "
      "overlap; 1, all follow one another on one stream [2]",
      WholeNumber(1, 2));
}

absl::StatusOr<std::optional<PipelineCase>> UnderstandPipeline(const RawPredictFlags& raw,
                                                               const PredictFlags& flags) {
  if (!raw.layouts.empty()) return std::nullopt;  // which has checked these flags
  PSRING_RETURN_IF_ERROR(CheckBesidePp(raw.pp > 0, FlagsOfPipelines(raw), FlagsOfReplicas(raw)));
  if (raw.pp == 0) return std::nullopt;
  PipelineCase point{
      .ranks = raw.pp,
      .micro_batches = raw.micro_batches > 0 ? raw.micro_batches : kMicroBatchesPerRank * raw.pp};
  if (raw.copy_streams > 0) point.copy_streams = raw.copy_streams;
  TrainingOptions training;
  training.pp = raw.pp;
  training.wire = raw.wire;
  if (!raw.program.empty()) training.program = raw.program;
  PSRING_ASSIGN_OR_RETURN(point.program, FindPipelineProgram(training.program));
  for (const std::string& name : flags.strategies) {
    const absl::StatusOr<StrategyRow> strategy = FindStrategy(name);
    if (strategy.ok()) PSRING_RETURN_IF_ERROR(CheckWithoutFlush(training, *strategy));
  }
  if (!raw.cuts.empty()) {
    PSRING_ASSIGN_OR_RETURN(point.cuts, ParseCounts(raw.cuts, kMaxStages * 2));
  }
  PSRING_ASSIGN_OR_RETURN(const double sample_bytes, BoundaryOf(raw, flags.workload));
  point.boundary_bytes = sample_bytes * flags.workload.batch;
  for (const int workers : flags.workers) {
    point.workers = workers;
    PSRING_RETURN_IF_ERROR(CheckPipeline(flags.workload, point, flags.cluster));
  }
  return point;
}

}  // namespace psring
