#include "trainer/models/activation_plan.h"

#include <algorithm>
#include <utility>

namespace psring {
namespace {

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

ActivationPlan PlanActivations(const std::vector<size_t>& inputs, absl::Span<const LayerPlace> layers,
                               const std::vector<size_t>& pieces, absl::Span<const Unit> units, size_t batch,
                               DType type) {
  const auto bytes_of = [&](size_t elements) { return batch * elements * SizeOf(type); };
  const auto kept_by = [&](size_t l) {
    return layers[l].traits->kept_once + batch * layers[l].traits->kept_bytes;
  };
  std::vector<bool> computed_again(layers.size());
  for (const Unit& unit : units) {
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
  for (const Unit& unit : units) {
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
