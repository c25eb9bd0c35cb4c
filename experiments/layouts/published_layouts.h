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

// The first row sets the computing speed.
struct PublishedTraining {
  const char* title;
  const char* source;
  const char* remark;
  Cluster cluster;
  const char* strategy = "ring";
  bool recomputes = false;  // backward repeats each layer's forward
  std::vector<PublishedLayout> rows;
};
const std::vector<PublishedTraining>& PublishedTrainings();

// Operations of a step with recomputation, by which Narayanan et al. 2021, equation 3, state FLOP/s.
double RecomputingOperations(const GptShape& shape, int batch);

// Seconds of each row but the first.
absl::StatusOr<std::vector<double>> PredictTraining(const PublishedTraining& training);

// The tables of experiments/results/published_runs.md about layouts, and the median error of all rows.
struct PublishedLayoutsReport {
  std::string text;
  std::vector<double> errors;  // predicted over published, minus 1
};
absl::StatusOr<PublishedLayoutsReport> CheckPublishedLayouts();

}  // namespace psring
