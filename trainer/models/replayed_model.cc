#include "trainer/models/replayed_model.h"

#include <sys/prctl.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_join.h"
#include "common/base/check.h"
#include "common/base/deadline.h"
#include "common/base/errors.h"
#include "common/measure/trace.h"
#include "common/text/translate.h"
#include "trainer/data/data.h"
#include "trainer/data/sources.h"
#include "trainer/models/model_stages.h"

namespace psring {
namespace {

constexpr int64_t kSamples = 1 << 16;

// The names of the models for which `has` is true.
template <typename Has>
std::string ModelsThat(const Has& has) {
  std::vector<std::string> names;
  for (const ModelRow& row : Models()) {
    if (has(row)) names.emplace_back(row.name);
  }
  return absl::StrJoin(names, ", ");
}

// --recompute needs two units: backward finds the values of the last one where forward left them.
absl::Status CheckUnits(const ModelRow& row) {
  if (row.size.layers == 1) {
    return absl::InvalidArgumentError(
        "--recompute with --layers 1 saves nothing: the last block is never computed again; omit one of "
        "them");
  }
  if (row.has_units) return absl::OkStatus();
  return InvalidArgument("--recompute is for models that consist of blocks (",
                         ModelsThat([](const ModelRow& other) { return other.has_units; }), "); omit it for ",
                         row.name);
}

int64_t Nanos(double ms) { return std::llround(1e6 * ms); }

absl::StatusOr<DataSplits> SamplesOf(const TrainingOptions& options) {
  PSRING_ASSIGN_OR_RETURN(const ModelRow row, ModelOf(options));
  if (row.size.context == ModelSize::kFixed && options.reads_text()) {
    return InvalidArgument("--data ", options.data, ": the model ", row.name,
                           " reads pictures; choose other data, or --model gpt-nano");
  }
  return LoadData({.name = options.data,
                   .dir = options.data_dir,
                   .text = options.text,
                   .context = row.size.context,
                   .seed = options.seed});
}

// For a recording, which does not read them.
DataSplits EmptySamples() {
  const Dataset samples = MakePictures({.height = 1,
                                        .width = 1,
                                        .classes = 1,
                                        .pixels = std::vector<uint8_t>(kSamples),
                                        .labels = std::vector<uint8_t>(kSamples)});
  return {.name = "none", .train = samples, .test = samples};
}

// Layers are numbered from the first stage's, or as in the whole recording. There tensor i belongs to layer
// tensors - i; layer 0 is what follows the last tensor.
class ReplayedModel : public Model {
 public:
  ReplayedModel(const Workload& workload, const std::vector<LayerRange>& stages) : workload_(workload) {
    std::vector<int> place;  // of the workload's tensors in the layout
    const ParameterLayout all = DeclaredLayoutOf(workload, place);
    std::vector<int> layer_of(all.tensors().size(), -1);  // by tensor; -1: it is not here
    for (const LayerRange& range : stages) {
      stages_.push_back({.whole = range, .first = tensor_of_.size()});
      for (size_t l = range.first; l < range.end; ++l) {
        const int here = static_cast<int>(tensor_of_.size());
        if (l > 0) layer_of[static_cast<size_t>(place[place.size() - l])] = here;
        tensor_of_.emplace_back();
      }
    }
    for (size_t t = 0; t < layer_of.size(); ++t) {
      if (layer_of[t] < 0) continue;
      const int added = layout_.Add(all.tensors()[t].name, all.tensors()[t].shape);
      const Tensor& tensor = layout_.tensors()[static_cast<size_t>(added)];
      tensor_of_[static_cast<size_t>(layer_of[t])] = {tensor.first, tensor.count};
    }
  }

  const ParameterLayout& parameters() const override { return layout_; }

  size_t layers() const override { return tensor_of_.size(); }
  std::vector<ReadyRange> CompleteAfterLayers() const override { return tensor_of_; }

  std::vector<float> InitialWeights(uint64_t) const override { return std::vector<float>(layout_.count()); }

  // Only what stages exchange: values and gradients of each stage's input and output, which stay 0.
  absl::StatusOr<Activations> NewActivations(int max_batch, Keep, Device& device) const override {
    Activations made{.max_batch = max_batch};
    const size_t count = static_cast<size_t>(max_batch) * boundary_elements(), edges = 2 * stages_.size();
    if (is_whole()) return made;
    PSRING_ASSIGN_OR_RETURN(made.memory, device.Allocate(2 * edges * count * sizeof(float)));
    const Span all = made.memory.span();
    for (size_t edge = 0; edge < edges; ++edge) {
      made.values.push_back(all.Slice(2 * edge * count, count));
      made.gradients.push_back(all.Slice((2 * edge + 1) * count, count));
    }
    return made;
  }

  // Layers take the same share of forward as of backward, if that takes any time.
  absl::StatusOr<Span> ForwardUnit(LayerRange unit, const ModelState& state, const Batch&, Activations&,
                                   Stream& stream) override {
    for (const Stage& stage : stages_) {
      const size_t first = std::max(unit.first, stage.first), end = std::min(unit.end, stage.end());
      if (first >= end) continue;
      const size_t from = state.after_wait ? first : stage.first;  // where the timer begins
      const double until_ms =
          ForwardMs({stage.whole.first + from - stage.first, stage.whole.first + end - stage.first});
      stream.Run([this, begins = first == from, until_ms] {
        // The kernel's default timer slack adds up to 50 us to every wait.
        prctl(PR_SET_TIMERSLACK, 1UL, 0UL, 0UL, 0UL);
        if (begins) begin_ns_ = MonotonicNanos();
        SleepUntil(begin_ns_ + Nanos(until_ms));
        return absl::OkStatus();
      });
    }
    return Span{};
  }

  absl::Status Loss(const Batch&, Activations&, BatchScore*, Stream&) override { return absl::OkStatus(); }

  // Each of two parts takes half of the time.
  absl::Status BackwardUnit(LayerRange unit, const ModelState& state, const Batch& batch, Activations&,
                            Span gradient, Stream& stream) override {
    const double share = state.part == BackwardPart::kBoth ? 1 : .5;
    samples_ = static_cast<float>(batch.size);
    for (size_t l = unit.end; l-- > unit.first;) {
      const auto stage = std::ranges::find_if(stages_, [&](const Stage& one) { return l < one.end(); });
      const auto in_whole = [&](size_t layer) { return stage->whole.first + layer - stage->first; };
      const size_t from = state.after_wait ? std::min(unit.end, stage->end()) : stage->end(),
                   whole = in_whole(l);
      const double until_ms = share * (DoneMs(whole) - DoneMs(in_whole(from)));
      stream.Run([this, begins = l + 1 == from, until_ms] {
        if (begins) begin_ns_ = MonotonicNanos();
        SleepUntil(begin_ns_ + Nanos(until_ms));
        return absl::OkStatus();
      });
      if (whole == 0 || state.part == BackwardPart::kInput) continue;
      stream.Copy(gradient.floats() + (tensor_of_[l].first - state.gradient_first), &samples_,
                  sizeof(samples_));
    }
    return absl::OkStatus();
  }

  // Between blocks of layers, if the recording contains the size of their activations.
  std::vector<size_t> CutPoints() const override {
    std::vector<size_t> points;
    const auto block = [&](size_t l) { return BlockName(workload_.tensors[all_layers() - 1 - l].name); };
    for (size_t l = 2; l < layers() && is_whole() && boundary_elements() > 0; ++l) {
      if (block(l) != block(l - 1)) points.push_back(l);
    }
    return points;
  }
  size_t BoundaryElements(size_t) const override { return boundary_elements(); }
  absl::StatusOr<std::unique_ptr<Model>> TakeStages(const std::vector<LayerRange>& stages) && override {
    if (!is_whole()) return absl::InvalidArgumentError("the model is cut already");
    PSRING_RETURN_IF_ERROR(CheckStages(*this, stages));
    return std::make_unique<ReplayedModel>(workload_, stages);
  }
  StageEdges EdgesOf(size_t stage, Activations& activations, int size) const override {
    const LayerRange& whole = stages_[stage].whole;
    const auto edge = [&](const std::vector<Span>& all, size_t end) {
      return all[2 * stage + end].Slice(0, static_cast<size_t>(size) * boundary_elements());
    };
    StageEdges edges;
    if (size > 0 && whole.first > 0) {
      edges.input = edge(activations.values, 0);
      edges.input_gradient = edge(activations.gradients, 0);
    }
    if (size > 0 && whole.end < all_layers()) {
      edges.output = edge(activations.values, 1);
      edges.output_gradient = edge(activations.gradients, 1);
    }
    return edges;
  }

 private:
  struct Stage {
    LayerRange whole;  // in the recording
    size_t first;      // of its layers, here
    size_t end() const { return first + whole.end - whole.first; }
  };

  size_t all_layers() const { return 1 + workload_.tensors.size(); }
  bool is_whole() const { return stages_.size() == 1 && layers() == all_layers(); }
  size_t boundary_elements() const {
    return (static_cast<size_t>(workload_.activation_bytes) + sizeof(float) - 1) / sizeof(float);
  }
  // When backward of the recording has passed this layer.
  double DoneMs(size_t layer) const {
    if (layer == all_layers()) return 0;
    return layer == 0 ? workload_.backward_ms : workload_.tensors[all_layers() - 1 - layer].ready_ms;
  }
  double ForwardMs(LayerRange whole) const {
    const double share =
        workload_.backward_ms > 0
            ? (DoneMs(whole.first) - DoneMs(whole.end)) / workload_.backward_ms
            : static_cast<double>(whole.end - whole.first) / static_cast<double>(all_layers());
    return workload_.forward_ms * share;
  }

  const Workload workload_;
  std::vector<Stage> stages_;
  std::vector<ReadyRange> tensor_of_;  // by layer, in the layout
  ParameterLayout layout_{/*alignment=*/1};
  float samples_ = 0;     // in the batch
  int64_t begin_ns_ = 0;  // of forward or backward, in stream order
};

}  // namespace

std::unique_ptr<Model> MakeReplayedModel(const Workload& workload) {
  const std::vector<LayerRange> all = {{0, 1 + workload.tensors.size()}};
  return std::make_unique<ReplayedModel>(workload, all);
}

absl::StatusOr<ModelRow> ModelOf(const TrainingOptions& options, const ModelTable& rows) {
  if (options.workload.empty()) {
    PSRING_ASSIGN_OR_RETURN(const ModelRow* found, FindModelRow(options.model, rows));
    ModelRow row = *found;
    for (const auto& [flag, given, size] : {std::tuple("--layers", options.layers, &row.size.layers),
                                            {"--width", options.width, &row.size.width},
                                            {"--heads", options.heads, &row.size.heads},
                                            {"--context", options.context, &row.size.context}}) {
      if (given == 0) continue;
      if (*size == ModelSize::kFixed) {
        return InvalidArgument(flag, " is not a size of the model ", row.name, "; omit it");
      }
      *size = given;
    }
    if (options.dropout > 0 && !row.has_dropout) {
      return absl::InvalidArgumentError(
          Tr("--dropout is for transformers ($0); omit it for $1",
             ModelsThat([](const ModelRow& other) { return other.has_dropout; }), row.name));
    }
    SetMaker(options.dropout, row);
    if (options.recompute) PSRING_RETURN_IF_ERROR(CheckUnits(row));
    return row;
  }
  PSRING_ASSIGN_OR_RETURN(const Workload recorded, LoadWorkload(options.workload));
  return ModelRow{.name = "replay",
                  .summary = "a recorded workload",
                  .default_lr = .01,
                  .make = [workload = Faster(recorded, options.compute_speedup)](const SampleSpec&, Ops&)
                      -> absl::StatusOr<std::unique_ptr<Model>> { return MakeReplayedModel(workload); }};
}

absl::StatusOr<DataSplits> DataOf(const TrainingOptions& options) {
  PSRING_ASSIGN_OR_RETURN(DataSplits data, options.workload.empty() ? SamplesOf(options) : EmptySamples());
  PSRING_RETURN_IF_ERROR(HoldOut(options.validation, options.score == "validation", data));
  return data;
}

}  // namespace psring
