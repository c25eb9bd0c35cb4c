#include "trainer/models/memory_plan.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"

namespace psring {
namespace {

class Pieces {
 public:
  // The smallest free piece that is large enough; else the largest free one, which grows; else a new one.
  int Take(size_t elements) {
    int best = -1;
    for (int i = 0; i < static_cast<int>(sizes_.size()); ++i) {
      if (users_[i] > 0) continue;
      if (best < 0) {
        best = i;
        continue;
      }
      const bool fits = sizes_[i] >= elements, best_fits = sizes_[best] >= elements;
      if (fits ? !best_fits || sizes_[i] < sizes_[best] : !best_fits && sizes_[i] > sizes_[best]) best = i;
    }
    if (best < 0) {
      best = static_cast<int>(sizes_.size());
      sizes_.push_back(0);
      users_.push_back(0);
    }
    sizes_[best] = std::max(sizes_[best], elements);
    users_[best] = 1;
    return best;
  }
  void Share(int piece) {
    if (piece >= 0) ++users_[piece];
  }
  void Release(int piece) {
    if (piece >= 0) --users_[piece];
  }
  const std::vector<size_t>& sizes() const { return sizes_; }

 private:
  std::vector<size_t> sizes_;
  std::vector<int> users_;  // values
};

class Region {
 public:
  explicit Region(size_t begin) : end_(begin) {}
  size_t Place(size_t bytes) {
    constexpr size_t kAlignment = 64;
    return std::exchange(end_, end_ + (bytes + kAlignment - 1) / kAlignment * kAlignment);
  }
  size_t end() const { return end_; }

 private:
  size_t end_;
};

}  // namespace

GradientPlan PlanGradients(int inputs, absl::Span<const LayerPlace> layers, const StageBounds& bounds,
                           bool for_weights) {
  PSRING_CHECK(bounds.input == 0 || inputs == 1);
  GradientPlan plan;
  plan.piece_of.assign(static_cast<size_t>(inputs) + layers.size(), GradientPlan::kNone);
  plan.adds.assign(layers.size(), {});
  std::vector<size_t> elements(plan.piece_of.size());  // of values
  for (const LayerPlace& layer : layers) elements[layer.output] = layer.traits->outputs;
  if (bounds.input > 0) elements[0] = bounds.input;
  Pieces pieces;
  const size_t outputs = layers.back().traits->outputs;
  plan.piece_of[layers.back().output] = bounds.output ? pieces.Take(outputs) : GradientPlan::kInPlace;
  for (size_t l = layers.size(); l-- > 0;) {
    const LayerPlace& layer = layers[l];
    const int dy = plan.piece_of[layer.output];
    const bool keeps_dy = for_weights && layer.traits->keeps_dy();
    PSRING_CHECK(dy != GradientPlan::kNone);  // every output is read by a later layer
    for (size_t i = 0; i < layer.inputs.size(); ++i) {
      const int value = layer.inputs[i];
      if (value < inputs && bounds.input == 0) continue;
      int& piece = plan.piece_of[value];
      const InputGradient how = layer.traits->inputs[i];
      if (piece != GradientPlan::kNone) {
        PSRING_CHECK(how == InputGradient::kAddable);
        plan.adds[l][i] = true;
      } else if (how == InputGradient::kPassed && !keeps_dy) {
        piece = dy;
        pieces.Share(dy);
      } else {
        piece = pieces.Take(elements[value]);
      }
    }
    if (!keeps_dy) pieces.Release(dy);
  }
  plan.pieces = pieces.sizes();
  return plan;
}

ActivationPlan PlanActivations(const std::vector<size_t>& inputs, absl::Span<const LayerPlace> layers,
                               const std::vector<size_t>& pieces, absl::Span<const LayerRange> units,
                               size_t batch, DType type) {
  const auto bytes_of = [&](size_t elements) { return batch * elements * SizeOf(type); };
  const auto kept_by = [&](size_t l) {
    const LayerTraits& traits = *layers[l].traits;
    return traits.kept_once + batch * traits.kept_bytes + bytes_of(traits.kept_elements);
  };
  std::vector<bool> computed_again(layers.size());
  for (const LayerRange& unit : units) {
    for (size_t l = unit.first; l + 1 < unit.end; ++l) computed_again[l] = true;
  }
  const auto keeps_again = [&](size_t l) { return computed_again[l] && layers[l].traits->kept_once == 0; };

  ActivationPlan plan;
  constexpr size_t kNowhere = ActivationPlan::kNowhere;
  Region own(0);
  for (const size_t elements : inputs) {
    plan.values.push_back(elements == 0 ? kNowhere : own.Place(bytes_of(elements)));
  }
  for (size_t l = 0; l < layers.size(); ++l) {
    plan.values.push_back(computed_again[l] ? kNowhere : own.Place(bytes_of(layers[l].traits->outputs)));
  }
  for (const size_t elements : pieces) plan.pieces.push_back(own.Place(bytes_of(elements)));
  for (size_t l = 0; l < layers.size(); ++l) {
    plan.kept.push_back(keeps_again(l) ? kNowhere : own.Place(kept_by(l)));
  }
  plan.bytes = own.end();
  for (const LayerRange& unit : units) {
    Region shared(own.end());
    for (size_t l = unit.first; l + 1 < unit.end; ++l) {
      plan.values[inputs.size() + l] = shared.Place(bytes_of(layers[l].traits->outputs));
      if (keeps_again(l)) plan.kept[l] = shared.Place(kept_by(l));
    }
    plan.bytes = std::max(plan.bytes, shared.end());
  }
  return plan;
}

}  // namespace psring
