// What one rank of a replica has of the model, its stages of a pipeline or its share of their matrices, as a
// model with flat buffers of its own, and how these buffers are parts of the whole model's.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/parameters.h"
#include "common/device/device.h"
#include "common/ops/optimizer.h"
#include "trainer/data/dataset.h"
#include "trainer/layers/tensor_axis.h"
#include "trainer/models/model.h"
#include "trainer/models/model_stages.h"

namespace psring {

// Where a rank is in its pipeline. Stage s is on position s modulo `positions`.
struct PipelinePlace {
  int position = 0, positions = 1;
  int chunks = 1;  // stages per position

  int stages() const { return positions * chunks; }
  int StageOf(size_t chunk) const { return static_cast<int>(chunk) * positions + position; }
  size_t ChunkOf(int stage) const { return static_cast<size_t>(stage / positions); }
  bool is_first() const { return position == 0; }
  bool is_last() const { return position + 1 == positions; }
};

// Of one rank of a replica: its flat buffers among the whole model's.
struct PositionPart {
  size_t parameters = 0, buffers = 0;  // elements of its flat buffers
  LayoutPart of_parameters, of_buffers;
};

struct ModelPart {
  PipelinePlace place;
  std::unique_ptr<Model> model;     // this rank's
  std::vector<LayerRange> stages;   // in it, by chunk
  std::vector<size_t> cut_points;   // of its layers, those of the entire model (Model::CutPoints)
  ParameterLayout whole;            // of the entire model
  std::vector<PositionPart> parts;  // by position, and then by share
  size_t rank = 0;                  // this one's, among them
  // Tensors that the first and the last stage share, if this rank has one of them: elements of its flat
  // buffers, with their padding. Each of the two ranks has a copy, with the sum of both gradients.
  // `counted_elsewhere`: those, and tensors that are not divided, that are in the norm of the gradient of an
  // earlier position.
  std::vector<ReadyRange> tied;
  std::vector<ParameterRange> counted_elsewhere;
};

// The layers of the entire model, with this share of their matrices.
using MakeModel = std::function<absl::StatusOr<std::unique_ptr<Model>>(const TensorPlace& tensors)>;

// `cuts`: the layers before which stages other than the first begin. `tensors`: the ranks that divide the
// matrices of a position. `make` is called once per rank, for others' without the axis, and for the entire
// model. InvalidArgument: not stages() - 1 cuts, no cut points, a position without weights, or a tensor that
// other stages than the first and the last share.
absl::StatusOr<ModelPart> CutModel(const MakeModel& make, const std::vector<size_t>& cuts,
                                   const PipelinePlace& place, const TensorPlace& tensors = {});

// The time of forward and backward of each layer, in ns: the least of three passes over the first `batch`
// samples of `data`, or of fewer if these take two seconds. Needs the memory of the whole model meanwhile.
absl::StatusOr<std::vector<double>> MeasureLayers(Model& model, const Dataset& data, int batch, uint64_t seed,
                                                  Device& device, Stream& compute);

}  // namespace psring
