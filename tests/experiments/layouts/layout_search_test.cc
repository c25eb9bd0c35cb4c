#include "experiments/layouts/layout_search.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "common/workloads/devices.h"
#include "common/workloads/workload.h"
#include "experiments/layouts/published_layouts.h"
#include "experiments/simulator/collective.h"
#include "ring_worker/schedules/schedule.h"
#include "tests/experiments/layouts/layout_questions.h"
#include "tests/has.h"

namespace psring {
namespace {

constexpr double kGiB = 1 << 30;

LayoutQuestion LlamaOn(int workers, const char* cluster) {
  const Workload workload = OnDevice(LoadWorkload("llama_8b").value(), "H100").value();
  return {.model = LayoutModelOf(workload).value(),
          .cluster = LoadCluster(cluster).value(),
          .workers = workers,
          .global_batch = workers};
}

TEST(LayoutModel, ATransformersLayersHaveItsParametersAndActivations) {
  const LayoutModel model = LayoutModelOf(LoadWorkload("llama_8b").value()).value();
  ASSERT_EQ(model.layers.size(), 35u) << "embedding, 32 layers, the last normalization, head";
  double parameters = 0;
  for (const ModelLayer& layer : model.layers) parameters += layer.Parameters(1);
  EXPECT_EQ(parameters, 8030261248.);
  EXPECT_EQ(model.width, 4096);
  const ModelLayer& layer = model.layers[1];
  EXPECT_EQ(layer.others, 2 * 4096);
  EXPECT_NEAR(layer.Parameters(8), (layer.Parameters(1) - layer.others) / 8 + layer.others, 1);
  // float32: inputs of two normalizations and of what follows, queries and a quarter of keys and values, the
  // attention's output, and three of the MLP's width.
  EXPECT_DOUBLE_EQ(model.KeptBytes(layer, 2, 1), 4. * 2 * 8192 * 4096 * (4 + 1.5 + 1 + 3 * 3.5));
  EXPECT_DOUBLE_EQ(model.KeptBytes(layer, 1, 8), 4. * 8192 * 4096 * (4 + 13. / 8));
  EXPECT_EQ(model.KeptBytes(model.layers.front(), 1, 1), 0);
  EXPECT_DOUBLE_EQ(model.KeptBytes(model.layers.back(), 1, 1), 4. * 8192 * (128256 + 4096));
  EXPECT_EQ(layer.forward_sums + layer.backward_sums, kAllReducesPerLayer);
  EXPECT_EQ(layer.keys, .5) << "8 heads of keys and of values for 32 of queries";
  // Half of backward without attention, for 1.5 of 13 h^2 parameters, and for two of three of the MLP's.
  EXPECT_THAT(layer.weight_parts,
              testing::Pointwise(testing::DoubleNear(1e-9),
                                 {(1 - layer.attention) / 2 * 1.5 / 13, (1 - layer.attention) / 2 * 7 / 13}));
  EXPECT_NEAR(layer.attention, 8192. / (8192 + 13 * 4096), 1e-9) << "13 h^2 parameters";
  EXPECT_EQ(LayoutModelOf(LoadWorkload("gpt2").value())->layers[1].keys, 2);
}

TEST(LayoutModel, EveryRankHasAllPositions) {
  const ModelLayer& first = LayoutModelOf(LoadWorkload("gpt2").value())->layers.front();
  EXPECT_EQ(first.matrices, 50257. * 768);
  EXPECT_EQ(first.others, 1024. * 768);
}

TEST(LayoutModel, ATiedHeadHasTheLogitsOfTheVocabulary) {
  EXPECT_EQ(LayoutModelOf(LoadWorkload("gpt2").value())->layers.back().logits, 50257);
  EXPECT_EQ(LayoutModelOf(LoadWorkload("gpt_mini").value())->layers.back().logits, 73);
  EXPECT_TRUE(LayoutModelOf(LoadWorkload("gpt2").value())->is_tied);
  EXPECT_FALSE(LayoutModelOf(LoadWorkload("llama_8b").value())->is_tied);
}

TEST(LayoutModel, SixteenBitsHalveWeightsAndActivations) {
  const Workload recorded = LoadWorkload("llama_8b").value();
  const LayoutModel full = LayoutModelOf(recorded).value(),
                    half = LayoutModelOf(OnDevice(recorded, "H100").value()).value();
  EXPECT_FALSE(full.sixteen_bits);
  EXPECT_TRUE(half.sixteen_bits);
  EXPECT_EQ(half.KeptBytes(half.layers[1], 1, 1), full.KeptBytes(full.layers[1], 1, 1) / 2);
  EXPECT_EQ(half.bytes().weight, 2);
}

TEST(LayoutModel, OtherWorkloadsAreRejectedWithThoseThatWork) {
  const absl::Status status = LayoutModelOf(LoadWorkload("resnet50").value()).status();
  EXPECT_THAT(std::string(status.message()), Has("gpt2, gpt_mini, llama_8b"));
}

// A ring of all devices, simulated round by round.
TEST(AxisLinks, HalfAnAllReduceTakesTheTimeOfTheSimulation) {
  for (const int per_node : {1, 4}) {
    for (const int ranks : {8, 16}) {
      Cluster cluster = OnNodes({}, ranks, per_node, 1e9).cluster;
      cluster.add_s_per_byte = 0;
      for (const double bytes : {1e6, 1e9}) {
        const double theory = AxisLinks::Of(cluster, ranks, 1, ranks).HalfSeconds(bytes);
        for (const Collective half : {Collective::kReduceScatter, Collective::kAllGather}) {
          const auto ring = MakeSchedule("ring", half, {.ranks = ranks, .ranks_per_node = per_node}).value();
          const double simulated = SimulateCollective(*ring, cluster, bytes, Pipelining()).value().seconds;
          EXPECT_NEAR(theory / simulated, 1, .05) << per_node << " " << ranks << " " << bytes;
        }
      }
    }
  }
}

TEST(AxisLinks, RingsThatShareANodeShareItsCards) {
  const Cluster cluster = OnNodes({}, 16, 4, 1e9).cluster;
  const AxisLinks neighbours = AxisLinks::Of(cluster, 16, 1, 4), apart = AxisLinks::Of(cluster, 16, 4, 4);
  EXPECT_EQ(neighbours.HalfBytes(4e9).between, 0);
  EXPECT_EQ(neighbours.HalfBytes(4e9).inside, 3e9);
  EXPECT_EQ(apart.HalfBytes(4e9).inside, 0);
  EXPECT_EQ(apart.HalfBytes(4e9).between, 4 * 3e9) << "four rings";
  EXPECT_DOUBLE_EQ(apart.HalfSeconds(4e9), 12);
  EXPECT_DOUBLE_EQ(neighbours.HalfSeconds(4e9), .03);
  EXPECT_EQ(AxisLinks::Of(cluster, 16, 1, 1).HalfSeconds(4e9), 0);
  EXPECT_EQ(apart.MessageBytes(1e9, /*between=*/true).between, 4e9);
  EXPECT_DOUBLE_EQ(apart.MessageSeconds(1e9, /*between=*/true), 4);
  EXPECT_EQ(neighbours.MessageBytes(1e9, /*between=*/false).inside, 1e9);
  EXPECT_DOUBLE_EQ(neighbours.MessageSeconds(1e9, /*between=*/false), .01);
}

TEST(LayoutPrice, WithoutTrafficAPipelineTakesTheTimeOfItsFormula) {
  const LayoutQuestion question = OnNodes(EqualLayers(8, 0), 4, 1, 1e15);
  for (const char* name : {"gpipe", "1f1b", "interleaved:2", "zb-h1"}) {
    const LayoutCandidate candidate = Candidate(1, 4, 1, "ring", name, 8);
    const LayoutPrice price = Priced(question, candidate);
    const NamedProgram program = FindStepProgram(name).value();
    const double bubble = program.row.bubble(4, program.chunks, 8).value();
    EXPECT_NEAR(price.bubble, bubble, .001) << name;
    EXPECT_NEAR(price.step_s, 8 * 6e-3 / (1 - bubble), 1e-4) << name;
    const LayoutStages stages = StagesOf(question.model, candidate).value();
    EXPECT_NEAR(LeastSeconds(question, candidate, stages), price.step_s, 1e-4) << name;
  }
}

// 1 million float32 parameters per layer over links of 100 MB/s: 20 ms for half an all-reduce of 2 replicas.
TEST(LayoutPrice, ShardedReplicasWaitForTheirExchanges) {
  const LayoutQuestion question = OnNodes(EqualLayers(8, 1e6), 2, 1, 100e6);
  const auto step = [&](const char* shard, int micro_batches) {
    return Priced(question, Candidate(2, 1, 1, shard, "single_stage", micro_batches)).step_s;
  };
  // The first gradient is ready after 8 ms of forward and 2 ms of backward; then 8 layers are exchanged.
  EXPECT_NEAR(step("ring", 1), .010 + 8 * .040, 1e-6);
  EXPECT_NEAR(step("zero1", 1), step("ring", 1), 1e-6);
  EXPECT_NEAR(step("zero2", 1), step("ring", 1), 1e-6);
  EXPECT_NEAR(step("ring", 4), .010 + 3 * .024 + 8 * .040, 1e-6);
  EXPECT_GT(step("zero2", 4), .010 + (4 + 1) * 8 * .020 - 1e-6) << "four reduce-scatters";
  // 8 units are gathered in forward and, except for the last, which stays, in backward; 8 are reduced.
  EXPECT_GE(step("fsdp", 1), 23 * .020 - 1e-6);
  EXPECT_GT(step("fsdp", 4), 3.5 * step("fsdp", 1));
}

// Two nodes of four: in nodes nothing takes time, and a card carries the sums of four shards.
TEST(LayoutPrice, CopiesOfTheStateExchangeOnlyTheSumsOfGradients) {
  const LayoutQuestion question = OnNodes(EqualLayers(8, 1e6), 8, 4, 100e6);
  LayoutCandidate candidate = Candidate(8, 1, 1, "fsdp", "single_stage", 4);
  const double all = Priced(question, candidate).sent.between;
  EXPECT_EQ(candidate.layout(), "dp8 fsdp");
  candidate.dp_shard = 4;
  EXPECT_EQ(candidate.layout(), "dp8 fsdp of 4");
  // 8 layers of 4 MB; 2 (C-1)/C of 1/S from each of 4 devices.
  EXPECT_NEAR(Priced(question, candidate).sent.between, 32e6, 1);
  EXPECT_GT(all, 5 * 32e6);
  const LayoutStages stages = StagesOf(question.model, candidate).value();
  EXPECT_DOUBLE_EQ(MemoryOf(question.model, candidate, stages).state.total(), 16. / 4 * 8e6 + 4 * 4e6);
}

TEST(LayoutSearch, ACopyOfTheStateOnEachNodeIsTried) {
  const auto hybrids = [](int per_node) {
    std::set<std::string> names;
    for (const LayoutCandidate& candidate : LayoutCandidates(OnNodes(EqualLayers(8, 1e5), 8, per_node, 1e9)))
      if (candidate.dp_shard > 0) names.insert(candidate.layout());
    return names;
  };
  EXPECT_EQ(hybrids(4), (std::set<std::string>{"dp8 zero2 of 4", "dp8 fsdp of 4", "dp4xtp2 zero2 of 2",
                                               "dp4xtp2 fsdp of 2"}));
  EXPECT_TRUE(hybrids(1).empty());
  EXPECT_TRUE(hybrids(8).empty()) << "one node";
}

TEST(LayoutPrice, TensorParallelRanksAddInEveryLayer) {
  const LayoutQuestion question = OnNodes(EqualLayers(8, 0), 4, 4, 1e6);
  const LayoutPrice price = Priced(question, Candidate(1, 1, 4, "ring", "single_stage", 2));
  // 16 tokens of 64 float32 values; each layer and micro-batch has 4 all-reduces, over links of 100 MB/s.
  const double bytes = 2 * .75 * (2 * 8 * kAllReducesPerLayer) * (4 * 16 * 64);
  EXPECT_NEAR(price.sent.inside, bytes, 1e-6);
  EXPECT_NEAR(price.step_s, 2 * 8 * 3e-3 / 4 + bytes / 100e6, 1e-6);
  EXPECT_EQ(price.bubble, 0);
  EXPECT_NEAR(price.exposed, bytes / 100e6 / price.step_s, 1e-6);
}

TEST(LayoutPrice, NoStepIsShorterThanItsBound) {
  LayoutQuestion question = OnNodes(WithAttention(8), 8, 4, 50e6);
  for (ModelLayer& layer : question.model.layers) layer.matrices = 1e5;
  question.model.tokens = 4 * kMinDividedTokens;
  question.cluster.latency_s = 20e-6;
  int candidates = 0;
  for (const LayoutCandidate& candidate : LayoutCandidates(question)) {
    const LayoutStages stages = StagesOf(question.model, candidate).value();
    const double least = LeastSeconds(question, candidate, stages);
    EXPECT_LE(least, (1 + 1e-5) * Priced(question, candidate).step_s)
        << candidate.layout() << " " << candidate.program.name() << " " << candidate.micro_batches;
    ++candidates;
  }
  EXPECT_GT(candidates, 100);
}

TEST(LayoutMemory, StagesKeepTheMicroBatchesOfTheirProgram) {
  const LayoutModel model = EqualLayers(8, 1e6);
  const double kept = model.KeptBytes(model.layers[0], 1, 1), boundary = 2 * model.BoundaryBytes(1);
  const auto activations = [&](const char* program, int pp, int micro_batches) {
    const LayoutCandidate candidate = Candidate(1, pp, 1, "ring", program, micro_batches);
    return MemoryOf(model, candidate, StagesOf(model, candidate).value()).activations;
  };
  EXPECT_DOUBLE_EQ(activations("single_stage", 1, 8), 8 * kept);
  EXPECT_DOUBLE_EQ(activations("1f1b", 4, 8), 4 * 2 * kept + boundary);
  EXPECT_DOUBLE_EQ(activations("1f1b", 4, 2), 2 * 2 * kept + boundary);
  EXPECT_DOUBLE_EQ(activations("gpipe", 4, 8), 8 * 2 * kept + boundary);
  EXPECT_DOUBLE_EQ(activations("zb-h1", 4, 8), 4 * 2 * kept + boundary);
  // 2 (p-1) + (V-1) p forwards ahead, and one more, of one layer each.
  EXPECT_DOUBLE_EQ(activations("interleaved:2", 4, 8), 11 * kept + boundary);
}

TEST(LayoutMemory, TheStateIsOfTheRanksStagesAndParts) {
  const LayoutModel model = EqualLayers(8, 1e6);
  const auto state = [&](int dp, int pp, int tp, const char* shard) {
    const LayoutCandidate candidate = Candidate(dp, pp, tp, shard, pp > 1 ? "1f1b" : "single_stage", 4);
    return MemoryOf(model, candidate, StagesOf(model, candidate).value()).state.total();
  };
  EXPECT_DOUBLE_EQ(state(4, 1, 1, "ring"), 16 * 8e6);
  EXPECT_DOUBLE_EQ(state(4, 2, 2, "ring"), 16 * 2e6);
  EXPECT_DOUBLE_EQ(state(4, 1, 1, "zero1"), (8 + 8. / 4) * 8e6);
  EXPECT_DOUBLE_EQ(state(4, 1, 1, "zero2"), (4 + 12. / 4) * 8e6 + 2 * 4e6) << "and two units' gradients";
  EXPECT_DOUBLE_EQ(state(4, 1, 1, "fsdp"), 16. / 4 * 8e6 + 4 * 4e6) << "and two units' gradients and weights";
}

TEST(LayoutMemory, DividedTokensShrinkActivationsAndMessages) {
  LayoutModel model = EqualLayers(8, 1e6);
  const LayoutCandidate candidate = Candidate(1, 2, 4, "ring", "1f1b", 4);
  const LayoutStages stages = StagesOf(model, candidate).value();
  const double boundary = model.BoundaryBytes(1), whole = model.KeptBytes(model.layers[0], 1, 1);
  const double sums = MemoryOf(model, candidate, stages).activations;
  model.sequence_parallel = true;
  EXPECT_DOUBLE_EQ(model.KeptBytes(model.layers[0], 1, 4), whole / 4);
  EXPECT_DOUBLE_EQ(MemoryOf(model, candidate, stages).activations,
                   2 * 4 * whole / 4 + 2 * boundary / 4 + 3 * boundary)
      << "two micro-batches of four layers, two messages, three pieces";
  EXPECT_LT(MemoryOf(model, candidate, stages).activations, .7 * sums);
  model.layers.back().logits = 100;
  EXPECT_DOUBLE_EQ(model.KeptBytes(model.layers.back(), 1, 4), (whole + 4 * 16. * 100 + boundary) / 4);
}

TEST(LayoutPrice, DividedTokensAreGatheredOnceMoreInBackward) {
  LayoutQuestion question = OnNodes(EqualLayers(8, 1e5), 4, 4, 1e6);
  const LayoutCandidate candidate = Candidate(1, 1, 4, "ring", "single_stage", 2);
  const LayoutPrice sums = Priced(question, candidate);
  question.model.sequence_parallel = true;
  const LayoutPrice parts = Priced(question, candidate);
  EXPECT_NEAR(parts.sent.inside, sums.sent.inside * 10 / 8, 1e-6 * sums.sent.inside);
  EXPECT_GT(parts.step_s, sums.step_s);
  // Messages between stages are those of own tokens.
  const LayoutCandidate cut = Candidate(1, 2, 2, "ring", "1f1b", 4);
  question.cluster.gpus_per_node = 2;
  const double between = Priced(question, cut).sent.between;
  question.model.sequence_parallel = false;
  EXPECT_NEAR(between, Priced(question, cut).sent.between / 2, 1e-6 * between);
}

TEST(LayoutSearch, DividedTokensNeedRanksThatDivideThem) {
  LayoutQuestion question = OnNodes(EqualLayers(8, 1e5), 8, 4, 1e6);
  question.model.sequence_parallel = true;
  question.model.tokens = 18;
  std::set<int> ranks;
  for (const LayoutCandidate& candidate : LayoutCandidates(question)) ranks.insert(candidate.tp);
  EXPECT_EQ(ranks, (std::set<int>{1, 2}));
}

TEST(LayoutSearch, ItFindsWhatTryingAllFinds) {
  LayoutQuestion question = OnNodes(EqualLayers(8, 2e5), 8, 4, 200e6);
  question.cluster.latency_s = 20e-6;
  const double memory = 14e6;
  double fastest = INFINITY;
  int64_t fitting = 0;
  const std::vector<LayoutCandidate> all = LayoutCandidates(question);
  for (const LayoutCandidate& candidate : all) {
    const LayoutStages stages = StagesOf(question.model, candidate).value();
    if (MemoryOf(question.model, candidate, stages).total() > memory) continue;
    ++fitting;
    fastest = std::min(fastest, Priced(question, candidate).step_s);
  }
  const LayoutAnswer answer = FindLayouts(question, memory, 5).value();
  EXPECT_EQ(answer.candidates, all.size());
  EXPECT_EQ(answer.fitting, fitting);
  EXPECT_DOUBLE_EQ(answer.best.front().price.step_s, fastest);
  std::set<std::string> names;
  for (const FoundLayout& found : answer.best) {
    EXPECT_LE(found.memory.total(), memory);
    EXPECT_TRUE(names.insert(found.candidate.layout()).second) << found.candidate.layout();
  }
  EXPECT_TRUE(
      std::ranges::is_sorted(answer.best, {}, [](const FoundLayout& found) { return found.price.step_s; }));
}

TEST(LayoutSearch, ThoseThatGatherWeightsHaveAQuestionOfTheirOwn) {
  const LayoutQuestion question = OnNodes(EqualLayers(8, 2e5), 8, 4, 200e6);
  const auto best_with = [&](double link_factor) {
    LayoutQuestion gathering = question;
    gathering.cluster.link_bytes_per_s *= link_factor;
    gathering.cluster.intra_bytes_per_s *= link_factor;
    const LayoutAnswer answer = FindLayouts(question, 1e15, 5, absl::OkStatus, &gathering).value();
    for (const FoundLayout& found : answer.best) {
      EXPECT_DOUBLE_EQ(found.price.step_s,
                       Priced(found.candidate.gathers() ? gathering : question, found.candidate).step_s);
    }
    return answer.best;
  };
  EXPECT_TRUE(best_with(1000).front().candidate.gathers());
  const std::vector<FoundLayout> others = best_with(.001);
  EXPECT_TRUE(std::ranges::none_of(others, &LayoutCandidate::gathers, &FoundLayout::candidate));
}

TEST(LayoutSearch, AThousandDevicesAreSearchedWithoutTryingAll) {
  const LayoutQuestion question = LlamaOn(1024, "dgx-h100");
  const LayoutAnswer answer = FindLayouts(question, 80 * kGiB, 5).value();
  EXPECT_EQ(answer.best.size(), 5);
  EXPECT_LT(answer.walked, answer.candidates / 4);
  for (const FoundLayout& found : answer.best) {
    const LayoutCandidate& of = found.candidate;
    EXPECT_EQ(of.dp * of.pp * of.tp, 1024);
    EXPECT_EQ(int64_t{of.dp} * of.micro_batches * of.samples, 1024);
    EXPECT_EQ(8 % of.tp, 0);
  }
}

TEST(LayoutSearch, ASlowNetworkNamesMoreParallelismInsideTheNodes) {
  LayoutQuestion question = LlamaOn(64, "dgx-h100");
  const double fast = FindLayouts(question, 80 * kGiB, 1)->best.front().price.sent.between;
  question.cluster.link_bytes_per_s /= 64;
  const double slow = FindLayouts(question, 80 * kGiB, 1)->best.front().price.sent.between;
  EXPECT_LT(slow, fast);
}

TEST(LayoutSearch, WhatDoesNotFitIsRejectedWithTheSmallest) {
  const absl::Status status = FindLayouts(LlamaOn(2, "dgx-h100"), kGiB, 5).status();
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  const std::string message(status.message());
  EXPECT_EQ(message.find('\n'), std::string::npos);
  EXPECT_THAT(message, Has("no layout of 2 devices fits llama_8b into 1.0 GiB: the smallest, "));
  EXPECT_THAT(message, Has("weights "));
}

TEST(LayoutSearch, ItEndsWithTheErrorOfACheck) {
  int checks = 0;
  const auto check = [&] { return ++checks < 3 ? absl::OkStatus() : absl::CancelledError("interrupted"); };
  EXPECT_TRUE(absl::IsCancelled(FindLayouts(LlamaOn(2, "dgx-h100"), 80 * kGiB, 5, check).status()));
  EXPECT_EQ(checks, 3);
}

TEST(LayoutSearch, MoreMemoryThatWouldHelpIsFound) {
  const LayoutQuestion question = LlamaOn(8, "dgx-h100");
  const LayoutAnswer with_all = FindLayouts(question, 1e15, 1).value();
  EXPECT_FALSE(with_all.with_more_memory.has_value());
  const double least = with_all.best.front().memory.total();
  const LayoutAnswer with_less = FindLayouts(question, .9 * least, 1).value();
  ASSERT_TRUE(with_less.with_more_memory.has_value());
  EXPECT_DOUBLE_EQ(with_less.with_more_memory->price.step_s, with_all.best.front().price.step_s);
}

// Of 16 samples of 24 ms, 8 replicas compute 2 each, and 8 stages all in 23 slots of 3 ms.
TEST(LayoutSearch, SlowerLinksMakeAPipelineFastest) {
  const LayoutQuestion question = OnNodes(EqualLayers(8, 1e6), 8, 1, 2e9);
  std::vector<FoundLayout> best = {{.candidate = Candidate(8, 1, 1, "ring", "single_stage", 1)},
                                   {.candidate = Candidate(1, 8, 1, "ring", "1f1b", 16)}};
  best[0].candidate.samples = 2;
  EXPECT_LT(Priced(question, best[0].candidate).step_s, Priced(question, best[1].candidate).step_s);
  const std::optional<OtherBest> other = OtherBestWithLinks(question, best, true).value();
  ASSERT_TRUE(other.has_value());
  EXPECT_EQ(other->factor, .5);
  EXPECT_EQ(other->index, 1u);
  best.pop_back();
  EXPECT_FALSE(OtherBestWithLinks(question, best, true)->has_value());
}

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
