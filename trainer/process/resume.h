// How the ranks of a run come by the checkpoint that --resume names.
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

// What --resume names; nothing where training begins: without it, and with `latest` where there is none yet.
absl::StatusOr<std::optional<CheckpointBytes>> ReadResume(const TrainingOptions& options,
                                                          const NoteSink& note);

// Every rank calls it: rank 0, with what it has read, tells the others where training stands. What a strategy
// brings to the others itself, weights and optimizer state, is on rank 0 alone; where nobody communicates all
// ranks read, and what the checkpoint holds of each worker alone each reads itself: where one does not see
// it, rank 0's `note` says so. `rendezvous`: null, where this rank is alone.
absl::StatusOr<std::optional<CheckpointBytes>> ShareCheckpoint(const TrainingOptions& options,
                                                               const StrategyRow& strategy, int rank,
                                                               Rendezvous* rendezvous,
                                                               std::optional<CheckpointBytes> bytes,
                                                               const NoteSink& note);

// Every rank calls it. What a checkpoint holds of each worker alone comes together through this; null where
// there is nothing of the kind.
absl::StatusOr<std::unique_ptr<WorkerParts>> PartsOf(const TrainingOptions& options,
                                                     const StrategyRow& strategy, Rendezvous& rendezvous,
                                                     const NoteSink& note);

// Rank 0, before training: --checkpoint_dir is there, and holds nothing of another run.
absl::Status OpenCheckpointsOf(const TrainingOptions& options, const std::optional<CheckpointBytes>& resume);

}  // namespace psring
