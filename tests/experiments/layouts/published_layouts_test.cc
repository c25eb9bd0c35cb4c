#include "experiments/layouts/published_layouts.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "experiments/stats/statistics.h"
#include "tests/has.h"

namespace psring {
namespace {

// Narayanan et al. 2021, equation 4: about 8 operations per token and parameter.
TEST(PublishedLayouts, AStepsOperationsAreThoseOfThePaper) {
  const GptShape gpt3{.billions = 174.6, .layers = 96, .width = 12288, .heads = 96};
  EXPECT_NEAR(RecomputingOperations(gpt3, 1536) / (8. * 1536 * 2048 * 174.6e9), 1.02, .02);
}

// Walks steps of up to 65,000 passes through layers: some seconds.
TEST(PublishedLayouts, MostStepsArePredictedWithinTheGoal) {
  const PublishedLayoutsReport report = CheckPublishedLayouts().value();
  EXPECT_GE(report.errors.size(), 20u);
  std::vector<double> sizes;
  for (const double error : report.errors) sizes.push_back(std::abs(error));
  EXPECT_LE(Quantile(sizes, .5), .15);
  EXPECT_LT(std::ranges::max(sizes), 1);
  for (const PublishedTraining& training : PublishedTrainings()) {
    EXPECT_THAT(report.text, Has(training.title));
    for (const PublishedLayout& row : training.rows) {
      EXPECT_EQ(row.workers % (row.pp * row.tp), 0) << training.title;
      EXPECT_EQ(row.batch % (row.workers / row.pp / row.tp * row.samples), 0) << training.title;
    }
  }
}

// Half of the devices take nearly twice as long, of which the bubble is a smaller part.
TEST(PublishedLayouts, TheFirstRowSetsTheSpeed) {
  PublishedTraining training = PublishedTrainings()[1];
  training.rows[0].seconds *= 2;
  const std::vector<double> slower = PredictTraining(training).value(),
                            predicted = PredictTraining(PublishedTrainings()[1]).value();
  ASSERT_EQ(slower.size(), 2u);
  EXPECT_NEAR(slower[0] / predicted[0], 2, .05);
  EXPECT_GT(predicted[0], training.rows[0].seconds / 4);
}

}  // namespace
}  // namespace psring
