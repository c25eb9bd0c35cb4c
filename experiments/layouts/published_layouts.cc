#include "experiments/layouts/published_layouts.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/check.h"
#include "experiments/stats/statistics.h"

namespace psring {
namespace {

constexpr double kTokens = 2048, kVocabulary = 51200;
constexpr double kGbit = 1e9 / 8;
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
       "A100. Micro-batches of one sample and two stages per device (three for 529.6 billion parameters) are "
       "assumed",
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
        Megatron({1008, 128, 25600, 160}, 3072, 64, 8, 3072, 1, 2, 163)}},
      {"Megatron-LM, pipeline and tensor parallelism",
       "2",
       "A100. Two stages per device are assumed",
       DgxA100(),
       "ring",
       true,
       {Megatron(kGpt3, 384, 12, 8, 1536, 1, 2, 153), Megatron(kGpt3, 768, 12, 8, 1536, 1, 2, 149),
        Megatron(kGpt3, 1536, 12, 8, 1536, 1, 2, 141)}},
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
       "Ampere GPUs, 8 cards of 200 Gbit/s per node. Micro-batches of one sample are assumed",
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

// With 1e12 operations per second.
absl::StatusOr<LayoutModel> ModelOfShape(const GptShape& shape, bool recomputes) {
  if (shape.layers == 0) {
    PSRING_ASSIGN_OR_RETURN(const Workload recorded, LoadWorkload("llama_8b"));
    PSRING_ASSIGN_OR_RETURN(LayoutModel llama, LayoutModelOf(recorded));
    llama.sixteen_bits = true;
    return llama;
  }
  const double h = shape.width;
  LayoutModel model{.name = "gpt", .width = h, .tokens = kTokens, .heads = shape.heads, .sixteen_bits = true};
  model.layers.push_back({.matrices = (kVocabulary + kTokens) * h, .forward_sums = 1});
  const double of_layer = 1e-12 * kTokens * (24 * h * h + 4 * kTokens * h);
  // Forward has two sums; backward two of its own, and two that it repeats.
  for (int layer = 0; layer < shape.layers; ++layer) {
    model.layers.push_back({.forward_s = of_layer,
                            .backward_s = (recomputes ? 3 : 2) * of_layer,
                            .matrices = 12 * h * h,
                            .others = 13 * h,
                            .widths = {3 * h, h, 4 * h, 4 * h},
                            .forward_sums = kAllReducesPerLayer / 2,
                            .backward_sums = (recomputes ? 2 : 1) * kAllReducesPerLayer / 2});
  }
  const double of_head = 1e-12 * kTokens * 2 * h * kVocabulary;
  model.layers.push_back(
      {.forward_s = of_head, .backward_s = 2 * of_head, .logits = kVocabulary, .backward_sums = 1});
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

// Of a step with computing `times` as long as ModelOfShape; `is_bound`: LeastSeconds of it.
absl::StatusOr<double> StepSeconds(const PublishedTraining& training, const PublishedLayout& row,
                                   double times, bool is_bound = false) {
  LayoutQuestion question{.cluster = training.cluster, .workers = row.workers, .global_batch = row.batch};
  PSRING_ASSIGN_OR_RETURN(question.model, ModelOfShape(row.shape, training.recomputes));
  for (ModelLayer& layer : question.model.layers) {
    layer.forward_s *= times;
    layer.backward_s *= times;
  }
  const std::string program = row.pp == 1      ? "single_stage"
                              : row.chunks > 1 ? absl::StrCat("interleaved:", row.chunks)
                                               : "1f1b";
  LayoutCandidate candidate = CandidateOf(row);
  candidate.strategy = &ShardingStrategy(training.strategy);
  PSRING_ASSIGN_OR_RETURN(candidate.program, FindStepProgram(program));
  PSRING_ASSIGN_OR_RETURN(const LayoutStages stages, StagesOf(question.model, candidate));
  if (is_bound) return LeastSeconds(question, candidate, stages);
  PSRING_ASSIGN_OR_RETURN(const LayoutPrice price, PriceOf(question, candidate, stages));
  return price.step_s;
}

std::string RowName(const PublishedLayout& row) {
  return absl::StrCat(row.shape.layers == 0 ? "llama_8b" : absl::StrFormat("%g billion", row.shape.billions),
                      ", ", CandidateOf(row).layout());
}

}  // namespace

const std::vector<PublishedTraining>& PublishedTrainings() {
  static const auto& trainings = *new std::vector<PublishedTraining>(MakeTrainings());
  return trainings;
}

double RecomputingOperations(const GptShape& shape, int batch) {
  const double l = shape.layers, h = shape.width;
  return 96 * batch * kTokens * l * h * h * (1 + kTokens / (6 * h) + kVocabulary / (16 * l * h));
}

absl::StatusOr<std::vector<double>> PredictTraining(const PublishedTraining& training) {
  constexpr int kBounds = 20, kSteps = 2;
  const PublishedLayout& first = training.rows.front();
  double times = 1;
  // The bound is near the step, and quick; then the step itself.
  for (int i = 0; i < kBounds + kSteps; ++i) {
    PSRING_ASSIGN_OR_RETURN(const double seconds, StepSeconds(training, first, times, i < kBounds));
    times *= first.seconds / seconds;
  }
  std::vector<double> predicted;
  for (size_t i = 1; i < training.rows.size(); ++i) {
    PSRING_ASSIGN_OR_RETURN(predicted.emplace_back(), StepSeconds(training, training.rows[i], times));
  }
  return predicted;
}

absl::StatusOr<PublishedLayoutsReport> CheckPublishedLayouts() {
  PublishedLayoutsReport report{
      .text =
          "\n# Published layouts\n\nSteps of sharded, pipelined and tensor-parallel training, predicted "
          "as by `predict --layouts auto`. The first row of each table\nsets the computing speed and is "
          "not listed. Without the constants of other systems, so there is no range.\n"};
  for (const PublishedTraining& training : PublishedTrainings()) {
    const std::string source = training.source;
    absl::StrAppendFormat(&report.text,
                          "\n## %s\n\n%s%s. %s.\n\n| case | published, s a step | predicted | error |\n"
                          "|---|---|---|---|\n",
                          training.title, source.size() == 1 ? kMegatron : "", source, training.remark);
    PSRING_ASSIGN_OR_RETURN(const std::vector<double> predicted, PredictTraining(training));
    for (size_t i = 0; i < predicted.size(); ++i) {
      const PublishedLayout& row = training.rows[i + 1];
      report.errors.push_back(predicted[i] / row.seconds - 1);
      absl::StrAppendFormat(&report.text, "| %s | %.2f | %.2f | %+.1f%% |\n", RowName(row), row.seconds,
                            predicted[i], 100 * report.errors.back());
    }
  }
  std::vector<double> sizes;
  for (const double error : report.errors) sizes.push_back(std::abs(error));
  absl::StrAppendFormat(
      &report.text,
      "\n%d rows: median error %.1f%%, worst %.1f%%. Wide matrices compute faster than those of the first "
      "row of Megatron-LM's table 1,\nwhich the prediction does not know; and ZeRO-3 lost on "
      "many devices what the prediction hides behind computation.\n",
      sizes.size(), 100 * Quantile(sizes, .5), 100 * *std::ranges::max_element(sizes));
  return report;
}

}  // namespace psring
