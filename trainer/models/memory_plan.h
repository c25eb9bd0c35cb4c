// Where the values of a network, their gradients and what layers keep are in memory. Pure.
#pragma once

#include <array>
#include <cstddef>
#include <vector>

#include "absl/types/span.h"
#include "common/device/device.h"
#include "trainer/layers/layer.h"

namespace psring {

// One layer in a network. Values are numbered: the network's inputs first, then one output for each layer.
struct LayerPlace {
  std::vector<int> inputs;  // values
  int output;
  const LayerTraits* traits;
};

struct GradientPlan {
  static constexpr int kNone = -1;     // no gradient: an input of the samples
  static constexpr int kInPlace = -2;  // the loss's input, which its gradient overwrites

  // Gradients whose lifetimes in backward do not overlap share a piece of memory.
  std::vector<size_t> pieces;  // elements per sample
  std::vector<int> piece_of;   // by value: a piece, kNone or kInPlace
  // By layer and input: a layer that runs earlier in backward has written the input's gradient; add to it.
  std::vector<std::array<bool, kMaxInputs>> adds;
};

// What is computed before and after the layers: the samples and the loss, unless they are a pipeline's stage.
struct StageBounds {
  size_t input = 0;     // elements of the only input, whose gradient another stage needs; 0: the samples
  bool output = false;  // another stage reads the output and computes its gradient
};

// For backward over `layers`, last first. The last layer's output is the network's. A value with several
// readers needs kAddable or kPassed inputs (PSRING_CHECK): backward of the last reader writes the gradient or
// passes it, and the others add. `for_weights`: a gradient that BackwardWeight needs (LayerTraits::keeps_dy)
// is still there after backward, so its layer passes a copy of it.
GradientPlan PlanGradients(int inputs, absl::Span<const LayerPlace> layers, const StageBounds& bounds = {},
                           bool for_weights = false);

struct ActivationPlan {
  static constexpr size_t kNowhere = SIZE_MAX;

  // In bytes, multiples of 64.
  size_t bytes = 0;            // of all
  std::vector<size_t> values;  // by value; kNowhere: an input that is read where the batch has it
  std::vector<size_t> pieces;  // by piece of GradientPlan
  std::vector<size_t> kept;    // by layer
};

// For `batch` samples of `type`. `inputs`: elements of each input of the network; 0: kNowhere. `pieces`:
// elements.
//
// `units`: layers outside read only the output of a unit's last one. All use the same memory for what
// backward can compute again from their inputs: the values of all layers but the last, and what these layers
// keep, unless it is of the batch as a whole (LayerTraits::kept_once). Everything else has memory of its own.
ActivationPlan PlanActivations(const std::vector<size_t>& inputs, absl::Span<const LayerPlace> layers,
                               const std::vector<size_t>& pieces, absl::Span<const LayerRange> units,
                               size_t batch, DType type);

}  // namespace psring
