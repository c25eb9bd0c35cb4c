// Training by every admissible layout of 2, 4 and 8 ranks equals that of one rank with the same samples, up
// to the order of additions. Ranks are threads. A sample is trained, or with PSRING_LAYOUTS=1 all of them.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tests/random_moments.h"
#include "tests/trainer/cluster.h"
#include "trainer/data/sources.h"
#include "trainer/step/plan/training_plan.h"

namespace psring {
namespace {

bool TrainsEveryLayout() { return FromEnvironment("PSRING_LAYOUTS", 0) != 0; }

// Far below every gradient's norm.
constexpr double kTinyNorm = 1e-3;
// Rates: at one, a step leaves so little of the initial weights that the clipped gradient is compared; at the
// other, it moves all weights by .02.
constexpr double kOnlyGradient = 1e6, kRateOfSteps = 20;
int ComparedSteps() { return TrainsEveryLayout() ? 20 : 6; }

// Weights divided among `workers` ranks; dp is what the other axes leave.
struct DividedRun {
  int workers;
  TrainingOptions options;

  int replicas() const { return workers / ReplicaRanks(options); }
  absl::Status Check() const { return CheckLayout(options, FindStrategy(options.strategy).value(), workers); }
};

TrainingOptions ClippedSgd(TrainingOptions options) {
  options.optimizer = "sgd";
  options.clip_norm = kTinyNorm;
  options.batch = 2;
  options.micro_batches = 2;
  return options;
}

constexpr int kWindow = 16;  // so that 8 ranks cut it into 2 chunks each

const DataSplits& TextInWindows() {
  static const DataSplits data = [] {
    std::string text;
    for (int i = 0; i < 300; ++i) absl::StrAppend(&text, "one fish, two fish, red fish ", i % 7, "\n");
    return FromText(text, [](const std::string& path) { return ReadText(path, kWindow); });
  }();
  return data;
}

TrainingOptions GptOfEightBlocks() {
  TrainingOptions options = ClippedSgd(TinyGpt("ring"));
  options.layers = 8;
  options.heads = 8;
  options.width = 32;
  options.context = kWindow;
  options.bucket_mb = .05;  // about one for each block
  options.dropout = .1;
  return options;
}

// Those that training accepts. The programs and the ways to divide a sequence take turns.
std::vector<DividedRun> AdmissibleLayouts() {
  const std::vector<std::string> programs = {"1f1b", "gpipe"}, ways = {"ring", "ulysses", "contiguous"};
  std::vector<DividedRun> layouts;
  size_t turn = 0;
  const auto add = [&](DividedRun layout) {
    TrainingOptions& o = layout.options;
    const size_t own = turn + static_cast<size_t>(o.dp_shard / 2);
    if (o.pp > 1) o.program = programs[own % programs.size()];
    if (o.cp > 1) o.context_parallel = ways[own % ways.size()];
    if (layout.Check().ok()) layouts.push_back(layout);
  };
  for (const int workers : {2, 4, 8}) {
    for (int axes = workers * workers * workers; axes-- > 0;) {
      DividedRun layout{workers, GptOfEightBlocks()};
      TrainingOptions& o = layout.options;
      o.pp = axes / workers / workers + 1;
      o.tp = axes / workers % workers + 1;
      o.cp = axes % workers + 1;
      if (workers % ReplicaRanks(o) != 0) continue;
      ++turn;  // another program for the same strategy
      for (const char* strategy : {"ring", "zero1", "zero2", "fsdp"}) {
        ++turn;
        o.strategy = strategy;
        for (o.dp_shard = 0; o.dp_shard < workers / o.pp / o.tp; o.dp_shard += 2) add(layout);
      }
    }
  }
  return layouts;
}

using Traits = std::set<std::pair<std::string, std::string>>;

// Each two of its axes, strategy and program.
Traits PairsOf(const DividedRun& layout) {
  const TrainingOptions& o = layout.options;
  std::vector<std::string> traits = {o.strategy};
  if (o.pp > 1) traits.insert(traits.end(), {"--pp", o.program});
  if (o.tp > 1) traits.emplace_back("--tp");
  if (o.cp > 1) traits.emplace_back("--cp");
  if (layout.replicas() > 1) traits.emplace_back("dp");
  if (o.dp_shard > 0) traits.emplace_back("--dp_shard");
  Traits pairs;
  for (const std::string& one : traits) {
    for (const std::string& other : traits) {
      if (one < other) pairs.emplace(one, other);
    }
  }
  return pairs;
}

// So few that each pair of traits in `layouts` occurs: again and again the first that has most of the others.
std::vector<DividedRun> SampleOfPairs(const std::vector<DividedRun>& layouts) {
  Traits left;
  for (const DividedRun& layout : layouts) left.merge(PairsOf(layout));
  std::vector<DividedRun> sample;
  while (!left.empty()) {
    const auto missing = [&](const DividedRun& layout) {
      return std::ranges::count_if(PairsOf(layout), [&](const auto& pair) { return left.contains(pair); });
    };
    sample.push_back(*std::ranges::max_element(layouts, std::ranges::less(), missing));
    for (const auto& pair : PairsOf(sample.back())) left.erase(pair);
  }
  return sample;
}

void ExpectWeightsOfSameSamples(DividedRun layout, const DataSplits& data) {
  TrainingOptions& options = layout.options;
  ASSERT_EQ(layout.Check(), absl::OkStatus());
  const int replicas = layout.replicas(), steps = std::min<int>(ComparedSteps(), options.steps);
  for (const auto& [compared, rate, tolerance] :
       {std::tuple{1, kOnlyGradient, 1e-5}, {steps, kRateOfSteps, 1e-4}}) {
    options.steps = compared;
    options.lr = rate;
    SCOPED_TRACE(
        absl::StrCat(layout.workers, " ranks: ", absl::StrJoin(TrainingArguments(layout.options), " ")));
    const std::vector<float>& expected = OneProcess(options, replicas, data).weights;
    const std::vector<RankOutcome> ranks = RunPipelines(options, replicas, data);
    ASSERT_EQ(ranks.size(), static_cast<size_t>(layout.workers));
    for (const RankOutcome& rank : ranks) {
      ASSERT_TRUE(rank.result.ok()) << rank.result.status();
      EXPECT_EQ(rank.steps.size(), static_cast<size_t>(compared));
      EXPECT_EQ(rank.result->weights_hash, ranks[0].result->weights_hash);
      ASSERT_EQ(rank.weights.size(), expected.size());
      EXPECT_LE(RelativeL2(rank.weights, expected), tolerance);
    }
  }
}

TEST(EveryLayout, OfATransformerEqualsOneRankUpToRounding) {
  const std::vector<DividedRun> all = AdmissibleLayouts();
  EXPECT_GE(all.size(), 180u);
  Traits pairs;
  for (const DividedRun& layout : all) pairs.merge(PairsOf(layout));
  // Of 11; not two strategies, two programs, or a ring with --dp_shard.
  EXPECT_EQ(pairs.size(), 11u * 10 / 2 - 6 - 1 - 1);
  for (const DividedRun& layout : TrainsEveryLayout() ? all : SampleOfPairs(all)) {
    ExpectWeightsOfSameSamples(layout, TextInWindows());
  }
}

TEST(EveryLayout, AWrongNormIsFarOutsideTheTolerance) {
  for (const auto& [steps, rate, change] :
       {std::tuple{1, kOnlyGradient, 5e-3}, {ComparedSteps(), kRateOfSteps, 3e-4}}) {
    TrainingOptions options = GptOfEightBlocks();
    options.steps = steps;
    options.lr = rate;
    const std::vector<float> right = OneProcess(options, 2, TextInWindows()).weights;
    options.clip_norm *= steps == 1 ? 1.01 : 1.4;
    EXPECT_GT(RelativeL2(OneProcess(options, 2, TextInWindows()).weights, right), change);
  }
}

DividedRun Listed(const std::string& model, int workers, int pp, const char* strategy, int dp_shard = 0,
                  const char* program = "1f1b") {
  TrainingOptions options = ClippedSgd(model == "resnet18" ? TinyResNet(strategy) : SmallOptions(strategy));
  options.model = model;
  if (model == "mlp") options.width = 32;
  options.evaluate = false;
  options.batch = 8;  // for BatchNorm
  options.pp = pp;
  options.dp_shard = dp_shard;
  options.program = program;
  return {workers, options};
}

TEST(EveryLayout, ListedForOtherModelsEqualsOneRankUpToRounding) {
  const std::vector<DividedRun> listed = {Listed("mlp", 2, 1, "zero1"),
                                          Listed("mlp", 2, 2, "ring", 0, "gpipe"),
                                          Listed("mlp", 4, 1, "zero2", 2),
                                          Listed("mlp", 4, 2, "fsdp"),
                                          Listed("mlp", 8, 1, "fsdp", 4),
                                          Listed("mlp", 8, 2, "zero1", 2, "gpipe"),
                                          Listed("mlp", 8, 2, "zero2"),
                                          Listed("cnn", 2, 1, "fsdp"),
                                          Listed("cnn", 2, 2, "zero2"),
                                          Listed("cnn", 4, 4, "ring", 0, "gpipe"),
                                          Listed("cnn", 4, 2, "zero1"),
                                          Listed("cnn", 8, 2, "fsdp", 2),
                                          Listed("cnn", 8, 4, "zero2", 0, "gpipe"),
                                          Listed("cnn", 8, 1, "ring"),
                                          Listed("resnet18", 2, 1, "zero2"),
                                          Listed("resnet18", 2, 2, "ring"),
                                          Listed("resnet18", 4, 2, "fsdp", 0, "gpipe"),
                                          Listed("resnet18", 4, 4, "zero1"),
                                          Listed("resnet18", 4, 1, "fsdp", 2),
                                          Listed("resnet18", 8, 4, "zero1", 0, "gpipe")};
  for (size_t i = 0; i < listed.size(); i += TrainsEveryLayout() ? 1 : 3) {
    ExpectWeightsOfSameSamples(listed[i],
                               listed[i].options.model == "resnet18" ? SmallPictures() : SmallData());
  }
}

}  // namespace
}  // namespace psring
