// How the ranks of a run read and share the checkpoint of --resume.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/options/training_options.h"
#include "common/rendezvous/rendezvous.h"
#include "trainer/checkpoints/checkpoint.h"
#include "trainer/checkpoints/worker_parts.h"
#include "trainer/strategies/strategies.h"

namespace psring {

// For --resume: the newest in --checkpoint_dir.
inline constexpr char kLatestCheckpoint[] = "latest";

using NoteSink = std::function<void(const std::string&)>;

// The checkpoint that --resume names; nullopt without --resume, or with `latest` before the first checkpoint.
absl::StatusOr<std::optional<CheckpointBytes>> ReadResume(const TrainingOptions& options,
                                                          const NoteSink& note);

// Every rank calls it. Rank 0 sends the position of training from `bytes`, which it has read. Weights and
// optimizer state stay on rank 0, since the strategy sends them; without communication, and with --pp or
// --tp, all ranks read the checkpoint. Each worker reads its own part; if one cannot see the file, rank 0's
// `note` gets a message. `rendezvous`: null for a single rank.
absl::StatusOr<std::optional<CheckpointBytes>> ShareCheckpoint(const TrainingOptions& options,
                                                               const StrategyRow& strategy, int rank,
                                                               Rendezvous* rendezvous,
                                                               std::optional<CheckpointBytes> bytes,
                                                               const NoteSink& note);

// Every rank calls it. Collects the workers' own parts of a checkpoint; null if there are none.
absl::StatusOr<std::unique_ptr<WorkerParts>> PartsOf(const TrainingOptions& options,
                                                     const StrategyRow& strategy, Rendezvous& rendezvous,
                                                     const NoteSink& note);

// On rank 0, before training: creates --checkpoint_dir, and checks that it contains no other run.
absl::Status OpenCheckpointsOf(const TrainingOptions& options, const std::optional<CheckpointBytes>& resume);

}  // namespace psring
