#include <algorithm>
#include <climits>
#include <filesystem>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/check.h"
#include "common/base/errors.h"
#include "common/io/files.h"
#include "common/options/training_options.h"
#include "common/text/translate.h"
#include "experiments/analysis/findings.h"
#include "experiments/design/plan.h"
#include "experiments/page/page.h"
#include "experiments/run_folder/run_files.h"
#include "experiments/run_folder/run_folder.h"
#include "trainer/programs/pipeline_flags.h"

namespace psring {
namespace {

namespace fs = std::filesystem;

bool HasFile(const fs::path& path) {
  std::error_code error;
  return fs::exists(path, error);
}

std::string OfRank(const char* kind, int rank, const char* extension) {
  return absl::StrCat(kind, "-rank", rank, extension);
}

// InvalidArgument: some ranks had ended before others began, by their clocks.
absl::Status CheckOneClock(const std::string& folder, const RunRecords& records) {
  int64_t last_begin = INT64_MIN, first_end = INT64_MAX;
  for (const std::vector<StepRecord>& steps : records.steps) {
    if (steps.empty()) continue;
    last_begin = std::max(last_begin, steps.front().begin_ns);
    first_end = std::min(first_end, steps.back().begin_ns + static_cast<int64_t>(1e6 * steps.back().step_ms));
  }
  if (last_begin <= first_end) return absl::OkStatus();
  return InvalidTr(
      "$0 has records of several machines or launches, whose clocks differ; record each launch in a "
      "folder of its own, and for several machines use psring train --nnodes",
      folder);
}

absl::StatusOr<Configuration> ConfigurationOf(const std::string& folder, const RankResult& result) {
  const std::string path = absl::StrCat(folder, "/", OfRank("result", 0, ".json"));
  if (result.flags.empty()) {
    return InvalidTr("$0 does not say what was trained; record the run again with this version of trainer",
                     path);
  }
  const absl::StatusOr<TrainingOptions> training = TrainingOptionsOf(result.flags);
  if (!training.ok()) return absl::DataLossError(absl::StrCat(path, ": ", training.status().message()));
  const int64_t replicas = result.data_parallel.replicas;
  const int64_t workers = replicas > 0 ? replicas : result.world_size;
  if (workers < 1 || workers > kMaxLogicalWorkers) {
    return InvalidArgument(path, ": report shows 1 to ", kMaxLogicalWorkers, " workers, not ", workers);
  }
  Probe probe{.parameters = result.parameters};
  probe.updates = {{.strategy = UpdateRuleOf(*training, BaseName(result.strategy)),
                    .optimizer = result.optimizer,
                    .lr = result.lr}};
  // The machine's cores are not recorded.
  return MakeConfiguration(result.strategy, static_cast<int>(workers), *training, probe,
                           /*cores=*/INT_MAX);
}

absl::StatusOr<RunRecords> AllRecords(const std::string& folder, const Configuration& configuration) {
  int servers = 0;
  while (servers < configuration.servers() &&
         HasFile(fs::path(folder) / absl::StrCat("result-server", servers, ".json"))) {
    ++servers;
  }
  const int ranks = configuration.ranks();
  std::vector<int> missing;
  for (int rank = 0; rank < ranks; ++rank) {
    if (!HasFile(fs::path(folder) / OfRank("result", rank, ".json"))) missing.push_back(rank);
  }
  if (!missing.empty() && servers == 0) {
    return absl::NotFoundError(Tr(missing.size() == 1
                                      ? TrNoop("$0 has no result of rank $1, of $2 ranks; copy the files "
                                               "that all ranks recorded into one folder")
                                      : TrNoop("$0 has no result of ranks $1, of $2 ranks; copy the files "
                                               "that all ranks recorded into one folder"),
                                  folder, absl::StrJoin(missing, ", "), ranks));
  }
  return ReadRecords(folder, ranks, servers == configuration.servers() ? servers : 0);
}

}  // namespace

bool HasLaunchRecords(const std::string& folder) {
  const fs::path path(folder);
  return !HasFile(path / "manifest.json") && !HasFile(path / "summary.json") &&
         (HasFile(path / "result-rank0.json") || HasFile(path / "steps-rank0.jsonl"));
}

absl::StatusOr<std::map<std::string, std::string>> LaunchFiles(const std::string& folder) {
  const std::string path = absl::StrCat(folder, "/", OfRank("result", 0, ".json"));
  if (HasFile(fs::path(folder) / "launch.json")) {
    return InvalidTr(
        "$0 is one launch of a run; give psring report the run's folder, which contains records/", folder);
  }
  const absl::StatusOr<std::string> text = ReadFile(path, kMaxRecordBytes);
  if (absl::IsNotFound(text.status())) {
    return absl::NotFoundError(
        Tr("$0 is missing: rank 0 has not finished; wait for it, or train again", path));
  }
  PSRING_RETURN_IF_ERROR(text.status());
  const absl::StatusOr<RankResult> first = RankResultFromJson(*text);
  if (!first.ok()) return absl::DataLossError(absl::StrCat(path, ": ", first.status().message()));
  PSRING_ASSIGN_OR_RETURN(const Configuration configuration, ConfigurationOf(folder, *first));
  PSRING_ASSIGN_OR_RETURN(const RunRecords records, AllRecords(folder, configuration));
  PSRING_RETURN_IF_ERROR(CheckOneClock(folder, records));
  PSRING_ASSIGN_OR_RETURN(const RunFigures figures, FiguresOf(configuration, records));

  fs::path name(folder);
  if (!name.has_filename()) name = name.parent_path();
  const RunLabel label{
      .run_id = name.filename().string(), .part = "training", .seed = configuration.training.seed};
  const std::vector<ConfigurationRuns> runs = {{.configuration = configuration,
                                                .sample = SampleOf(records),
                                                .cost = {figures},
                                                .accuracy = {figures}}};
  const std::vector<SummaryRow> rows = Summarise(label.run_id, runs, std::nullopt);
  const auto findings = [&] {
    std::vector<std::string> sentences = {
        Tr("This page shows one launch of $0 from the records that `trainer --record` wrote. They do not say "
           "on which machines and network it ran, and one launch has no intervals and nothing to compare "
           "with, so the page has no theory for this network and names no winner; psring compare and psring "
           "train record all of this.",
           configuration.name())};
    if (configuration.servers() > 0 && records.servers.empty()) {
      sentences.emplace_back(
          Tr("The records of the parameter server are missing, so its bytes and staleness are not shown; "
             "start ps_server with --record, too."));
    }
    const std::vector<std::string> found = Findings(rows, std::nullopt, /*cores=*/INT_MAX);
    sentences.insert(sentences.end(), found.begin(), found.end());
    return absl::StrCat(absl::StrJoin(sentences, "\n"), "\n");
  };
  std::string curves = CurvesCsvHeader();
  for (const RankResult& rank : records.ranks) curves += CurvesCsvLines(label, configuration, rank.curve);
  return std::map<std::string, std::string>{
      {"summary.json", SummaryJson(rows)},
      {"table.json", TableJson(rows, std::nullopt, std::nullopt)},
      {"findings.txt", InLanguage(Language::kEnglish, findings)},
      {"findings.zh.txt", InLanguage(Language::kChinese, findings)},
      {"runs.csv", RunsCsvHeader() + RunsCsvLine(label, configuration, figures)},
      {"curves.csv", curves},
      {"steps.jsonl", StepsJsonl(label, configuration, records)},
      {"trace.json", TraceJson({TraceOf(folder, configuration)})}};
}

}  // namespace psring
