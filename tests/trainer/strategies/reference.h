// The process that strategies are compared with.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "tests/trainer/cluster.h"

namespace psring {

inline const std::vector<std::string> kOptimizers = {"sgd", "momentum", "adam"};

// Small enough to clip in every step, so that clipping changes the weights.
inline constexpr double kClipNorm = 0.2;

inline const DataSplits& ReferenceData() {
  static const DataSplits data = SmallData();
  return data;
}

// Of rank 0; fails the test if a rank has failed.
inline std::vector<float> WeightsOf(const std::vector<RankOutcome>& outcomes) {
  for (const RankOutcome& outcome : outcomes) EXPECT_TRUE(outcome.result.ok()) << outcome.result.status();
  return outcomes.front().weights;
}

// The final weights of `single --reference_workers workers`.
inline const std::vector<float>& Reference(const std::string& optimizer, int workers, double clip_norm = 0) {
  static std::map<std::tuple<std::string, int, double>, std::vector<float>> references;
  std::vector<float>& weights = references[{optimizer, workers, clip_norm}];
  if (weights.empty()) {
    TrainingOptions options = SmallOptions("single");
    options.clip_norm = clip_norm;
    options.optimizer = optimizer;
    options.reference_workers = workers;
    weights = TrainRanks(options, 1, ReferenceData())[0].weights;
  }
  return weights;
}

}  // namespace psring
