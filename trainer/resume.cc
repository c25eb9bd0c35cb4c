#include "trainer/resume.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/check.h"

namespace psring {

absl::StatusOr<std::optional<CheckpointBytes>> ReadResume(const TrainingOptions& options,
                                                          const NoteSink& note) {
  if (options.resume.empty()) return std::nullopt;
  std::string path = options.resume;
  if (path == kLatestCheckpoint) {
    path = options.checkpoint_dir;
    if (ListCheckpoints(path).empty()) {
      note(absl::StrCat("--resume latest: there is no checkpoint in ", path, " yet; this is the beginning"));
      return std::nullopt;
    }
  }
  std::vector<std::string> notes;
  absl::StatusOr<CheckpointBytes> bytes = LoadCheckpoint(path, notes);
  if (!bytes.ok()) {
    return absl::Status(bytes.status().code(), absl::StrCat("--resume: ", bytes.status().message()));
  }
  for (const std::string& line : notes) note(line);
  return *std::move(bytes);
}

absl::StatusOr<std::optional<CheckpointBytes>> ShareCheckpoint(const TrainingOptions& options,
                                                               const StrategyRow& strategy, int rank,
                                                               Rendezvous* rendezvous,
                                                               std::optional<CheckpointBytes> bytes) {
  if (options.resume.empty() || rendezvous == nullptr) return bytes;
  const std::string mine =
      bytes.has_value() ? absl::StrCat(bytes->has_optimizer ? "+" : "-", bytes->position) : "";
  PSRING_ASSIGN_OR_RETURN(const std::vector<std::string> all, rendezvous->Exchange("resume", mine));
  const std::string& first = all.front();
  if (rank == 0 || first.empty()) return bytes;
  if (strategy.needs == Needs::kNothing) {
    PSRING_ASSIGN_OR_RETURN(bytes, ReadResume(options, [](const std::string&) {}));
    if (bytes.has_value() && bytes->position == first.substr(1)) return bytes;
    return absl::FailedPreconditionError(
        absl::StrCat("--resume: this rank finds another checkpoint at ", options.resume, " than rank 0"));
  }
  return CheckpointBytes{
      .path = "rank 0's checkpoint", .position = first.substr(1), .has_optimizer = first.front() == '+'};
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
