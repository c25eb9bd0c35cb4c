#include "experiments/layouts/published_layouts.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "tests/has.h"

namespace psring {
namespace {

std::vector<double> Predicted(const PublishedTraining& training, bool is_bound = true, double cv = 0,
                              double fraction = .9) {
  Cluster cluster = training.cluster;
  cluster.fraction = fraction;
  return TrainingPredictor::Of(training)->Predict(cluster, cv, is_bound).value();
}

// Narayanan et al. 2021, equation 4: about 8 operations per token and parameter.
TEST(PublishedLayouts, AStepsOperationsAreThoseOfThePaper) {
  const GptShape gpt3{.billions = 174.6, .layers = 96, .width = 12288, .heads = 96};
  EXPECT_NEAR(RecomputingOperations(gpt3, 1536) / (8. * 1536 * 2048 * 174.6e9), 1.02, .02);
}

TEST(PublishedLayouts, TheirRanksAndSamplesDivide) {
  for (const PublishedTraining& training : PublishedTrainings()) {
    EXPECT_THAT(SourceText(training), Has(training.remark));
    for (const PublishedLayout& row : training.rows) {
      EXPECT_EQ(row.workers % (row.pp * row.tp), 0) << training.title;
      EXPECT_EQ(row.batch % (row.workers / row.pp / row.tp * row.samples), 0) << training.title;
    }
  }
  EXPECT_EQ(NameOf(PublishedTrainings()[0].rows[4]), "39.1 billion, dp32xpp2xtp8");
}

// Half of the devices take nearly twice as long, of which the bubble is a smaller part.
TEST(PublishedLayouts, TheFirstRowSetsTheSpeed) {
  PublishedTraining training = PublishedTrainings()[1];
  const std::vector<double> predicted = Predicted(training, /*is_bound=*/false);
  training.rows[0].seconds *= 2;
  const std::vector<double> slower = Predicted(training, /*is_bound=*/false);
  ASSERT_EQ(slower.size(), 2u);
  EXPECT_NEAR(slower[0] / predicted[0], 2, .2);
  EXPECT_GT(predicted[0], training.rows[0].seconds / 4);
}

TEST(PublishedLayouts, TheBoundIsNearTheStep) {
  for (const size_t training : {1u, 2u, 6u}) {
    const std::vector<double> bound = Predicted(PublishedTrainings()[training]),
                              step = Predicted(PublishedTrainings()[training], /*is_bound=*/false);
    for (size_t i = 0; i < bound.size(); ++i) EXPECT_NEAR(bound[i] / step[i], 1, .15) << training << " " << i;
  }
}

// Elementwise operations take a smaller part of wide models' time.
TEST(PublishedLayouts, WideModelsComputeFaster) {
  const PublishedTraining& megatron = PublishedTrainings()[0];
  const std::vector<double> predicted = Predicted(megatron);
  const auto flops_per_gpu = [&](size_t row, double seconds) {
    const PublishedLayout& of = megatron.rows[row];
    return RecomputingOperations(of.shape, of.batch) / (seconds * of.workers);
  };
  const double first = flops_per_gpu(0, megatron.rows[0].seconds);
  for (const size_t row : {7u, 8u, 9u}) {
    EXPECT_GT(flops_per_gpu(row, predicted[row - 1]), 1.05 * first);
    EXPECT_NEAR(predicted[row - 1] / megatron.rows[row].seconds, 1, .15);
  }
}

TEST(PublishedLayouts, WhatIsLostMakesMoreDevicesSlower) {
  const PublishedTraining& zero3 = PublishedTrainings()[2];
  const double described = Predicted(zero3)[1];
  EXPECT_GT(Predicted(zero3, true, 0, .05)[1], 2 * described) << "a small share of the links";
  EXPECT_GT(Predicted(PublishedTrainings()[4], true, .2)[2], Predicted(PublishedTrainings()[4])[2])
      << "more nodes wait for a slower one";
}

}  // namespace
}  // namespace psring
