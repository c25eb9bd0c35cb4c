#include "trainer/models/replayed_model.h"

#include <sys/prctl.h>

#include <cerrno>
#include <cmath>
#include <ctime>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/check.h"
#include "common/measure/trace.h"
#include "common/text/translate.h"
#include "trainer/data/data.h"
#include "trainer/data/sources.h"

namespace psring {
namespace {

constexpr int64_t kSamples = 1 << 16;

void SleepUntil(int64_t monotonic_ns) {
  const timespec until = {.tv_sec = monotonic_ns / 1'000'000'000, .tv_nsec = monotonic_ns % 1'000'000'000};
  while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, nullptr) == EINTR) {
  }
}

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
  return absl::InvalidArgumentError(absl::StrCat(
      "--recompute is for models that consist of blocks (",
      ModelsThat([](const ModelRow& other) { return other.has_units; }), "); omit it for ", row.name));
}

int64_t Nanos(double ms) { return std::llround(1e6 * ms); }

absl::StatusOr<DataSplits> SamplesOf(const TrainingOptions& options) {
  PSRING_ASSIGN_OR_RETURN(const ModelRow row, ModelOf(options));
  if (row.size.context == ModelSize::kFixed && options.reads_text()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--data ", options.data, ": the model ", row.name,
                     " reads pictures; choose other data, or --model gpt-nano"));
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

class ReplayedModel : public Model {
 public:
  explicit ReplayedModel(const Workload& workload)
      : workload_(workload), layout_(DeclaredLayoutOf(workload, place_)) {}

  const ParameterLayout& parameters() const override { return layout_; }

  // Tensor i of the workload belongs to layer tensors - i; layer 0 is what follows the last tensor.
  size_t layers() const override { return 1 + place_.size(); }
  std::vector<ReadyRange> CompleteAfterLayers() const override {
    std::vector<ReadyRange> complete(layers());
    for (size_t l = 1; l < layers(); ++l) complete[l] = {TensorOf(l).first, TensorOf(l).count};
    return complete;
  }

  std::vector<float> InitialWeights(uint64_t) const override { return std::vector<float>(layout_.count()); }

  absl::StatusOr<Activations> NewActivations(int max_batch, Keep, Device&) const override {
    return Activations{.max_batch = max_batch};
  }

  // Layers share the time of forward evenly.
  absl::StatusOr<Span> ForwardUnit(LayerRange unit, const ModelState&, const Batch&, Activations&,
                                   Stream& stream) override {
    const double share = static_cast<double>(unit.end) / static_cast<double>(layers());
    stream.Run([this, begins = unit.first == 0, until_ms = workload_.forward_ms * share] {
      // The kernel's default timer slack adds up to 50 us to every wait.
      prctl(PR_SET_TIMERSLACK, 1UL, 0UL, 0UL, 0UL);
      if (begins) begin_ns_ = MonotonicNanos();
      SleepUntil(begin_ns_ + Nanos(until_ms));
      return absl::OkStatus();
    });
    return Span{};
  }

  absl::Status Loss(const Batch&, Activations&, BatchScore*, Stream&) override { return absl::OkStatus(); }

  absl::Status BackwardUnit(LayerRange unit, const ModelState&, const Batch& batch, Activations&,
                            Span gradient, Stream& stream) override {
    samples_ = static_cast<float>(batch.size);
    for (size_t l = unit.end; l-- > unit.first;) {
      const double until_ms = l == 0 ? workload_.backward_ms : workload_.tensors[layers() - 1 - l].ready_ms;
      stream.Run([this, begins = l + 1 == layers(), until_ms] {
        if (begins) begin_ns_ = MonotonicNanos();
        SleepUntil(begin_ns_ + Nanos(until_ms));
        return absl::OkStatus();
      });
      if (l > 0) stream.Copy(gradient.floats() + TensorOf(l).first, &samples_, sizeof(samples_));
    }
    return absl::OkStatus();
  }

 private:
  const Tensor& TensorOf(size_t layer) const {
    return layout_.tensors()[static_cast<size_t>(place_[place_.size() - layer])];
  }

  const Workload workload_;
  std::vector<int> place_;  // of the workload's tensors in the layout
  const ParameterLayout layout_;
  float samples_ = 0;     // in the batch
  int64_t begin_ns_ = 0;  // of forward or backward, in stream order
};

}  // namespace

std::unique_ptr<Model> MakeReplayedModel(const Workload& workload) {
  return std::make_unique<ReplayedModel>(workload);
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
        return absl::InvalidArgumentError(
            absl::StrCat(flag, " is not a size of the model ", row.name, "; omit it"));
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
