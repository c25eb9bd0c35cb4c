#include "trainer/main/virtual_main.h"

#include <algorithm>
#include <cstdio>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/errors.h"
#include "common/cli/command_line.h"
#include "common/io/files.h"
#include "common/measure/arrivals.h"
#include "common/measure/records.h"
#include "nlohmann/json.hpp"
#include "trainer/main/progress.h"
#include "trainer/main/record_writer.h"
#include "trainer/models/replayed_model.h"
#include "trainer/virtual_clock/replay.h"
#include "trainer/virtual_clock/virtual_training.h"

namespace psring {
namespace {

struct RankRecords {
  std::unique_ptr<RecordWriter> writer;
  std::unique_ptr<Trace> trace;
};

// All workers are computed on the host.
absl::StatusOr<std::unique_ptr<Device>> HostDevice(const std::string& spec) {
  if (spec == "auto" || spec == "cpu") return MakeCpuDevice();
  return InvalidArgument("--device ", spec,
                         ": --clock virtual and --replay compute on the CPU; omit --device");
}

}  // namespace

absl::Status TrainVirtually(const TrainerFlags& flags) {
  const int workers = std::max(1, flags.workers);
  const std::unique_ptr<Progress> progress =
      MakeProgress(flags.progress, /*rank=*/0, workers, /*replicas=*/workers, flags.training.reads_text());
  progress->Started();
  PSRING_ASSIGN_OR_RETURN(const std::unique_ptr<Device> device, HostDevice(flags.training.device));
  std::vector<RankRecords> records;
  for (int rank = 0; rank < workers && !flags.record.empty(); ++rank) {
    RankRecords& of_rank = records.emplace_back();
    PSRING_ASSIGN_OR_RETURN(of_rank.writer, RecordWriter::Open(flags.record, rank));
    // Viewers cannot open very large traces, so all workers together get the capacity of one live rank.
    of_rank.trace = std::make_unique<Trace>(rank, (size_t{1} << 16) / static_cast<size_t>(workers));
  }
  PSRING_ASSIGN_OR_RETURN(const DataSplits data, DataOf(flags.training));

  int64_t samples = 0;  // of rank 0
  VirtualRun run{.workers = workers, .device = *device, .data = data};
  run.on_step = [&](const StepRecord& record) {
    if (record.rank == 0) samples += record.samples;
    if (records.empty()) return absl::OkStatus();
    RankRecords& of_rank = records[static_cast<size_t>(record.rank)];
    for (const TraceSpan& span : SpansOf(record)) of_rank.trace->Add(span);
    return of_rank.writer->Add(record);
  };
  run.on_progress = [&](int64_t done, int64_t planned, double loss) {
    progress->Step({.done = done, .planned = planned, .samples = samples, .loss = loss});
  };
  run.on_warning = [](const std::string& warning) { Note("trainer", warning); };
  run.on_evaluating = [&](int64_t done, int64_t planned) { progress->Evaluating(done, planned); };
  run.on_evaluation = [&](const CurvePoint& point) { progress->Evaluated(point); };
  progress->Ready();
  PSRING_ASSIGN_OR_RETURN(const VirtualOutcome outcome, RunVirtual(flags.training, run));
  for (size_t server = 0; server < outcome.servers.size() && !flags.record.empty(); ++server) {
    PSRING_RETURN_IF_ERROR(WriteFile(absl::StrCat(flags.record, "/result-server", server, ".json"),
                                     ToJson(outcome.servers[server])));
  }
  for (size_t rank = 0; rank < records.size(); ++rank) {
    PSRING_RETURN_IF_ERROR(records[rank].writer->Finish(*records[rank].trace, outcome.ranks[rank]));
  }
  progress->Done(outcome.ranks.front());
  return absl::OkStatus();
}

absl::Status ReplayFile(const TrainerFlags& flags) {
  const std::unique_ptr<Progress> progress =
      MakeProgress(flags.progress, /*rank=*/0, /*world_size=*/1, /*replicas=*/1, flags.training.reads_text());
  progress->Started();
  PSRING_ASSIGN_OR_RETURN(const std::string bytes, ReadFile(flags.replay, kMaxRecordBytes));
  const absl::StatusOr<Arrivals> arrivals = ArrivalsFromBytes(bytes);
  if (!arrivals.ok()) {
    return InvalidArgument("--replay ", flags.replay, ": ", arrivals.status().message());
  }
  PSRING_ASSIGN_OR_RETURN(const std::unique_ptr<Device> device, HostDevice(flags.training.device));
  PSRING_ASSIGN_OR_RETURN(const DataSplits data, DataOf(flags.training));
  Replay replay{.device = *device, .data = data};
  replay.on_progress = [&](int64_t done, int64_t all) {
    progress->Step({.done = done, .planned = all, .samples = done});
  };
  progress->Ready();
  PSRING_ASSIGN_OR_RETURN(const ReplayOutcome outcome, ReplayArrivals(flags.training, *arrivals, replay));
  std::printf(
      "%s\n",
      nlohmann::json{{"weights_hash", outcome.weights_hash}, {"updates", outcome.updates}}.dump().c_str());
  return absl::OkStatus();
}

}  // namespace psring
