#include "trainer/main/resume.h"

#include <algorithm>
#include <filesystem>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/errors.h"
#include "common/io/checkpoint_folder.h"
#include "common/io/files.h"
#include "common/io/hash.h"
#include "common/rendezvous/roster.h"
#include "common/text/peer_text.h"

namespace psring {

absl::StatusOr<std::optional<CheckpointBytes>> ReadResume(const TrainingOptions& options,
                                                          const NoteSink& note) {
  if (options.resume.empty()) return std::nullopt;
  std::string path = options.resume;
  if (path == kLatestCheckpoint) {
    path = options.checkpoint_dir;
    if (ListCheckpoints(path).empty()) {
      note(absl::StrCat("--resume latest: no checkpoint in ", path,
                        " yet; training starts from the beginning"));
      return std::nullopt;
    }
  }
  std::vector<std::string> notes;
  absl::StatusOr<CheckpointBytes> bytes = LoadCheckpoint(path, notes);
  PSRING_RETURN_IF_ERROR(Prefixed(bytes.status(), "--resume: "));
  for (const std::string& line : notes) note(line);
  return *std::move(bytes);
}

namespace {

// Reads this rank's own file of the checkpoint that rank 0 has read. Every rank calls it; some may not see
// rank 0's path.
absl::Status ReadResidual(const std::string& position, int rank, Rendezvous& rendezvous,
                          const std::optional<CheckpointBytes>& read, const NoteSink& note,
                          std::string& residual) {
  std::error_code error;
  const std::string folder = read.has_value() && !read->folder.empty()
                                 ? std::filesystem::absolute(read->folder, error).string()
                                 : "";
  PSRING_ASSIGN_OR_RETURN(const std::vector<std::string> folders,
                          rendezvous.Exchange("resume/folder", folder));
  std::string missing;
  if (rank > 0 && !folders.front().empty()) {
    PSRING_ASSIGN_OR_RETURN(const auto hashes, HashesIn(position));
    if (const auto known = hashes.find(WorkerFile(rank)); known != hashes.end()) {
      const std::string file = absl::StrCat(folders.front(), "/", known->first);
      residual = ReadFile(file, MostWeightsBytes(), SymbolicLinks::kReject).value_or("");
      if (HashBytes(residual.data(), residual.size()) != known->second) {
        residual.clear();
        missing = absl::StrCat("rank ", rank, " does not see ", file, "; its rounding errors are dropped");
      }
    }
  }
  PSRING_ASSIGN_OR_RETURN(const std::vector<std::string> notes,
                          rendezvous.Exchange("resume/missing", missing));
  for (const std::string& line : notes) {
    if (rank == 0 && !line.empty()) note(PeerText(line));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::optional<CheckpointBytes>> ShareCheckpoint(const TrainingOptions& options,
                                                               const StrategyRow& strategy, int rank,
                                                               Rendezvous* rendezvous,
                                                               std::optional<CheckpointBytes> bytes,
                                                               const NoteSink& note) {
  if (options.resume.empty() || rendezvous == nullptr) return bytes;
  const std::string mine =
      bytes.has_value() ? absl::StrCat(bytes->has_optimizer ? "+" : "-", bytes->position) : "";
  PSRING_ASSIGN_OR_RETURN(const std::vector<std::string> all, rendezvous->Exchange("resume", mine));
  const std::string& first = all.front();
  if (first.empty()) return bytes;
  std::string residual;
  if (options.wire != "float32") {
    PSRING_RETURN_IF_ERROR(ReadResidual(first.substr(1), rank, *rendezvous, bytes, note, residual));
  }
  if (rank == 0) return bytes;
  if (!strategy.communicates() || ReplicaRanks(options) > 1) {
    PSRING_ASSIGN_OR_RETURN(bytes, ReadResume(options, [](const std::string&) {}));
    if (bytes.has_value() && bytes->position == first.substr(1)) return bytes;
    return FailedPrecondition("--resume: at ", options.resume,
                              " this rank finds a different checkpoint than rank 0");
  }
  return CheckpointBytes{.path = "rank 0's checkpoint",
                         .position = first.substr(1),
                         .residual = std::move(residual),
                         .has_optimizer = first.front() == '+'};
}

absl::StatusOr<std::unique_ptr<WorkerParts>> PartsOf(const TrainingOptions& options,
                                                     const StrategyRow& strategy, Rendezvous& rendezvous,
                                                     const NoteSink& note) {
  if (options.checkpoint_dir.empty() || (options.wire == "float32" && !strategy.asynchronous()))
    return nullptr;
  std::vector<int> blind;
  PSRING_ASSIGN_OR_RETURN(auto parts, WorkerParts::Meet(rendezvous, options.checkpoint_dir, blind));
  if (!blind.empty() && options.wire != "float32" && rendezvous.options().rank == 0) {
    note(absl::StrCat(RanksText(blind), blind.size() == 1 ? " does" : " do", " not see ",
                      options.checkpoint_dir, ": checkpoints will not contain ",
                      blind.size() == 1 ? "its" : "their", " rounding errors"));
  }
  return parts;
}

absl::Status OpenCheckpointsOf(const TrainingOptions& options, const std::optional<CheckpointBytes>& resume) {
  if (options.checkpoint_dir.empty()) return absl::OkStatus();
  int64_t sequence = 0;
  if (resume.has_value()) {
    PSRING_ASSIGN_OR_RETURN(const TrainingPosition from, DecodePosition(*resume));
    sequence = std::max(from.sequence, resume->sequence);
  }
  return OpenCheckpoints(options.checkpoint_dir, sequence);
}

}  // namespace psring
