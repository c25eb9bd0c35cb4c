// The check of layouts' prices against published steps of sharded, pipelined and tensor-parallel training.
// Pure.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "experiments/layouts/layout_price.h"

namespace psring {

// A GPT with the vocabulary and the tokens per sample of Narayanan et al. 2021; no layers: llama_8b.
struct GptShape {
  double billions = 0;  // of parameters
  int layers = 0, width = 0, heads = 0;
};

struct PublishedLayout {
  GptShape shape;
  int workers = 1, pp = 1, tp = 1;
  int batch = 1;    // samples of a step
  int samples = 1;  // of a micro-batch
  int chunks = 1;   // stages of a rank; above 1: interleaved
  double seconds = 0;
};

// The first row sets the speed of matrix products.
struct PublishedTraining {
  const char* title;
  const char* source;
  const char* remark;
  Cluster cluster;
  const char* strategy = "ring";
  bool recomputes = false;  // backward repeats each layer's forward
  std::vector<PublishedLayout> rows;
  bool overlaps_sums = true;  // of tensor parallelism (LayoutModel)
};
const std::vector<PublishedTraining>& PublishedTrainings();

// Operations of a step with recomputation, by which Narayanan et al. 2021, equation 3, state FLOP/s.
double RecomputingOperations(const GptShape& shape, int batch);

// Predicts the rows of a training but the first, under assumptions about what was lost.
class TrainingPredictor {
 public:
  // Outlived by `training`.
  static absl::StatusOr<TrainingPredictor> Of(const PublishedTraining& training);
  // Seconds, on `cluster` with computing that varies between nodes with coefficient of variation `cv`.
  // `is_bound`: LeastSeconds in place of walked steps: quick, and near them.
  absl::StatusOr<std::vector<double>> Predict(const Cluster& cluster, double cv, bool is_bound) const;

 private:
  explicit TrainingPredictor(const PublishedTraining& training) : training_(&training) {}
  struct Assumed {
    const Cluster& cluster;
    double cv;
    bool is_bound;
  };
  // With matrix products that take `times` as long as at 1e12 operations per second, or recorded layers.
  absl::StatusOr<double> Seconds(size_t row, double times, const Assumed& assumed) const;
  // For which the first row takes as long as published.
  absl::StatusOr<double> TimesOfFirstRow(const Assumed& assumed) const;

  const PublishedTraining* training_;
  std::vector<LayoutCandidate> candidates_;  // by row
  std::vector<LayoutStages> stages_;
  std::vector<double> highest_;  // of as many normal variates as there are nodes, expected
};

// "39.1 billion, dp32xpp2xtp8".
std::string NameOf(const PublishedLayout& row);
// What published_runs.md says about the source and the setup.
std::string SourceText(const PublishedTraining& training);

}  // namespace psring
