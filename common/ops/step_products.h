// Only the matrix products and convolutions of training: the lower limit of a step's time.
#pragma once

#include <memory>

#include "absl/status/status.h"
#include "common/device/device.h"
#include "common/ops/ops.h"

namespace psring {

class StepProducts {
 public:
  virtual ~StepProducts() = default;

  // Ops of the CPU, float32, which work as MakeOneDnnOps(threads) and remember the products they make.
  virtual Ops& ops() = 0;

  // Makes all products so far again, in the same order, by the same calls, on the same memory. Without what
  // layers do between them: changes of layout, masks of ReLU, sums of gradients.
  virtual absl::Status Repeat() = 0;
};

std::unique_ptr<StepProducts> MakeStepProducts(int threads);

}  // namespace psring
