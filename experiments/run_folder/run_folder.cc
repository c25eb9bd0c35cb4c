#include "experiments/run_folder/run_folder.h"

#include <fcntl.h>

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "common/base/check.h"
#include "common/base/file_descriptor.h"
#include "common/io/files.h"
#include "common/measure/record_names.h"
#include "common/measure/records.h"
#include "common/text/translate.h"
#include "experiments/run_folder/recorded_run.h"
#include "trainer/programs/pipeline_flags.h"

namespace psring {
namespace {

absl::Status AppendText(const std::string& path, const std::string& text) {
  const FileDescriptor file(open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0666));
  if (!file.valid()) return FileError("write", path);
  return WriteToFile(file.get(), text.data(), text.size(), path);
}

// Errors name the file.
template <typename Record>
absl::StatusOr<Record> ReadRecord(const std::string& path,
                                  absl::StatusOr<Record> (*parse)(const std::string&)) {
  PSRING_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, kMaxRecordBytes));
  absl::StatusOr<Record> record = parse(text);
  if (record.ok()) return record;
  return absl::DataLossError(absl::StrCat(path, ": ", record.status().message()));
}

// `stem`: kSteps or kEarlierSteps, whose last line may be incomplete.
absl::StatusOr<std::vector<StepRecord>> ReadSteps(const std::string& folder, const char* stem, int rank) {
  const std::string path = absl::StrFormat("%s/%s%d.jsonl", folder, stem, rank);
  PSRING_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, kMaxRecordBytes));
  std::vector<StepRecord> steps;
  for (absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    absl::StatusOr<StepRecord> step = StepRecordFromJson(std::string(line));
    if (!step.ok() && stem == kEarlierSteps) break;
    if (!step.ok()) return absl::DataLossError(absl::StrCat(path, ": ", step.status().message()));
    // A restarted server continues from its checkpoint. Steps that it repeats count once.
    while (!steps.empty() && steps.back().step >= step->step) steps.pop_back();
    steps.push_back(*std::move(step));
  }
  return steps;
}

bool HasMeasured(const std::vector<StepRecord>& steps) {
  return std::ranges::any_of(steps, [](const StepRecord& step) { return !step.warmup; });
}

bool WasLost(const std::vector<ServerResult>& servers, int rank) {
  return std::ranges::any_of(servers, [rank](const ServerResult& server) {
    return std::ranges::count(server.lost_workers, rank) > 0;
  });
}

}  // namespace

absl::StatusOr<RunRecords> ReadRecords(const std::string& folder, int ranks, int servers) {
  RunRecords records;
  for (int server = 0; server < servers; ++server) {
    PSRING_ASSIGN_OR_RETURN(
        records.servers.emplace_back(),
        ReadRecord(absl::StrFormat("%s/result-server%d.json", folder, server), ServerResultFromJson));
  }
  for (int rank = 0; rank < ranks; ++rank) {
    if (WasLost(records.servers, rank)) continue;
    const std::string result = absl::StrFormat("%s/result-rank%d.json", folder, rank);
    // A worker that was stopped (SIGTERM) has no result, and its servers did not lose it: it had left.
    std::error_code error;  // ReadRecord reports it
    if (!records.servers.empty() && !std::filesystem::exists(result, error) && !error) {
      const absl::StatusOr<std::vector<StepRecord>> steps = ReadSteps(folder, kSteps, rank);
      records.servers.front().lost_workers.push_back(rank);
      records.servers.front().lost_at_step.push_back(steps.ok() && !steps->empty() ? steps->back().step + 1
                                                                                   : 0);
      continue;
    }
    PSRING_ASSIGN_OR_RETURN(records.ranks.emplace_back(), ReadRecord(result, RankResultFromJson));
    std::vector<StepRecord>& steps = records.steps.emplace_back();
    PSRING_ASSIGN_OR_RETURN(steps, ReadSteps(folder, kSteps, rank));
    if (HasMeasured(steps)) continue;
    // The job was restarted after this rank's last step.
    absl::StatusOr<std::vector<StepRecord>> earlier = ReadSteps(folder, kEarlierSteps, rank);
    records.restarted = records.restarted || earlier.ok();
    if (earlier.ok() && HasMeasured(*earlier)) steps = *std::move(earlier);
  }
  if (records.ranks.empty()) return absl::DataLossError(absl::StrCat(folder, ": all workers were lost"));
  return records;
}

absl::StatusOr<RunFolder> RunFolder::Open(RunClaim& claim) {
  PSRING_RETURN_IF_ERROR(claim.Keep());
  return RunFolder(claim.path());
}

absl::StatusOr<RunFolder> RunFolder::Create(RunClaim& claim) {
  PSRING_ASSIGN_OR_RETURN(RunFolder folder, Open(claim));
  PSRING_RETURN_IF_ERROR(folder.Clear());
  return folder;
}

absl::Status RunFolder::Clear() {
  PSRING_RETURN_IF_ERROR(Write("runs.csv", RunsCsvHeader()));
  PSRING_RETURN_IF_ERROR(Write("curves.csv", CurvesCsvHeader()));
  PSRING_RETURN_IF_ERROR(Write("steps.jsonl", ""));
  return Write("ddp.jsonl", "");
}

std::string RunFolder::run_id() const { return std::filesystem::path(path_).filename().string(); }

absl::StatusOr<std::string> RunFolder::RecordFolder(const std::string& records) {
  const std::string folder = absl::StrCat(path_, "/", records);
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error)
    return absl::FailedPreconditionError(Tr("cannot create $0: $1", folder, Translation(error.message())));
  return folder;
}

absl::Status RunFolder::Write(const std::string& name, const std::string& text) const {
  return WriteFile(absl::StrCat(path_, "/", name), text);
}

absl::Status RunFolder::WriteToDisk(const std::string& name, const std::string& text) const {
  return WriteFileToDisk(absl::StrCat(path_, "/", name), text);
}

absl::Status RunFolder::WriteManifest(const Manifest& manifest) const {
  PSRING_RETURN_IF_ERROR(WriteToDisk("manifest.json", ManifestJson(manifest)));
  const std::string run = manifest.finished() ? std::filesystem::absolute(path_).string() : "";
  return Write("config.toml", ConfigOf({.verb = manifest.verb,
                                        .command_line = manifest.command_line,
                                        .provenance = manifest.provenance},
                                       run));
}

absl::Status RunFolder::ForceToDisk(const RunLabel& label) const {
  PSRING_RETURN_IF_ERROR(ForceFolderToDisk(absl::StrCat(path_, "/", label.records), /*with_files=*/true));
  for (std::filesystem::path above = std::filesystem::path(label.records).parent_path(); !above.empty();
       above = above.parent_path()) {
    PSRING_RETURN_IF_ERROR(ForceFolderToDisk(absl::StrCat(path_, "/", above.string())));
  }
  return absl::OkStatus();
}

absl::Status RunFolder::Append(const RunLabel& label, const Configuration& configuration,
                               const RunRecords& records, const RunFigures& figures) {
  PSRING_RETURN_IF_ERROR(AppendText(path_ + "/runs.csv", RunsCsvLine(label, configuration, figures)));
  for (const RankResult& rank : records.ranks) {
    PSRING_RETURN_IF_ERROR(
        AppendText(path_ + "/curves.csv", CurvesCsvLines(label, configuration, rank.curve)));
  }
  PSRING_RETURN_IF_ERROR(AppendText(path_ + "/ddp.jsonl", DdpJsonl(label, configuration, records)));
  return AppendText(path_ + "/steps.jsonl", StepsJsonl(label, configuration, records));
}

LaunchTrace TraceOf(const std::string& folder, const Configuration& configuration) {
  LaunchTrace trace{.name = configuration.name(),
                    .strategy = configuration.strategy.name,
                    .workers = configuration.workers,
                    .servers = configuration.servers(),
                    .time_scale = configuration.training.time_scale,
                    .copy_streams = configuration.training.copy_streams,
                    .tied_every = TiedEvery(configuration.training)};
  // If ranks have parts of the model, not all are one group.
  const absl::StatusOr<RankResult> result =
      ReadRecord(absl::StrCat(folder, "/result-rank0.json"), RankResultFromJson);
  if (result.ok() && ReplicaRanks(configuration.training) == 1) {
    trace.backend = result->backend;
    trace.algorithm = result->algorithm;
    if (configuration.strategy.has_only_rows_on_servers())
      trace.group_buckets = result->bucket_elements.size();
  }
  for (int rank = 0; rank < configuration.ranks(); ++rank) {
    absl::StatusOr<std::string> text =
        ReadFile(absl::StrFormat("%s/trace-rank%d.json", folder, rank), kMaxRecordBytes);
    if (text.ok()) trace.ranks.push_back(*std::move(text));
  }
  return trace;
}

void RunFolder::KeepTrace(const RunLabel& label, const Configuration& configuration) {
  traces_.push_back(TraceOf(absl::StrCat(path_, "/", label.records), configuration));
}

absl::Status RunFolder::WriteTrace() const { return Write("trace.json", TraceJson(traces_)); }

}  // namespace psring
