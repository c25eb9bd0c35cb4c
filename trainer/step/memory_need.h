// Whether training fits into its device's memory, checked before allocating.
#pragma once

#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/device/device.h"
#include "common/measure/records.h"
#include "common/ops/optimizer.h"
#include "common/options/training_options.h"
#include "trainer/data/dataset.h"
#include "trainer/models/model.h"

namespace psring {

// In bytes, without what libraries and strategies allocate.
struct MemoryNeed {
  size_t parameters = 0;  // weights, statistics that are not trained, and gradients
  size_t gradients = 0;   // part of them
  size_t optimizer = 0;   // its state
  size_t batch = 0;       // inputs, activations and their gradients, of all micro-batches in flight
  bool recomputes = false;
  size_t recompute_saves = 0;  // of the batch: with --recompute it is this much less than without
  size_t total() const { return parameters + optimizer + batch; }
};

// What is on the rank and not on a server.
struct StateOnRank {
  const OptimizerConfig* optimizer = nullptr;  // null: its state is on a server
  bool has_tables = true;                      // if the model has any
  int shards = 1;                              // of the optimizer's state, except that of tables
  // Of sharded weights and gradients, with the units in flight; 0: those of the model, and of each gradient.
  size_t weight_elements = 0, gradient_elements = 0;
  size_t slots = 1;               // micro-batches in flight
  bool divides_backward = false;  // their weight gradients follow later; without --recompute
};

// For a rank that trains `model` on `device`.
absl::StatusOr<MemoryNeed> MemoryNeedOf(const TrainingOptions& options, const Model& model,
                                        const SampleSpec& samples, int max_batch, const StateOnRank& on_rank,
                                        Device& device);

// By class. Pure.
MemoryFigures ByClass(const MemoryNeed& need);

// ResourceExhausted lists what is needed and what is available. Pure.
absl::Status CheckMemory(const MemoryNeed& need, const Device::Memory& memory, int max_batch,
                         const std::string& device);

// What --recompute saves, in one line.
std::string RecomputeNote(const MemoryNeed& need, int max_batch);

}  // namespace psring
