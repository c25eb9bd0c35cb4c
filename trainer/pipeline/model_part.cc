#include "trainer/pipeline/model_part.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <set>
#include <utility>

#include "common/base/check.h"
#include "common/base/deadline.h"
#include "common/base/errors.h"
#include "common/text/translate.h"
#include "trainer/data/sampler.h"
#include "trainer/models/batch_memory.h"

namespace psring {
namespace {

std::set<std::string> NamesOf(const ParameterLayout& layout) {
  std::set<std::string> names;
  for (const Tensor& tensor : layout.tensors()) names.insert(tensor.name);
  return names;
}

// The next rank, with a model of this layout.
absl::Status AddRank(const ParameterLayout& layout, ModelPart& part) {
  PositionPart of;
  of.parameters = layout.count();
  of.buffers = layout.initial_buffers().size();
  PSRING_ASSIGN_OR_RETURN(of.of_parameters, PartOf(part.whole.tensors(), layout.tensors()));
  PSRING_ASSIGN_OR_RETURN(of.of_buffers, PartOf(part.whole.buffers(), layout.buffers()));
  part.parts.push_back(std::move(of));
  return absl::OkStatus();
}

// Sets `tied` and `counted_elsewhere`. `names`: by position.
absl::Status FindTied(const std::vector<std::set<std::string>>& names, ModelPart& part) {
  const PipelinePlace& place = part.place;
  for (const Tensor& tensor : part.model->parameters().tensors()) {
    std::vector<int> others;
    for (int other = 0; other < place.positions; ++other) {
      if (other != place.position && names[static_cast<size_t>(other)].contains(tensor.name)) {
        others.push_back(other);
      }
    }
    if (others.empty()) continue;
    const int last = place.positions - 1;
    if (others.size() > 1 || !(place.is_first() || place.is_last()) || others[0] + place.position != last) {
      return InvalidTr(
          "--pp: only the first and the last stage can share a tensor, but "
          "stages in between use $0, too; choose other --cuts",
          tensor.name);
    }
    part.tied.push_back({tensor.first, tensor.space});
    if (!place.is_first()) part.counted_elsewhere.push_back({tensor.first, tensor.count});
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ModelPart> CutModel(const MakeModel& make, const std::vector<size_t>& cuts,
                                   const PipelinePlace& place, const TensorPlace& tensors) {
  const size_t stages = static_cast<size_t>(place.stages());
  if (cuts.size() + 1 != stages) {
    return InvalidArgument(cuts.size(), " cuts do not make ", stages, " stages");
  }
  PSRING_ASSIGN_OR_RETURN(const std::unique_ptr<Model> whole, make({}));
  PSRING_ASSIGN_OR_RETURN(const std::vector<LayerRange> all, StagesBetween(*whole, cuts));
  ModelPart part;
  part.place = place;
  part.whole = whole->parameters();
  part.rank = static_cast<size_t>(place.position * tensors.ranks + tensors.rank);
  std::vector<std::set<std::string>> names;
  for (int rank = 0; rank < place.positions * tensors.ranks; ++rank) {
    const int position = rank / tensors.ranks, share = rank % tensors.ranks;
    const bool is_own = static_cast<size_t>(rank) == part.rank;
    PSRING_ASSIGN_OR_RETURN(
        std::unique_ptr<Model> model,
        make(is_own
                 ? tensors
                 : TensorPlace{.rank = share, .ranks = tensors.ranks, .divides_rows = tensors.divides_rows}));
    std::vector<LayerRange> own, placed;
    for (size_t stage = static_cast<size_t>(position); stage < stages; stage += place.positions) {
      const size_t first = placed.empty() ? 0 : placed.back().end;
      own.push_back(all[stage]);
      placed.push_back({first, first + all[stage].end - all[stage].first});
    }
    PSRING_ASSIGN_OR_RETURN(std::unique_ptr<Model> taken, std::move(*model).TakeStages(own));
    const ParameterLayout& layout = taken->parameters();
    if (layout.count() == 0) {
      return InvalidTr("--pp: the stages of position $0 have no weights; choose other --cuts", position);
    }
    PSRING_RETURN_IF_ERROR(AddRank(layout, part));
    if (share == 0) names.push_back(NamesOf(layout));
    if (!is_own) continue;
    for (size_t chunk = 0; chunk < own.size(); ++chunk) {
      for (const size_t point : whole->CutPoints()) {
        if (point < own[chunk].first || point >= own[chunk].end) continue;
        part.cut_points.push_back(placed[chunk].first + point - own[chunk].first);
      }
    }
    part.stages = std::move(placed);
    part.model = std::move(taken);
  }
  PSRING_RETURN_IF_ERROR(FindTied(names, part));
  // Of a tensor that is not divided, each share has a copy.
  for (const Tensor& tensor : part.model->parameters().tensors()) {
    if (tensors.rank > 0 && !tensor.is_part()) {
      part.counted_elsewhere.push_back({tensor.first, tensor.count});
    }
  }
  std::ranges::sort(part.counted_elsewhere, {}, &ParameterRange::first);
  return part;
}

absl::StatusOr<std::vector<double>> MeasureLayers(Model& model, const Dataset& data, int batch, uint64_t seed,
                                                  Device& device, Stream& compute) {
  constexpr int kPasses = 3;
  constexpr int64_t kEnoughNs = 2'000'000'000;  // the other ranks wait
  const std::vector<float> initial = model.InitialWeights(seed);
  PSRING_ASSIGN_OR_RETURN(const Buffer weights, device.Allocate(initial.size() * sizeof(float)));
  PSRING_ASSIGN_OR_RETURN(const Buffer gradient, device.Allocate(initial.size() * sizeof(float)));
  compute.Copy(weights.data(), initial.data(), weights.bytes());
  PSRING_ASSIGN_OR_RETURN(Activations activations, model.NewActivations(batch, Keep::kAll, device));
  PSRING_ASSIGN_OR_RETURN(BatchMemory memory, BatchMemory::Create(data.spec(), batch, device));
  std::vector<int64_t> samples(static_cast<size_t>(std::min<int64_t>(batch, data.count())));
  std::iota(samples.begin(), samples.end(), 0);
  const std::vector<uint64_t> seeds = SampleSeeds(seed, /*epoch=*/0, samples);
  const ModelState state{.weights = weights.span(), .sample_seeds = seeds.data()};
  PSRING_ASSIGN_OR_RETURN(const Batch loaded, memory.Load(data, samples, compute));

  const size_t layers = model.layers();
  std::vector<double> forward(layers, std::numeric_limits<double>::infinity()), backward = forward;
  int64_t begin_ns = 0;
  // The time since the last call, if it is less than `least`.
  const auto take = [&](double& least) -> absl::Status {
    PSRING_RETURN_IF_ERROR(compute.Synchronize());
    const int64_t now_ns = MonotonicNanos();
    least = std::min(least, static_cast<double>(now_ns - std::exchange(begin_ns, now_ns)));
    return absl::OkStatus();
  };
  const int64_t start_ns = MonotonicNanos();
  for (int pass = 0; pass < kPasses && (pass == 0 || MonotonicNanos() - start_ns < kEnoughNs); ++pass) {
    begin_ns = MonotonicNanos();
    for (size_t l = 0; l < layers; ++l) {
      PSRING_RETURN_IF_ERROR(model.ForwardUnit({l, l + 1}, state, loaded, activations, compute).status());
      if (l + 1 == layers) PSRING_RETURN_IF_ERROR(model.Loss(loaded, activations, memory.score(), compute));
      PSRING_RETURN_IF_ERROR(take(forward[l]));
    }
    for (size_t l = layers; l-- > 0;) {
      PSRING_RETURN_IF_ERROR(
          model.BackwardUnit({l, l + 1}, state, loaded, activations, gradient.span(), compute));
      PSRING_RETURN_IF_ERROR(take(backward[l]));
    }
  }
  for (size_t l = 0; l < layers; ++l) forward[l] += backward[l];
  return forward;
}

}  // namespace psring
