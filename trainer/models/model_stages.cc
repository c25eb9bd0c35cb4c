#include "trainer/models/model_stages.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <string>

#include "absl/strings/str_join.h"
#include "common/base/check.h"
#include "common/base/errors.h"
#include "trainer/programs/cuts.h"

namespace psring {
namespace {

// Of the layers [first, end), by CompleteAfterLayers.
bool HaveWeights(const std::vector<ReadyRange>& complete, size_t first, size_t end) {
  return std::any_of(complete.begin() + static_cast<std::ptrdiff_t>(first),
                     complete.begin() + static_cast<std::ptrdiff_t>(end),
                     [](const ReadyRange& range) { return range.count > 0; });
}

}  // namespace

absl::StatusOr<std::unique_ptr<Model>> Model::TakeStages(const std::vector<LayerRange>& stages) && {
  PSRING_RETURN_IF_ERROR(CheckStages(*this, stages));
  return absl::UnimplementedError("the model cannot be cut into stages");
}

absl::Status CheckStages(const Model& model, const std::vector<LayerRange>& stages) {
  std::vector<size_t> ends = model.CutPoints();
  ends.insert(ends.begin(), 0);
  ends.push_back(model.layers());
  bool fit = !stages.empty();
  size_t free = 0;  // the first layer that the stages before leave
  for (const LayerRange& stage : stages) {
    fit = fit && free <= stage.first && stage.first < stage.end &&
          std::ranges::count(ends, stage.first) > 0 && std::ranges::count(ends, stage.end) > 0;
    free = stage.end;
  }
  if (fit) return absl::OkStatus();
  return InvalidArgument("the stages of this model are increasing and begin and end at the layers ",
                         absl::StrJoin(ends, ", "));
}

absl::StatusOr<std::vector<LayerRange>> StagesBetween(const Model& model, const std::vector<size_t>& cuts) {
  PSRING_RETURN_IF_ERROR(CheckCutPoints(model.CutPoints(), cuts));
  std::vector<LayerRange> stages;
  for (const size_t cut : cuts) stages.push_back({stages.empty() ? 0 : stages.back().end, cut});
  stages.push_back({stages.empty() ? 0 : stages.back().end, model.layers()});
  return stages;
}

std::vector<size_t> TrainableCuts(const Model& model) {
  const std::vector<ReadyRange> complete = model.CompleteAfterLayers();
  std::vector<size_t> cuts = model.CutPoints();
  std::erase_if(cuts, [&](size_t cut) {
    return !HaveWeights(complete, 0, cut) || !HaveWeights(complete, cut, complete.size());
  });
  return cuts;
}

absl::StatusOr<std::vector<size_t>> BalancedCuts(const Model& model, const std::vector<double>& layer_cost,
                                                 int stages) {
  PSRING_CHECK(layer_cost.size() == model.layers());
  CutUnits layers{.cost = layer_cost, .points = model.CutPoints()};
  PSRING_RETURN_IF_ERROR(CheckStageCount(layers.points, stages));
  for (const size_t layer : layers.points) {
    layers.crossing.push_back(static_cast<double>(model.BoundaryElements(layer)));
  }
  for (const ReadyRange& complete : model.CompleteAfterLayers()) layers.weights.push_back(complete.count > 0);
  return BalancedCuts(layers, stages);
}

absl::StatusOr<LayoutPart> PartOf(const std::vector<Tensor>& whole, const std::vector<Tensor>& part) {
  std::map<std::string, const Tensor*> by_name;
  for (const Tensor& tensor : whole) by_name[tensor.name] = &tensor;
  LayoutPart ranges;
  for (const Tensor& tensor : part) {
    const auto found = by_name.find(tensor.name);
    const bool is_equal = found != by_name.end() && found->second->shape == tensor.shape;
    const bool is_part =
        found != by_name.end() && tensor.is_part() && found->second->count == tensor.whole_count();
    if (!is_equal && !is_part) {
      return InvalidArgument("tensor ", tensor.name, ", of shape [", absl::StrJoin(tensor.shape, ", "),
                             "], is not in ",
                             found == by_name.end() ? "the whole model" : "this shape in the whole model");
    }
    if (is_equal) {
      ranges.whole.push_back({found->second->first, tensor.count});
      ranges.part.push_back({tensor.first, tensor.count});
      continue;
    }
    const TensorPart& part_of = tensor.part;
    const size_t inner = tensor.inner(), each = part_of.count * inner;
    for (size_t outer = 0; outer < part_of.outer; ++outer) {
      const size_t at = (outer * part_of.whole + part_of.first) * inner;
      ranges.whole.push_back({found->second->first + at, each});
      ranges.part.push_back({tensor.first + outer * each, each});
    }
  }
  return ranges;
}

void TakePart(const LayoutPart& ranges, const float* whole, float* part) {
  for (size_t i = 0; i < ranges.part.size(); ++i) {
    std::copy_n(whole + ranges.whole[i].first, ranges.part[i].count, part + ranges.part[i].first);
  }
}

void PutPart(const LayoutPart& ranges, const float* part, float* whole) {
  for (size_t i = 0; i < ranges.part.size(); ++i) {
    std::copy_n(part + ranges.part[i].first, ranges.part[i].count, whole + ranges.whole[i].first);
  }
}

}  // namespace psring
