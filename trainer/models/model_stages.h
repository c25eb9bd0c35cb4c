// How a model is cut into the stages of a pipeline, and which part of the model's tensors a rank has.
#pragma once

#include <cstddef>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/parameters.h"
#include "trainer/models/model.h"

namespace psring {

// OK if `stages` is an argument for TakeStages of `model`; else InvalidArgument, with the cut points.
absl::Status CheckStages(const Model& model, const std::vector<LayerRange>& stages);

// The stages between `cuts`, increasing cut points of `model`, from the first layer to the last.
// InvalidArgument lists the cut points.
absl::StatusOr<std::vector<LayerRange>> StagesBetween(const Model& model, const std::vector<size_t>& cuts);

// The cut points with weights before and after them, so that a pipeline of two stages can train. Of a tensor
// that both share only the first stage counts.
std::vector<size_t> TrainableCuts(const Model& model);

// The balanced cuts of cuts.h, by `layer_cost`, one number for each layer of the model, at least 0, and the
// elements of the boundaries.
// InvalidArgument: the model has too few cut points, or `stages` is less than 1.
absl::StatusOr<std::vector<size_t>> BalancedCuts(const Model& model, const std::vector<double>& layer_cost,
                                                 int stages);

// Where the tensors of a part, such as those of TakeStages, are in its flat buffer and in that of the whole
// model: ranges of elements, in equal order, of equal counts. Paddings are in none.
struct LayoutPart {
  std::vector<ReadyRange> whole, part;
};

// By name. `whole` and `part` are both ParameterLayout::tensors() or both ParameterLayout::buffers(). A
// tensor of `part` may be a TensorPart of that in `whole`. InvalidArgument: a tensor of `part` is not in
// `whole`, or has another shape there.
absl::StatusOr<LayoutPart> PartOf(const std::vector<Tensor>& whole, const std::vector<Tensor>& part);

// Copies the elements of the ranges between flat buffers on the host; leaves the others as they are.
void TakePart(const LayoutPart& ranges, const float* whole, float* part);
void PutPart(const LayoutPart& ranges, const float* part, float* whole);

}  // namespace psring
