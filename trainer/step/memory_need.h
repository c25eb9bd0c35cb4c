// Whether training fits into its device's memory, checked before allocating.
#pragma once

#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/device/device.h"
#include "common/ops/ops.h"
#include "common/ops/optimizer.h"
#include "common/options/training_options.h"
#include "trainer/data/dataset.h"
#include "trainer/models/model.h"

namespace psring {

// In bytes, without what libraries and strategies allocate.
struct MemoryNeed {
  size_t parameters = 0;  // weights and gradients
  size_t optimizer = 0;   // its state
  size_t batch = 0;       // inputs, activations and their gradients
  size_t total() const { return parameters + optimizer + batch; }
};

// For a rank that trains `model` on `device`. `optimizer`: null if its state is on a server.
absl::StatusOr<MemoryNeed> MemoryNeedOf(const TrainingOptions& options, const ModelRow& model,
                                        const SampleSpec& samples, int max_batch,
                                        const OptimizerConfig* optimizer, Device& device, Ops& ops);

// ResourceExhausted lists what is needed and what is available. Pure.
absl::Status CheckMemory(const MemoryNeed& need, const Device::Memory& memory, int max_batch,
                         const std::string& device);

}  // namespace psring
