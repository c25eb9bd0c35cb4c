// Models and clusters of which the price of a layout is known in closed form.
#pragma once

#include <utility>

#include "experiments/layouts/layout_search.h"

namespace psring {

// Layers that take 1 ms forward and 2 ms backward for a sample, without an embedding.
inline LayoutModel EqualLayers(int layers, double parameters) {
  LayoutModel model{.name = "equal", .width = 64, .tokens = 16, .heads = 8};
  for (int layer = 0; layer < layers; ++layer) {
    model.layers.push_back({.forward_s = 1e-3,
                            .backward_s = 2e-3,
                            .matrices = parameters,
                            .widths = {192, 64, 256, 256},
                            .forward_sums = 2,
                            .backward_sums = 2});
  }
  return model;
}

inline LayoutQuestion OnNodes(LayoutModel model, int workers, int per_node, double link_bytes_per_s) {
  LayoutQuestion question{.model = std::move(model), .workers = workers, .global_batch = 2 * workers};
  question.cluster = {.gpus_per_node = per_node,
                      .link_bytes_per_s = link_bytes_per_s,
                      .intra_bytes_per_s = 100 * link_bytes_per_s,
                      .fraction = 1,
                      .latency_s = 0,
                      .intra_latency_s = 0};
  return question;
}

inline LayoutPrice Priced(const LayoutQuestion& question, const LayoutCandidate& candidate) {
  return PriceOf(question, candidate, StagesOf(question.model, candidate).value()).value();
}

inline LayoutCandidate Candidate(int dp, int pp, int tp, const char* strategy, const char* program,
                                 int micro_batches) {
  return {.dp = dp,
          .pp = pp,
          .tp = tp,
          .strategy = &ShardingStrategy(strategy),
          .program = FindStepProgram(program).value(),
          .samples = 1,
          .micro_batches = micro_batches};
}

// Layers whose attention, of 16 tokens of 64 values, takes half of the time.
inline LayoutModel WithAttention(int layers) {
  LayoutModel model = EqualLayers(layers, 0);
  for (ModelLayer& layer : model.layers) {
    layer.keys = 2;
    layer.attention = .5;
  }
  return model;
}

}  // namespace psring
