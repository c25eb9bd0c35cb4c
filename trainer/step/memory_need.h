// Whether a training fits into its device's memory, asked before it takes any.
#pragma once

#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/device/device.h"
#include "common/ops/ops.h"
#include "common/ops/optimizer.h"
#include "common/options/training_options.h"
#include "trainer/data/data.h"
#include "trainer/models/model.h"

namespace psring {

// In bytes. What libraries take for themselves, and what a strategy needs besides, is not in it.
struct MemoryNeed {
  size_t parameters = 0;  // weights and gradients
  size_t optimizer = 0;   // its state
  size_t batch = 0;       // inputs, activations and their gradients
  size_t total() const { return parameters + optimizer + batch; }
};

// Of a rank that trains `model` on `device`. `optimizer`: null where a server has its state.
absl::StatusOr<MemoryNeed> MemoryNeedOf(const TrainingOptions& options, const ModelRow& model,
                                        const Dataset& data, int max_batch, const OptimizerConfig* optimizer,
                                        Device& device, Ops& ops);

// ResourceExhausted says what is needed, for what, and what there is. Pure.
absl::Status CheckMemory(const MemoryNeed& need, const Device::Memory& memory, int max_batch,
                         const std::string& device);

}  // namespace psring
