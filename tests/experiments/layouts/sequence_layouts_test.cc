#include <gtest/gtest.h>

#include <set>
#include <string>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "experiments/costs/sequence_costs.h"
#include "tests/experiments/layouts/layout_questions.h"

namespace psring {
namespace {

LayoutCandidate OfSequences(int ranks, const char* kind) {
  LayoutCandidate candidate = Candidate(1, 1, 1, "ring", "single_stage", 2);
  candidate.cp = ranks;
  candidate.context_parallel = kind;
  return candidate;
}

TEST(LayoutPrice, RanksOfASequenceDivideComputingAndSendWhatTheTheorySays) {
  const LayoutQuestion question = OnNodes(WithAttention(8), 4, 1, 1e12);
  const double activation = 4. * 16 * 64, computing = 2 * 8 * 3e-3 / 4;
  for (const auto& [kind, values, share] : {std::tuple("ring", RingValues(4), 1.),
                                            {"contiguous", RingValues(4), ContiguousShare(4)},
                                            {"ulysses", UlyssesValues(4), 1.}}) {
    const LayoutPrice price = Priced(question, OfSequences(4, kind));
    EXPECT_NEAR(price.sent.between, 2 * 8 * values * activation, 1e-6) << kind;
    EXPECT_EQ(price.sent.inside, 0) << kind;
    EXPECT_NEAR(price.step_s, computing * (.5 + .5 / share), 1e-6) << kind;
    EXPECT_EQ(price.bubble, 0) << kind;
  }
}

// Forward has 4 steps of a layer's attention of 1/32 ms, backward of 1/16 ms.
TEST(LayoutPrice, ComputingHidesTheRingsMessagesAndNotThoseOfUlysses) {
  LayoutQuestion question = OnNodes(WithAttention(8), 4, 1, 1e9);
  const double computing = 2 * 8 * 3e-3 / 4, layers = 2 * 8;
  const auto wait = [&](const char* kind, double hop_s) {  // of a rank's keys and values
    question.cluster.link_bytes_per_s = 2. * 4 * 16 / 4 * 64 / hop_s;
    return (Priced(question, OfSequences(4, kind)).step_s - computing) / layers;
  };
  EXPECT_NEAR(wait("ring", 1e-3 / 32), 1e-3 / 32, 1e-8) << "only the last gradients are not hidden";
  // Forward: 3 hops; backward: of keys, of both, of both less one, of gradients, and the last.
  EXPECT_NEAR(wait("ring", 1e-3), 3 * (1 - 1 / 32.) * 1e-3 + (6 - 4 / 16.) * 1e-3, 1e-8);
  // 4 values per token instead of the 2 of a hop, 3/4 of them, in both passes.
  EXPECT_NEAR(wait("ulysses", 1e-3 / 32), 2 * 2 * .75 * 1e-3 / 32, 1e-8);
  // The blocks after the first take twice as long, and all of this is waiting for the rank with the most.
  EXPECT_NEAR(wait("contiguous", 1e-3 / 32), .75e-3 * .5 * (1 / ContiguousShare(4) - 1) + 1e-3 / 32, 1e-8);
}

TEST(LayoutPrice, RanksOfASequenceAddUpAndShardAsReplicasDo) {
  LayoutModel model = WithAttention(8);
  for (ModelLayer& layer : model.layers) layer.matrices = 1e6;
  const LayoutQuestion question = OnNodes(model, 4, 1, 1e9);
  LayoutCandidate candidate = OfSequences(4, "ring");
  const double attention = 2 * 8 * RingValues(4) * 4 * 16 * 64;
  EXPECT_NEAR(Priced(question, candidate).sent.between, attention + 2 * .75 * 8 * 4e6, 1);
  candidate.strategy = &ShardingStrategy("fsdp");
  EXPECT_TRUE(candidate.gathers());
  EXPECT_EQ(candidate.layout(), "cp4 fsdp");
  candidate.dp = 2;
  candidate.context_parallel = "ulysses";
  EXPECT_EQ(candidate.layout(), "dp2xcp4 ulysses fsdp");
  const LayoutStages stages = StagesOf(model, candidate).value();
  EXPECT_DOUBLE_EQ(MemoryOf(model, candidate, stages).state.total(), 16. / 8 * 8e6 + 4 * 4e6);
}

TEST(LayoutMemory, RanksOfASequenceDivideActivations) {
  const LayoutModel model = WithAttention(8);
  const auto activations = [&](int ranks, const char* kind, int pp) {
    LayoutCandidate candidate = OfSequences(ranks, kind);
    candidate.pp = pp;
    if (pp > 1) candidate.program = FindStepProgram("1f1b").value();
    return MemoryOf(model, candidate, StagesOf(model, candidate).value()).activations;
  };
  const double one = activations(1, "ring", 1), cut = activations(1, "ring", 2),
               own = model.BoundaryBytes(1) / 4;
  EXPECT_DOUBLE_EQ(activations(4, "ring", 1), one / 4 + 10 * own) << "and five pieces of keys and values";
  EXPECT_DOUBLE_EQ(activations(2, "ring", 1), one / 2 + 8 * 2 * own);
  EXPECT_DOUBLE_EQ(activations(4, "ulysses", 1), one / 4 + 3 * own) << "and queries, keys and values once";
  EXPECT_DOUBLE_EQ(activations(4, "ring", 2), cut / 4 + 10 * own);
}

TEST(LayoutSearch, LongSequencesAreDividedAndOthersIfNamed) {
  LayoutQuestion question = OnNodes(WithAttention(8), 8, 4, 1e9);
  const auto kinds = [&] {
    std::set<std::string> found;
    for (const LayoutCandidate& candidate : LayoutCandidates(question)) {
      if (candidate.cp == 1) continue;
      found.insert(absl::StrCat("tp", candidate.tp, "xcp", candidate.cp, " ", candidate.context_parallel));
    }
    return found;
  };
  EXPECT_TRUE(kinds().empty()) << "16 tokens";
  question.model.tokens = 4 * kMinDividedTokens;
  question.model.heads = 2;
  EXPECT_EQ(kinds(), (std::set<std::string>{"tp1xcp2 ring", "tp1xcp2 ulysses", "tp1xcp4 ring", "tp2xcp2 ring",
                                            "tp2xcp4 ring"}));
  question.choice.context_parallel = "contiguous";
  EXPECT_TRUE(kinds().contains("tp2xcp4 contiguous"));
  EXPECT_FALSE(kinds().contains("tp1xcp2 ring"));
  question.choice = {.layouts = {{.dp = 4, .cp = 2}}, .strategies = {"zero1"}, .micro_batches = 4};
  question.model.tokens = 16;
  for (const LayoutCandidate& candidate : LayoutCandidates(question)) {
    EXPECT_EQ(Layout({.dp = candidate.dp, .pp = candidate.pp, .tp = candidate.tp, .cp = candidate.cp}).name(),
              "dp4xcp2");
    EXPECT_EQ(candidate.strategy->name, "zero1");
    EXPECT_EQ(candidate.micro_batches, 4);
    EXPECT_EQ(candidate.samples, 1);
  }
  EXPECT_EQ(LayoutCandidates(question).size(), 2u) << "ring and ulysses";
  question.model.tokens = 18;
  ASSERT_EQ(LayoutCandidates(question).size(), 1u) << "the ring has two chunks per rank";
  EXPECT_EQ(LayoutCandidates(question)[0].context_parallel, "ulysses");
}

TEST(AxisLinks, AnAllToAllSendsToEachOfTheOthers) {
  const Cluster cluster = OnNodes({}, 16, 4, 1e9).cluster;
  const AxisLinks inside = AxisLinks::Of(cluster, 16, 1, 4), apart = AxisLinks::Of(cluster, 16, 4, 4),
                  both = AxisLinks::Of(cluster, 16, 1, 8);
  EXPECT_EQ(inside.AllToAllBytes(4e9).inside, 3e9);
  EXPECT_EQ(inside.AllToAllBytes(4e9).between, 0);
  EXPECT_DOUBLE_EQ(inside.AllToAllSeconds(4e9), .03);
  EXPECT_EQ(apart.AllToAllBytes(4e9).between, 4 * 3e9) << "four groups share the card";
  EXPECT_DOUBLE_EQ(apart.AllToAllSeconds(4e9), 12);
  EXPECT_EQ(both.AllToAllBytes(8e9).inside, 3e9);
  EXPECT_EQ(both.AllToAllBytes(8e9).between, 4 * 4e9) << "four devices of a node, four on the other";
}

}  // namespace
}  // namespace psring
