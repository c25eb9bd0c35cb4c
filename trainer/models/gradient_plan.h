// Where the gradients of a network's values are in memory. Pure.
#pragma once

#include <array>
#include <cstddef>
#include <vector>

#include "absl/types/span.h"
#include "trainer/layers/layer.h"

namespace psring {

// One layer in a network. Values are numbered: the network's inputs first, then one output for each layer.
struct LayerPlace {
  std::vector<int> inputs;  // values
  int output;
  const LayerTraits* traits;
};

struct GradientPlan {
  static constexpr int kNone = -1;     // no gradient: an input of the network
  static constexpr int kInPlace = -2;  // the network's output, which its gradient overwrites

  // Gradients whose lifetimes in backward do not overlap share a piece of memory.
  std::vector<size_t> pieces;  // elements per sample
  std::vector<int> piece_of;   // by value: a piece, kNone or kInPlace
  // By layer and input: a layer that runs earlier in backward has written the input's gradient; add to it.
  std::vector<std::array<bool, kMaxInputs>> adds;
};

// For backward over `layers`, last first. The last layer's output is the network's. A value with several
// readers needs kAddable or kPassed inputs (PSRING_CHECK): backward of the last reader writes the gradient or
// passes it, and the others add.
GradientPlan PlanGradients(int inputs, absl::Span<const LayerPlace> layers);

}  // namespace psring
