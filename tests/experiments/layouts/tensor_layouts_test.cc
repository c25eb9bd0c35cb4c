// What tensor-parallel ranks add up beside computing, and weights that two layers of a rank use.
#include <gtest/gtest.h>

#include <string>

#include "tests/experiments/layouts/layout_questions.h"

namespace psring {
namespace {

// 16 tokens of 64 float32 values over links of 100 MB/s: a sum takes 61 us, the gradients of the weights 62.5
// and 5 us.
TEST(LayoutPrice, GradientsOfWeightsHideTheSumsOfTheirInputs) {
  LayoutQuestion question = OnNodes(EqualLayers(8, 0), 4, 4, 1e6);
  const double half_s = .75 * 4 * 16 * 64 / 100e6;
  for (const char* program : {"single_stage", "zb-h1"}) {
    question.model.overlaps_sums = true;
    const bool divides = program != std::string("single_stage");
    const LayoutCandidate candidate = Candidate(1, divides ? 2 : 1, divides ? 2 : 4, "ring", program, 2);
    for (ModelLayer& layer : question.model.layers) layer.weight_parts = {.125, .01};
    const LayoutPrice hidden = Priced(question, candidate);
    question.model.overlaps_sums = false;
    const LayoutPrice all = Priced(question, candidate);
    EXPECT_EQ(all.sent.inside, hidden.sent.inside);
    if (divides) {
      EXPECT_EQ(all.step_s, hidden.step_s) << "the gradients of weights are computed later";
      continue;
    }
    EXPECT_NEAR(all.step_s - hidden.step_s, 2 * 8 * (2 * half_s + .01 * 2e-3 / 4), 1e-7);
    EXPECT_NEAR(all.step_s * all.exposed - hidden.step_s * hidden.exposed, all.step_s - hidden.step_s, 1e-7);
  }
  // With divided tokens a half is gathered beside the gradient of the input, and the other one, its sum,
  // beside that of the weights.
  question.model.sequence_parallel = true;
  const LayoutCandidate candidate = Candidate(1, 1, 4, "ring", "single_stage", 2);
  const double all = Priced(question, candidate).step_s;
  question.model.overlaps_sums = true;
  EXPECT_NEAR(all - Priced(question, candidate).step_s, 2 * 8 * 2 * (half_s + .01 * 2e-3 / 4), 1e-7);
}

TEST(LayoutPrice, TheLossOfADividedVocabularySendsFourValuesPerToken) {
  LayoutQuestion question = OnNodes(EqualLayers(8, 0), 4, 4, 1e6);
  const LayoutCandidate candidate = Candidate(1, 1, 4, "ring", "single_stage", 2);
  const LayoutPrice before = Priced(question, candidate);
  question.model.layers.back().logits = 100;
  const LayoutPrice price = Priced(question, candidate);
  const double bytes = 2 * (2 * .75) * (4 * 16 * 4);
  EXPECT_NEAR(price.sent.inside - before.sent.inside, bytes, 1e-6);
  EXPECT_NEAR(price.step_s - before.step_s, bytes / 100e6, 1e-8);
}

// The matrix of the vocabulary stays for the step, and the next layer from one micro-batch to the next.
TEST(LayoutPrice, AMatrixOfTwoLayersIsGatheredOncePerStep) {
  LayoutQuestion question = OnNodes(EqualLayers(8, 1e6), 2, 1, 100e6);
  const LayoutCandidate candidate = Candidate(2, 1, 1, "fsdp", "single_stage", 3);
  const double half = 4e6 / 2;
  EXPECT_NEAR(Priced(question, candidate).sent.between, (3 * (3 * 8 - 1) - 2) * half, 1);
  question.model.is_tied = true;
  EXPECT_NEAR(Priced(question, candidate).sent.between, (3 * (3 * 8 - 1) - 2 - 3 - 2) * half, 1);
  const LayoutStages stages = StagesOf(question.model, candidate).value();
  EXPECT_LE(LeastSeconds(question, candidate, stages), Priced(question, candidate).step_s);
}

}  // namespace
}  // namespace psring
