#include "trainer/models/model_stages.h"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <limits>
#include <map>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/check.h"
#include "common/text/translate.h"

namespace psring {
namespace {

// The least value of a division of [0, end) into parts, and where parts but the first begin.
struct Division {
  double value;
  std::vector<size_t> begins;
};

// `with`: the value of a division whose last part is [from, to), if the parts before have the value `before`.
// Of equal ones the first.
Division BestDivision(size_t end, int parts,
                      const std::function<double(double before, size_t from, size_t to)>& with) {
  constexpr double kNone = std::numeric_limits<double>::infinity();
  std::vector<double> value(end + 1, kNone);  // by end of the parts so far
  value[0] = 0;
  std::vector<std::vector<size_t>> begin;  // of the last part, by parts and end
  for (int part = 0; part < parts; ++part) {
    std::vector<double> next(end + 1, kNone);
    begin.emplace_back(end + 1);
    for (size_t to = 1; to <= end; ++to) {
      for (size_t from = 0; from < to; ++from) {
        const double divided = with(value[from], from, to);
        if (divided >= next[to]) continue;
        next[to] = divided;
        begin.back()[to] = from;
      }
    }
    value = std::move(next);
  }
  Division best{.value = value[end], .begins = {}};
  for (size_t part = begin.size(), to = end; part-- > 1;) {
    to = begin[part][to];
    best.begins.push_back(to);
  }
  std::ranges::reverse(best.begins);
  return best;
}

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
  return absl::InvalidArgumentError(absl::StrCat(
      "the stages of this model are increasing and begin and end at the layers ", absl::StrJoin(ends, ", ")));
}

absl::StatusOr<std::vector<LayerRange>> StagesBetween(const Model& model, const std::vector<size_t>& cuts) {
  const std::vector<size_t> points = model.CutPoints();
  if (points.empty() && !cuts.empty()) {
    return absl::InvalidArgumentError(Tr("this model cannot be cut into stages; omit --pp"));
  }
  if (std::ranges::adjacent_find(cuts, std::greater_equal<>()) != cuts.end() ||
      !std::ranges::includes(points, cuts)) {
    return absl::InvalidArgumentError(
        Tr("--cuts $0: the model can be cut before the layers $1; give some of "
           "them, in increasing order",
           absl::StrJoin(cuts, ","), absl::StrJoin(points, ",")));
  }
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
  std::vector<size_t> ends = model.CutPoints();
  if (stages > 1 && ends.empty()) {
    return absl::InvalidArgumentError(Tr("this model cannot be cut into stages; omit --pp"));
  }
  if (stages < 1 || static_cast<size_t>(stages) > ends.size() + 1) {
    return absl::InvalidArgumentError(
        Tr("this model can be cut into 1 to $0 stages, not $1; give another --pp", ends.size() + 1, stages));
  }
  ends.insert(ends.begin(), 0);
  ends.push_back(model.layers());
  const std::vector<ReadyRange> complete = model.CompleteAfterLayers();
  constexpr double kNever = std::numeric_limits<double>::infinity();
  bool need_weights = true;  // all stages
  const auto cost = [&](size_t from, size_t to) {
    if (need_weights && !HaveWeights(complete, ends[from], ends[to])) return kNever;
    double sum = 0;
    for (size_t l = ends[from]; l < ends[to]; ++l) sum += layer_cost[l];
    return sum;
  };
  const auto largest = [&](double before, size_t from, size_t to) {
    return std::max(before, cost(from, to));
  };
  Division balanced = BestDivision(ends.size() - 1, stages, largest);
  if (balanced.value == kNever) {
    need_weights = false;
    balanced = BestDivision(ends.size() - 1, stages, largest);
  }
  // Sums of equal costs differ by rounding.
  const double most = balanced.value * (1 + 1e-9);
  std::vector<size_t> cuts =
      BestDivision(ends.size() - 1, stages, [&](double before, size_t from, size_t to) {
        if (cost(from, to) > most) return kNever;
        return before + (from == 0 ? 0.0 : static_cast<double>(model.BoundaryElements(ends[from])));
      }).begins;
  for (size_t& cut : cuts) cut = ends[cut];
  return cuts;
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
      return absl::InvalidArgumentError(absl::StrCat(
          "tensor ", tensor.name, ", of shape [", absl::StrJoin(tensor.shape, ", "), "], is not in ",
          found == by_name.end() ? "the whole model" : "this shape in the whole model"));
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
