#include "experiments/one_gpu.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/check.h"
#include "common/io/csv.h"
#include "common/io/files.h"
#include "common/measure/records.h"
#include "common/text/translate.h"
#include "experiments/design/launches.h"
#include "experiments/engine/failure.h"
#include "experiments/run_folder/run_folder.h"
#include "experiments/verbs/predict/predict.h"

namespace psring {
namespace {

constexpr double kLink = 1e9;     // bits/s without --link, as in `compare` without a GPU
constexpr double kLayerMb = .25;  // bucket size while layers are timed: every large layer ends a bucket

// The part of `flags` that is measured.
ExperimentFlags OnTheGpu(const ExperimentFlags& flags) {
  ExperimentFlags measured = flags;
  measured.options.strategies = {"single", "none"};
  measured.options.workers = {1};
  measured.options.training.device = "cuda";
  measured.options.training.transport = "auto";
  measured.options.training.bucket_mb = std::min(measured.options.training.bucket_mb, kLayerMb);
  measured.link = {};
  measured.predict = false;
  return measured;
}

RawPredictFlags Beyond(const ExperimentFlags& flags, bool workers_given, const std::string& folder) {
  RawPredictFlags raw;
  std::vector<std::string> strategies;
  for (const std::string& name : flags.options.strategies) {
    if (name != "single" && name != "none") strategies.push_back(name);
  }
  if (!strategies.empty()) raw.strategies = absl::StrJoin(strategies, ",");
  std::vector<int> workers;
  for (const int count : flags.options.workers) {
    if (count > 1) workers.push_back(count);
  }
  raw.workers = workers_given ? absl::StrJoin(workers, ",") : "2,4,8";
  raw.link = absl::StrFormat("%gmbit", (flags.link.bits_per_s > 0 ? flags.link.bits_per_s : kLink) / 1e6);
  if (flags.link.latency_s > 0) raw.latency = absl::StrFormat("%gus", 1e6 * flags.link.latency_s);
  raw.bucket_mb = flags.options.training.bucket_mb;
  raw.seed = flags.options.training.seed;
  const std::string& placement = flags.options.training.server_placement;
  if (!placement.empty()) raw.server_placement = placement;
  raw.ps_schedule = flags.options.training.ps_schedule;
  raw.workload = folder + "/workload.csv";
  raw.out = folder + "/predicted";
  return raw;
}

// The workload of the last launch of `single`.
absl::StatusOr<Workload> RecordedIn(const std::string& folder, const ExperimentFlags& flags) {
  PSRING_ASSIGN_OR_RETURN(const std::vector<LaunchNote> launches, ListLaunches(folder));
  const auto single = std::find_if(launches.rbegin(), launches.rend(),
                                   [](const LaunchNote& note) { return note.strategy == "single"; });
  if (single == launches.rend()) return absl::NotFoundError(absl::StrCat(folder, " has no launch of single"));
  PSRING_ASSIGN_OR_RETURN(const RunRecords records, ReadRecords(single->folder, /*ranks=*/1, /*servers=*/0));
  Configuration configuration;
  configuration.training = flags.options.training;
  return WorkloadOf(records, configuration);
}

absl::Status PredictBeyond(const ExperimentFlags& flags, bool workers_given, const std::string& folder,
                           const Interrupt& interrupt, Display& display) {
  PSRING_ASSIGN_OR_RETURN(const Workload workload, RecordedIn(folder, flags));
  PSRING_RETURN_IF_ERROR(WriteFile(folder + "/workload.csv", WorkloadCsv(workload)));
  PSRING_ASSIGN_OR_RETURN(const PredictFlags predicted,
                          UnderstandPredict(Beyond(flags, workers_given, folder), flags.command_line));
  display.SayLines(Tr("\nMore GPUs like this one ($0), *simulated* from the times in $1/workload.csv:\n",
                      workload.device, folder));
  if (RunPredict(predicted, interrupt, display) != 0) {
    return absl::InternalError("the prediction for several GPUs failed (see above)");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Workload> WorkloadOf(const RunRecords& records, const Configuration& configuration) {
  PSRING_CHECK(records.ranks.size() == 1 && records.steps.size() == 1);
  const DdpFigures& ddp = records.ranks[0].ddp;
  const std::vector<int64_t>& bytes = ddp.has_rebuilt_buckets ? ddp.rebuilt_bucket_bytes : ddp.bucket_bytes;
  // Times relative to the last bucket, which ends backward.
  std::vector<double> before_end_ms(bytes.size());
  int steps = 0;
  for (const StepRecord& step : records.steps[0]) {
    if (step.warmup || step.buckets.size() != bytes.size()) continue;
    ++steps;
    for (size_t i = 0; i < bytes.size(); ++i) {
      before_end_ms[i] += 1e-6 * (step.buckets.back().ready_ns - step.buckets[i].ready_ns);
    }
  }
  if (steps == 0) return absl::NotFoundError("single has no measured steps");
  Workload workload{.name = "workload.csv",
                    .model = configuration.training.model,
                    .device = records.ranks[0].device,
                    .batch = configuration.training.batch,
                    .forward_ms = ddp.forward_ms,
                    .backward_ms = ddp.backward_ms};
  double ready_ms = 0;  // never decreases
  for (size_t i = 0; i < bytes.size(); ++i) {
    ready_ms = std::max(ready_ms, ddp.backward_ms - before_end_ms[i] / steps);
    workload.tensors.push_back({.name = absl::StrCat("bucket", i), .bytes = bytes[i], .ready_ms = ready_ms});
  }
  workload.backward_ms = std::max(workload.backward_ms, ready_ms);
  return workload;
}

std::string WorkloadCsv(const Workload& workload) {
  std::string csv = absl::StrFormat(
      "# model: %s\n# batch: %d\n# device: %s\n# forward_ms: %.6f\n# backward_ms: "
      "%.6f\nname,bytes,ready_ms\n",
      workload.model, workload.batch, workload.device, workload.forward_ms, workload.backward_ms);
  for (const GradientTensor& tensor : workload.tensors) {
    csv += CsvLine({tensor.name, absl::StrCat(tensor.bytes), absl::StrFormat("%.6f", tensor.ready_ms)});
  }
  return csv;
}

int CompareOnOneGpu(const ExperimentFlags& flags, bool workers_given, const Interrupt& interrupt,
                    Display& display) {
  if (flags.options.training.local_aggregation) {
    return ReportFailure(
        "compare",
        absl::InvalidArgumentError(
            "--local_aggregation needs several workers on a machine, and this one has one GPU; "
            "use psring predict --local_aggregation --gpus_per_node 8, or --device cpu"),
        display);
  }
  display.Say(
      Tr("psring: note: this machine has one GPU, so single and none are measured on it, and more GPUs are "
         "simulated from its times per layer (to share the GPU: --device cuda --oversubscribe; to compare on "
         "CPUs: --device cpu)"));
  const absl::StatusOr<std::string> folder = Compare(OnTheGpu(flags), interrupt, display);
  if (!folder.ok()) return ReportFailure("compare", folder.status(), display);
  if (flags.dry_run) return 0;
  const absl::Status predicted = PredictBeyond(flags, workers_given, *folder, interrupt, display);
  return predicted.ok() ? 0 : ReportFailure("compare", predicted, display);
}

}  // namespace psring
