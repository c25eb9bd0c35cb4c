// The straight path of training: one rank, any strategy.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/device/device.h"
#include "common/measure/records.h"
#include "common/measure/trace.h"
#include "common/ops/ops.h"
#include "common/options/training_options.h"
#include "common/rendezvous/rendezvous.h"
#include "ps_server/client/ps_client.h"
#include "ring_worker/groups/process_group.h"
#include "trainer/checkpoints/checkpoint.h"
#include "trainer/checkpoints/worker_parts.h"
#include "trainer/data/data.h"

namespace psring {

// What one rank stands on; assembled by main, or by a test with threads as ranks.
struct Worker {
  int rank = 0;
  int world_size = 1;
  Device& device;
  const DataSplits& data;
  Trace& trace;
  ProcessGroup* group = nullptr;
  // Where buffers are kept that the group has been told of: must live longer than the group. Null: none are.
  std::vector<Buffer>* registered = nullptr;
  PsClient* client = nullptr;
  // Waits for all ranks.
  std::function<absl::Status()> barrier = [] { return absl::OkStatus(); };
  // The same before a step of --align_steps, and all leave it at one moment where that can be had.
  std::function<absl::Status()> begin_together = [] { return absl::OkStatus(); };
  // Called after every step, on the training thread, outside the measured time.
  std::function<void(const StepRecord&)> on_step = [](const StepRecord&) {};
  std::function<void(int64_t steps_done, int64_t steps_planned, double loss)> on_progress =
      [](int64_t, int64_t, double) {};
  // Training goes on from here; null: it begins. Every rank has the position, rank 0 the tensors, too (of a
  // strategy that does not communicate: all ranks).
  const CheckpointBytes* resume = nullptr;
  // What a checkpoint holds of each worker alone comes to rank 0 through these. Null: there is no such thing,
  // or nobody else.
  WorkerParts* parts = nullptr;
  // Keeps a checkpoint, on rank 0: where --checkpoint_dir is given, every --checkpoint_every steps, when
  // `stops`, and at the end. The other ranks wait for it at a barrier.
  std::function<absl::Status(int64_t step, const CheckpointFiles& files)> save =
      [](int64_t, const CheckpointFiles&) { return absl::OkStatus(); };
  // Asked after each step: whether this rank was told to end.
  std::function<bool()> stops = [] { return false; };
  // Asked after each step: why training must not go on after all.
  std::function<absl::Status()> objection = [] { return absl::OkStatus(); };
  // Before training, on rank 0: what is legal and will probably hurt.
  std::function<void(const std::string& warning)> on_warning = [](const std::string&) {};
  // What cannot be carried over exactly: on rank 0 before training, where it goes on from a checkpoint; by a
  // checkpoint, or back to one.
  std::function<void(const std::string& note)> on_note = [](const std::string&) {};
  // After training, for each point of the curve; on the rank that evaluates.
  std::function<void(const CurvePoint&)> on_evaluation = [](const CurvePoint&) {};
};

// Trains and, on rank 0, evaluates. Evaluation happens after training, on copies of the weights taken at
// their moments, so it disturbs neither speed nor staleness. The weights of the end are left in
// `final_weights` where that is given. Bad flags are InvalidArgument or NotFound, before any work; an error
// of a step names the step, and its peers learn of it by way of the group or the server.
absl::StatusOr<RankResult> RunWorker(const TrainingOptions& options, Worker& worker,
                                     std::vector<float>* final_weights = nullptr);

}  // namespace psring
