#include "experiments/layouts/published_layouts.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/check.h"
#include "experiments/simulator/compute_variation.h"

namespace psring {
namespace {

constexpr double kTokens = 2048, kVocabulary = 51200;
constexpr double kGbit = 1e9 / 8;
constexpr double kMemoryBytesPerS = 2.039e12;  // NVIDIA, A100 80 GB, data sheet
constexpr char kMegatron[] = "Narayanan et al. 2021, Efficient Large-Scale Language Model Training, table ";

Cluster DgxH100() { return LoadCluster("dgx-h100").value(); }
Cluster DgxA100() {
  Cluster cluster = DgxH100();
  cluster.link_bytes_per_s = 200 * kGbit;
  cluster.intra_bytes_per_s = 2400 * kGbit;
  return cluster;
}

// A row whose speed is published as TFLOP/s of a GPU.
PublishedLayout Megatron(const GptShape& shape, int workers, int pp, int tp, int batch, int samples,
                         int chunks, double teraflops) {
  return {.shape = shape,
          .workers = workers,
          .pp = pp,
          .tp = tp,
          .batch = batch,
          .samples = samples,
          .chunks = chunks,
          .seconds = RecomputingOperations(shape, batch) / (1e12 * teraflops * workers)};
}

constexpr GptShape kGpt3 = {174.6, 96, 12288, 96}, kMtNlg = {529.6, 105, 20480, 128};

std::vector<PublishedTraining> MakeTrainings() {
  const auto megascale = [](int workers, int batch, double seconds) -> PublishedLayout {
    return {.shape = {175, 96, 12288, 128},
            .workers = workers,
            .pp = 8,
            .tp = 8,
            .batch = batch,
            .chunks = 6,
            .seconds = seconds};
  };
  const auto torchtitan = [](int workers, double tokens_per_s) -> PublishedLayout {
    constexpr int kSamples = 2, kTokensOfSample = 8192;
    return {.workers = workers,
            .batch = kSamples * workers,
            .samples = kSamples,
            .seconds = kSamples * kTokensOfSample / tokens_per_s};
  };
  return {
      {"Megatron-LM, 1.7 billion to 1 trillion parameters",
       "1",
       "A100. Assumed are micro-batches of one sample, two stages per device (three for 529.6 billion "
       "parameters), and that nothing hides the sums of inputs' gradients, as in Megatron-LM of that time",
       DgxA100(),
       "ring",
       true,
       {Megatron({1.7, 24, 2304, 24}, 32, 1, 1, 512, 1, 1, 137),
        Megatron({3.6, 30, 3072, 32}, 64, 1, 2, 512, 1, 1, 138),
        Megatron({7.5, 36, 4096, 32}, 128, 1, 4, 512, 1, 1, 142),
        Megatron({18.4, 40, 6144, 48}, 256, 1, 8, 1024, 1, 1, 135),
        Megatron({39.1, 48, 8192, 64}, 512, 2, 8, 1536, 1, 2, 138),
        Megatron({76.1, 60, 10240, 80}, 1024, 4, 8, 1792, 1, 2, 140),
        Megatron({145.6, 80, 12288, 96}, 1536, 8, 8, 2304, 1, 2, 148),
        Megatron({310.1, 96, 16384, 128}, 1920, 16, 8, 2160, 1, 2, 155),
        Megatron(kMtNlg, 2520, 35, 8, 2520, 1, 3, 163),
        Megatron({1008, 128, 25600, 160}, 3072, 64, 8, 3072, 1, 2, 163)},
       /*overlaps_sums=*/false},
      {"Megatron-LM, pipeline and tensor parallelism",
       "2",
       "A100. Assumed are two stages per device, and sums as above",
       DgxA100(),
       "ring",
       true,
       {Megatron(kGpt3, 384, 12, 8, 1536, 1, 2, 153), Megatron(kGpt3, 768, 12, 8, 1536, 1, 2, 149),
        Megatron(kGpt3, 1536, 12, 8, 1536, 1, 2, 141)},
       /*overlaps_sums=*/false},
      {"DeepSpeed ZeRO-3, 174.6 billion parameters",
       "2",
       "A100",
       DgxA100(),
       "fsdp",
       true,
       {Megatron(kGpt3, 384, 1, 1, 1536, 4, 1, 144), Megatron(kGpt3, 768, 1, 1, 1536, 2, 1, 88),
        Megatron(kGpt3, 1536, 1, 1, 1536, 1, 1, 44)}},
      {"DeepSpeed ZeRO-3, 529.6 billion parameters",
       "2",
       "A100",
       DgxA100(),
       "fsdp",
       true,
       {Megatron(kMtNlg, 640, 1, 1, 2560, 4, 1, 138), Megatron(kMtNlg, 1120, 1, 1, 2240, 2, 1, 98),
        Megatron(kMtNlg, 2240, 1, 1, 2240, 1, 1, 48)}},
      {"Megatron-LM, 768 samples",
       "Jiang et al. 2024, MegaScale, table 2",
       "Ampere GPUs, 8 cards of 200 Gbit/s per node. Assumed are micro-batches of one sample, and that the "
       "gradients of weights hide the sums of inputs' gradients, as in Megatron-LM since 2022",
       DgxA100(),
       "ring",
       false,
       {megascale(256, 768, 40.0), megascale(512, 768, 21.2), megascale(768, 768, 15.2),
        megascale(1024, 768, 11.9)}},
      {"Megatron-LM, 6,144 samples",
       "Jiang et al. 2024, MegaScale, table 2",
       "As above",
       DgxA100(),
       "ring",
       false,
       {megascale(3072, 6144, 29.02), megascale(6144, 6144, 14.78), megascale(8192, 6144, 12.24),
        megascale(12288, 6144, 8.57)}},
      {"torchtitan with FSDP",
       "torchtitan, benchmarks/llama3_h100_202412_torchtitan.md, tables 1 and 3",
       "H100, 400 Gbit/s per GPU",
       DgxH100(),
       "fsdp",
       false,
       {torchtitan(8, 5762), torchtitan(128, 5605)}},
      {"torchtitan with FSDP, compiled",
       "torchtitan, benchmarks/llama3_h100_202412_torchtitan.md, tables 1 and 3",
       "As above",
       DgxH100(),
       "fsdp",
       false,
       {torchtitan(8, 6667), torchtitan(128, 6514)}}};
}

// With matrix products that take `times` as long as at 1e12 operations per second.
absl::StatusOr<LayoutModel> ModelOfShape(const GptShape& shape, const PublishedTraining& training,
                                         double times) {
  if (shape.layers == 0) {
    static const auto& llama = *new absl::StatusOr<LayoutModel>([]() -> absl::StatusOr<LayoutModel> {
      PSRING_ASSIGN_OR_RETURN(const Workload recorded, LoadWorkload("llama_8b"));
      return LayoutModelOf(recorded);
    }());
    PSRING_RETURN_IF_ERROR(llama.status());
    LayoutModel scaled = *llama;
    scaled.sixteen_bits = true;
    for (ModelLayer& layer : scaled.layers) {
      layer.forward_s *= times;
      layer.backward_s *= times;
    }
    return scaled;
  }
  const double h = shape.width;
  const bool recomputes = training.recomputes;
  LayoutModel model{.name = "gpt",
                    .width = h,
                    .tokens = kTokens,
                    .heads = shape.heads,
                    .sixteen_bits = true,
                    .overlaps_sums = training.overlaps_sums};
  model.layers.push_back({.matrices = (kVocabulary + kTokens) * h, .forward_sums = 1});
  // What elementwise operations read and write of 16 bits per token, at the rate of the memory. Each of two
  // normalizations has an input and an output, each of two additions to the residual two and one, and tensor-
  // parallel ranks do both whole (Korthikanti et al. 2022, section 4.2). GELU has 4 h of each. Attention
  // scores are written by a product, read and written by softmax and by dropout, and read by a product.
  const double of_value = 2 * kTokens / kMemoryBytesPerS;
  const double whole = of_value * 10 * h, divided = of_value * (8 * h + 6 * shape.heads * kTokens);
  const double product = times * 1e-12 * kTokens * 2 * h;  // of the model's width and one output
  const double of_layer = product * (12 * h + 2 * kTokens) + divided;
  const double backward = recomputes ? 3 : 2;
  const double of_output = product / (backward * of_layer);
  // Forward has two sums; backward two of its own, and two that it repeats.
  for (int layer = 0; layer < shape.layers; ++layer) {
    model.layers.push_back({.forward_s = of_layer,
                            .backward_s = backward * of_layer,
                            .whole_forward_s = whole,
                            .whole_backward_s = backward * whole,
                            .matrices = 12 * h * h,
                            .others = 13 * h,
                            .widths = {3 * h, h, 4 * h, 4 * h},
                            .forward_sums = kAllReducesPerLayer / 2,
                            .backward_sums = (recomputes ? 2 : 1) * kAllReducesPerLayer / 2,
                            .weight_parts = {3 * h * of_output, 4 * h * of_output}});
  }
  const double of_head = product * kVocabulary;
  model.layers.push_back({.forward_s = of_head,
                          .backward_s = 2 * of_head,
                          .logits = kVocabulary,
                          .backward_sums = 1,
                          .weight_parts = {.5}});
  return model;
}

// With a ring, and without its program.
LayoutCandidate CandidateOf(const PublishedLayout& row) {
  const int dp = row.workers / row.pp / row.tp;
  return {.dp = dp,
          .pp = row.pp,
          .tp = row.tp,
          .samples = row.samples,
          .micro_batches = row.batch / dp / row.samples};
}

}  // namespace

std::string NameOf(const PublishedLayout& row) {
  return absl::StrCat(row.shape.layers == 0 ? "llama_8b" : absl::StrFormat("%g billion", row.shape.billions),
                      ", ", CandidateOf(row).layout());
}

std::string SourceText(const PublishedTraining& training) {
  const std::string source = training.source;
  return absl::StrCat(source.size() == 1 ? kMegatron : "", source, ". ", training.remark, ".");
}

const std::vector<PublishedTraining>& PublishedTrainings() {
  static const auto& trainings = *new std::vector<PublishedTraining>(MakeTrainings());
  return trainings;
}

double RecomputingOperations(const GptShape& shape, int batch) {
  const double l = shape.layers, h = shape.width;
  return 96 * batch * kTokens * l * h * h * (1 + kTokens / (6 * h) + kVocabulary / (16 * l * h));
}

absl::StatusOr<TrainingPredictor> TrainingPredictor::Of(const PublishedTraining& training) {
  constexpr double kSmallCv = .01;  // with which no variate makes a time negative
  TrainingPredictor model(training);
  for (const PublishedLayout& row : training.rows) {
    const int nodes = ShapeOf(training.cluster, row.workers).nodes;
    const ComputeVariation varied{.kind = ComputeVariation::Kind::kNormal, .cv = kSmallCv};
    model.highest_.push_back((ExpectedMaximum(varied, nodes) - 1) / kSmallCv);
    const std::string program = row.pp == 1      ? "single_stage"
                                : row.chunks > 1 ? absl::StrCat("interleaved:", row.chunks)
                                                 : "1f1b";
    LayoutCandidate candidate = CandidateOf(row);
    candidate.strategy = &ShardingStrategy(training.strategy);
    PSRING_ASSIGN_OR_RETURN(candidate.program, FindStepProgram(program));
    PSRING_ASSIGN_OR_RETURN(const LayoutModel shape, ModelOfShape(row.shape, training, 1));
    PSRING_ASSIGN_OR_RETURN(model.stages_.emplace_back(), StagesOf(shape, candidate));
    model.candidates_.push_back(std::move(candidate));
  }
  return model;
}

absl::StatusOr<double> TrainingPredictor::Seconds(size_t row, double times, const Assumed& assumed) const {
  const PublishedLayout& of = training_->rows[row];
  LayoutQuestion question{.workers = of.workers, .global_batch = of.batch};
  PSRING_ASSIGN_OR_RETURN(question.model, ModelOfShape(of.shape, *training_, times));
  question = Assuming(std::move(question), assumed.cluster, 1 + assumed.cv * highest_[row]);
  if (assumed.is_bound) return LeastSeconds(question, candidates_[row], stages_[row]);
  PSRING_ASSIGN_OR_RETURN(const LayoutPrice price, PriceOf(question, candidates_[row], stages_[row]));
  return price.step_s;
}

absl::StatusOr<double> TrainingPredictor::TimesOfFirstRow(const Assumed& assumed) const {
  constexpr int kBounds = 20, kSteps = 2;
  constexpr double kClose = 1e-5;
  const double goal = training_->rows[0].seconds;
  Assumed bound = assumed;
  bound.is_bound = true;
  // The bound grows convexly from `low`: a secant that begins below the goal ends below it, too.
  double low = 0, times = 1;
  PSRING_ASSIGN_OR_RETURN(double low_s, Seconds(0, low, bound));
  if (low_s >= goal) return 0;  // what is assumed to be lost takes all of the step
  for (int i = 0; i < kBounds; ++i) {
    PSRING_ASSIGN_OR_RETURN(const double seconds, Seconds(0, times, bound));
    if (std::abs(seconds / goal - 1) < kClose) break;
    if (seconds > goal) {
      times = low + (goal - low_s) * (times - low) / (seconds - low_s);
    } else {
      low = times;
      low_s = seconds;
      times *= std::max(1 + kClose, goal / seconds);
    }
  }
  // The step is near the bound.
  for (int i = 0; i < kSteps && !assumed.is_bound; ++i) {
    PSRING_ASSIGN_OR_RETURN(const double seconds, Seconds(0, times, assumed));
    times *= goal / seconds;
  }
  return times;
}

absl::StatusOr<std::vector<double>> TrainingPredictor::Predict(const Cluster& cluster, double cv,
                                                               bool is_bound) const {
  const Assumed assumed{cluster, cv, is_bound};
  PSRING_ASSIGN_OR_RETURN(const double times, TimesOfFirstRow(assumed));
  std::vector<double> predicted;
  for (size_t row = 1; row < training_->rows.size(); ++row) {
    PSRING_ASSIGN_OR_RETURN(predicted.emplace_back(), Seconds(row, times, assumed));
  }
  return predicted;
}

}  // namespace psring
