#include "experiments/simulator/pipeline.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "experiments/verbs/predict/predict.h"
#include "experiments/verbs/predict/report.h"
#include "tests/experiments/test_catalog.h"
#include "tests/has.h"
#include "tests/test_folder.h"

namespace psring {
namespace {

using testing::ElementsAre;

// A step of 8 ms forward and 16 ms backward with a batch of 10, in equal blocks.
std::string EqualBlocks(int blocks, int64_t bytes) {
  std::string text = "# batch: 10\n# device: none\n# forward_ms: 8\nname,bytes,ready_ms\n";
  for (int i = 1; i <= blocks; ++i) {
    absl::StrAppend(&text, "block.", blocks - i, ".weight,", bytes, ",", 16. * i / blocks, "\n");
  }
  return text;
}

// What predict --pp simulates for the most workers, from its flags on.
PipelinePrediction Priced(const RawPredictFlags& raw, const StrategyRow& strategy = kRing) {
  const PredictFlags flags = UnderstandPredict(raw, {}).value();
  PipelineCase point = *flags.pipeline;
  point.strategy = strategy;
  point.workers = flags.workers.back();
  return PredictPipeline(flags.workload, flags.options, point, flags.cluster).value();
}

// Links of 125 MB/s without latency, all of which is usable.
RawPredictFlags OnGigabit(const std::string& workload, int stages, const std::string& workers) {
  RawPredictFlags raw{.workload = workload, .workers = workers, .link = "1gbit", .latency = "0us"};
  raw.fraction = 1;
  raw.pp = stages;
  raw.boundary = "1";
  return raw;
}

TEST(Pipeline, WithoutCommunicationTheBubbleIsThatOfTheFormula) {
  const TestFolder folder;
  const std::string workload = folder.Put("equal.csv", EqualBlocks(16, 4));
  for (const char* program : {"gpipe", "1f1b", "interleaved:2", "zb-h1", "pipedream", "pipedream-2bw"}) {
    for (const int p : {2, 4, 8}) {
      for (const int m : {p, 3 * p, 64}) {
        RawPredictFlags raw = OnGigabit(workload, p, absl::StrCat(p));
        raw.link = "100tbit";
        raw.program = program;
        raw.micro_batches = m;
        const NamedProgram named = FindStepProgram(program).value();
        // The formula of zb-h1 is for backward passes that take twice as long as forward, as here.
        const double bubble = named.row.bubble(p, named.chunks, m).value();
        const PipelinePrediction priced = Priced(raw);
        EXPECT_NEAR(priced.bubble, bubble, 1e-4) << program << ", " << p << " stages, " << m;
        EXPECT_NEAR(priced.prediction.step, 0.024 * m / p / (1 - bubble), 1e-5) << program;
        EXPECT_NEAR(priced.prediction.exposed, 0, 1e-6);
        EXPECT_NEAR(priced.prediction.samples_per_s, 10 * m / priced.prediction.step, 1e-6);
      }
    }
  }
}

TEST(Pipeline, WithoutAFlushDevicesKeepVersionsAndReduceEveryUpdate) {
  const TestFolder folder;
  RawPredictFlags raw = OnGigabit(folder.Put("equal.csv", EqualBlocks(16, 1000)), 4, "8");
  raw.micro_batches = 16;
  const PipelinePrediction with_flush = Priced(raw);
  EXPECT_EQ(with_flush.versions, 1);
  EXPECT_EQ(with_flush.older_versions_bytes, 0);
  // Messages of 10 bytes over three boundaries, in both directions.
  const double messages = 2 * 3 * 16 * 10 / 4., reduced = with_flush.prediction.tx_bytes - messages;
  EXPECT_GT(reduced, 0);
  for (const auto& [program, versions, updates] : {std::tuple("pipedream", 4, 16), {"pipedream-2bw", 2, 4}}) {
    SCOPED_TRACE(program);
    raw.program = program;
    const PipelinePrediction priced = Priced(raw);
    EXPECT_EQ(priced.versions, versions);
    EXPECT_DOUBLE_EQ(priced.older_versions_bytes, (versions - 1) * 4 * 1000.);
    EXPECT_NEAR(priced.prediction.tx_bytes, messages + updates * reduced, 1e-6 * updates * reduced);
    EXPECT_GT(priced.prediction.exposed, with_flush.prediction.exposed);
  }
}

TEST(Pipeline, SlowLinksExposeMessagesBesideTheBubble) {
  const TestFolder folder;
  RawPredictFlags raw = OnGigabit(folder.Put("equal.csv", EqualBlocks(16, 4)), 2, "2");
  raw.boundary = "125000";  // of 10 samples: 10 ms
  raw.micro_batches = 2;
  const PipelinePrediction priced = Priced(raw);
  // Stages compute 4 ms forward and 8 ms backward.
  // Rank 0: 0F0 0-4, 0F1 4-8, 0B0 36-44, 0B1 50-58, with messages from 4 and from 18, when 1F0 has ended.
  // Rank 1: 1F0 14-18, 1B0 18-26, 1F1 28-32, 1B1 32-40, with messages from 26 and from 40.
  EXPECT_NEAR(priced.prediction.step, 0.058, 1e-6);
  EXPECT_NEAR(priced.prediction.compute, 0.024, 1e-6);
  EXPECT_NEAR(priced.prediction.exposed, 0.001 * (10 + 6 + 10 + 2) / 2, 1e-6);
  EXPECT_NEAR(priced.bubble, (18 + 4 + 18) / 2. / 58, 1e-4);
  EXPECT_EQ(priced.in_flight, 2);
  EXPECT_DOUBLE_EQ(priced.prediction.tx_bytes, 2 * 1.25e6);
}

TEST(Pipeline, MessagesOnOneStreamFollowOneAnother) {
  const TestFolder folder;
  RawPredictFlags raw = OnGigabit(folder.Put("equal.csv", EqualBlocks(16, 4)), 4, "4");
  raw.latency = "10ms";
  raw.micro_batches = 16;
  const double overlapping = Priced(raw).prediction.step;
  raw.copy_streams = 1;
  const double one_by_one = Priced(raw).prediction.step;
  EXPECT_GE(one_by_one, 4 * 16 * 0.01 - 1e-6) << "a device in the middle has four messages per micro-batch";
  EXPECT_LT(overlapping, one_by_one);
}

TEST(Pipeline, ReplicasAddTheirGradients) {
  const TestFolder folder;
  const std::string workload = folder.Put("large.csv", EqualBlocks(2, 12'500'000));
  RawPredictFlags raw = OnGigabit(workload, 2, "2");
  raw.micro_batches = 2;
  const PipelinePrediction one = Priced(raw);
  EXPECT_NEAR(one.prediction.step, 0.036, 1e-6);
  raw.workers = "4";
  const PipelinePrediction two = Priced(raw);
  // Each stage's gradients take 100 ms on two replicas; stage 0's are complete at the end of its step.
  EXPECT_NEAR(two.prediction.step, 0.136, 1e-3);
  EXPECT_NEAR(two.prediction.exposed, 0.1, 1e-3);
  EXPECT_NEAR(two.prediction.tx_bytes, 12.5e6, 100);
  EXPECT_NEAR(two.prediction.samples_per_s, 2 * 20 / two.prediction.step, 1e-6);
  raw.wire = "bfloat16";
  EXPECT_NEAR(Priced(raw).prediction.step, 0.086, 1e-3);
}

TEST(Pipeline, ShardsAreExchangedForEachMicroBatch) {
  const TestFolder folder;
  RawPredictFlags raw = OnGigabit(folder.Put("large.csv", EqualBlocks(8, 1'250'000)), 2, "4");
  raw.micro_batches = 4;
  const auto priced = [&](const char* strategy) {
    return Priced(raw, FindStrategy(strategy).value()).prediction;
  };
  const Prediction ring = priced("ring"), zero1 = priced("zero1"), zero2 = priced("zero2"),
                   fsdp = priced("fsdp");
  EXPECT_NEAR(ring.tx_bytes, 5e6, 100) << "half of the model's gradients, two ranks";
  EXPECT_NEAR(zero1.tx_bytes, ring.tx_bytes, 1);
  EXPECT_NEAR(zero2.tx_bytes, (4 + 1) / 2. * ring.tx_bytes, 100);
  // The four blocks of the first stage are gathered 27 times: of eight passes, those from which the weights
  // of one block stay gather three. Of the last stage only the first pass gathers all four.
  EXPECT_NEAR(fsdp.tx_bytes, (2 * 16 + 27 + 25) / 16. * ring.tx_bytes, 1000);
  EXPECT_NEAR(zero1.busy, ring.busy, .1 * ring.busy) << "the all-gather is part of an update";
  EXPECT_NEAR(zero2.busy, (4 + 1) / 2. * ring.busy, .1 * zero2.busy);
  EXPECT_GT(zero2.step, zero1.step);
  EXPECT_GT(fsdp.step, zero2.step);
  // A half of an all-reduce takes 5 ms per block.
  EXPECT_GE(fsdp.step, (16 + 27) * .005 - 1e-3);
  raw.workers = "2";
  EXPECT_EQ(priced("fsdp").step, priced("ring").step) << "one replica has no shards";
}

TEST(DeviceTime, OfTwoWaitsAtATimeIsCountedOnce) {
  const Walk walk{.nodes = {{{{StepKind::kReceiveActivation, 1, -1, 0}, 1, {}},
                             {{StepKind::kUnshard, 1, 0}, 2, {}},
                             {{StepKind::kForward, 1, 0, 0}, 0, {0, 1}},
                             {{StepKind::kReduceGradient, 1, 0}, 3, {2}}}},
                  .times = {{{3, 10}, {8, 12}, {12, 16}, {16, 19}}},
                  .end_ns = 20};
  const DeviceTime time = DeviceTimeOf(walk, 0, kRing);
  EXPECT_EQ(time.computing, 4);
  EXPECT_EQ(time.exposed, (12 - 3) + (19 - 16));
  EXPECT_EQ(time.idle, 20 - 4 - 12);
  EXPECT_EQ(time.moving, 12);
}

TEST(Pipeline, ThousandsOfRanksCostOneReplica) {
  const TestFolder folder;
  const std::string workload = folder.Put("equal.csv", EqualBlocks(16, 4));
  EXPECT_NEAR(Priced(OnGigabit(workload, 8, "4096")).prediction.step,
              Priced(OnGigabit(workload, 8, "8")).prediction.step, 1e-5);
}

TEST(Pipeline, BadFlagsAreOneLineThatNamesWhatWorks) {
  const auto says = [](const RawPredictFlags& raw, const char* what) {
    const absl::Status status = UnderstandPredict(raw, {}).status();
    EXPECT_THAT(status.message(), Has(what));
    EXPECT_THAT(status.message(), Lacks("\n"));
  };
  const std::string gpt = "gpt_mini", link = "1gbit";
  says({.workers = "6", .link = link, .pp = 4, .boundary = "784K"},
       "--pp 4 does not divide 6 workers; use a multiple, such as --workers 8");
  says({.workload = gpt, .link = link, .pp = 16},
       "16 stages, but workload gpt_mini has only 8 blocks of layers; use at most 8 stages");
  says({.workload = gpt, .link = link, .pp = 4, .program = "interleaved:4"}, "into 16 stages");
  says({.workload = gpt, .link = link, .pp = 4, .program = "gpip"}, "--program: ");
  says({.workload = gpt, .link = link, .pp = 4, .program = "single_stage"}, "does not cut the model");
  says({.workload = gpt, .strategies = "zero1", .link = link, .pp = 4, .program = "pipedream"},
       "--program pipedream updates each stage on its own and does not support --strategy zero1; use ");
  says({.workload = gpt, .link = link, .wire = "bfloat16", .pp = 4, .program = "pipedream-2bw"},
       "does not support --wire; use ");
  says({.link = link, .pp = 4}, "--boundary 784K, or use one of bert_base, gpt2, gpt_mini, llama_8b");
  says({.workload = gpt, .link = link, .pp = 4, .boundary = "some"}, "--boundary: 'some' is not a size");
  says({.workload = gpt, .link = link, .pp = 4, .cuts = "3,2,5"},
       "--cuts: 4 stages need 3 ascending numbers from 1 to 7, such as ");
  says({.workload = gpt, .link = link, .pp = 4, .cuts = "1,2,8"}, "--cuts");
  says({.workload = gpt, .link = link, .straggler = "0:2", .pp = 4},
       "--pp and --straggler exclude each other");
  says({.link = link, .program = "gpipe"}, "--program needs --pp");
  says({.link = link, .micro_batches = 8}, "--micro_batches needs --pp");
  says({.link = link, .copy_streams = 1}, "--copy_streams needs --pp");
  says({.workload = "gpt2", .workers = "24", .link = link, .intra = "10gbit", .gpus_per_node = 8, .pp = 8},
       "the 3 devices of a stage do not fill nodes of 8 GPUs; use --workers 32");
}

TEST(Pipeline, DefaultsAreOneReplicaAndTheWorkloadsActivations) {
  const PredictFlags flags =
      UnderstandPredict({.workload = "gpt_mini", .link = "1gbit", .pp = 4}, {}).value();
  EXPECT_THAT(flags.workers, ElementsAre(4));
  EXPECT_THAT(flags.strategies, ElementsAre("ring"));
  EXPECT_EQ(flags.pipeline->micro_batches, 16);
  EXPECT_STREQ(flags.pipeline->program.row.name, "1f1b");
  EXPECT_DOUBLE_EQ(flags.pipeline->boundary_bytes, 64 * 256 * 384 * 4.);
}

TEST(Blocks, AreTensorsWhoseNamesAgreeUpToTheirFirstNumber) {
  const Workload workload{.batch = 1,
                          .forward_ms = 5,
                          .backward_ms = 10,
                          .tensors = {{"head.bias", 4, 1},
                                      {"layer.1.mlp.0.weight", 8, 2},
                                      {"layer.1.norm2.weight", 12, 4},
                                      {"layer.0.mlp.0.weight", 16, 7},
                                      {"embedding", 20, 8}}};
  const std::vector<LayerBlock> blocks = BlocksOf(workload);
  ASSERT_EQ(blocks.size(), 4u);
  EXPECT_EQ(blocks[0].name, "embedding");
  EXPECT_DOUBLE_EQ(blocks[0].backward_ms, 1 + 2);  // until backward ends
  EXPECT_EQ(blocks[1].name, "layer.0");
  EXPECT_EQ(blocks[2].name, "layer.1");
  EXPECT_DOUBLE_EQ(blocks[2].backward_ms, 3);
  EXPECT_DOUBLE_EQ(blocks[2].forward_ms, 1.5);
  EXPECT_DOUBLE_EQ(blocks[2].gradient_bytes, 20);
  EXPECT_EQ(blocks[3].name, "head");
}

// The time of the slowest stage.
double SlowestStage(const std::vector<LayerBlock>& blocks, std::vector<int> cuts) {
  cuts.push_back(static_cast<int>(blocks.size()));
  double slowest = 0;
  for (size_t stage = 0, first = 0; stage < cuts.size(); first = static_cast<size_t>(cuts[stage++])) {
    double ms = 0;
    for (size_t block = first; block < static_cast<size_t>(cuts[stage]); ++block) ms += blocks[block].ms();
    slowest = std::max(slowest, ms);
  }
  return slowest;
}

TEST(BalancedCuts, HaveTheFastestSlowestStage) {
  std::vector<LayerBlock> blocks;
  for (const double ms : {3., 0., 5., 1., 1., 7., 2., 0., 4.}) blocks.push_back({.forward_ms = ms});
  const int count = static_cast<int>(blocks.size());
  EXPECT_TRUE(BalancedCuts(blocks, 1).empty());
  EXPECT_THAT(BalancedCuts(blocks, count), ElementsAre(1, 2, 3, 4, 5, 6, 7, 8));
  double best = INFINITY;
  for (int first = 1; first < count - 1; ++first) {
    for (int second = first + 1; second < count; ++second) {
      best = std::min(best, SlowestStage(blocks, {first, second}));
    }
  }
  EXPECT_DOUBLE_EQ(SlowestStage(blocks, BalancedCuts(blocks, 3)), best);
}

TEST(DataParallelShare, IsThePartOfTheGlobalBatchRoundedUp) {
  const Workload workload{.batch = 10, .forward_ms = 10, .backward_ms = 20};
  const Workload share = DataParallelShare(workload, {.ranks = 4, .micro_batches = 3});
  EXPECT_EQ(share.batch, 8);
  EXPECT_DOUBLE_EQ(share.compute_ms(), 24);
}

// A report of two stages, and the text of its table and conclusions in one line.
class PipelineReport : public testing::Test {
 protected:
  PipelineReport() {
    const PredictFlags flags =
        UnderstandPredict({.workload = "gpt_mini", .link = "1gbit", .pp = 2, .micro_batches = 4}, {}).value();
    micro_batch_ = flags.workload;
    point_ = *flags.pipeline;
    point_.strategy = kRing;
    predictor_ = std::make_unique<Predictor>(DataParallelShare(micro_batch_, point_), flags.options);
    report_ = {.run_id = "test", .predictor = predictor_.get(), .cluster = flags.cluster};
    const PredictCase copies{.strategy = kRing, .workers = 2};
    PredictedRow row{.point = copies, .single_samples_per_s = 100};
    row.guesses.push_back(predictor_->Predict(copies, report_.cluster).value());
    report_.rows.push_back(row);
    report_.pipelines.push_back(
        {point_, PredictPipeline(micro_batch_, flags.options, point_, flags.cluster).value()});
    report_.micro_batch = &micro_batch_;
  }

  std::string Text() const {
    return absl::StrJoin(absl::StrSplit(PredictText(report_), absl::ByAnyChar(" \n"), absl::SkipEmpty()),
                         " ");
  }

  Workload micro_batch_;
  PipelineCase point_;
  std::unique_ptr<Predictor> predictor_;
  PredictReport report_;
};

TEST_F(PipelineReport, NamesHowReplicasAreSharded) {
  report_.pipelines[0].point.workers = 4;
  report_.pipelines[0].point.strategy = FindStrategy("fsdp").value();
  EXPECT_THAT(Text(), Has("dp2xpp2 fsdp 1f1b"));
}

TEST_F(PipelineReport, NamesTheFasterAndWhatWouldChangeIt) {
  EXPECT_THAT(Text(), Has("dp2 ring", "pp2 1f1b", "4 micro-batches of 64 samples",
                          "a data-parallel worker 128 samples at once", "Verdict (simulated): ",
                          "Links from 1/1024 to 1024 times as fast do not change this."));
  report_.link_factor = 4;
  EXPECT_THAT(Text(), Has("With links between nodes of 4 Gbit/s or more, "));
  report_.link_factor = 0.25;
  EXPECT_THAT(Text(), Has("With links between nodes of 250 Mbit/s or less, "));
  report_.rows[0].guesses[0].samples_per_s = 2 * report_.pipelines[0].prediction.prediction.samples_per_s;
  EXPECT_THAT(Text(), Has("dp2 ring is fastest with 2 workers, 2.00 times as fast as pp2 1f1b.",
                          "or less, pp2 1f1b would be faster."));
  for (const absl::string_view line : absl::StrSplit(PredictText(report_), '\n')) {
    EXPECT_LE(line.size(), 120u) << line;
  }
}

TEST_F(PipelineReport, StatesTheVersionsThatAreKeptWithoutAFlush) {
  EXPECT_THAT(Text(), Lacks("versions of its weights"));
  report_.pipelines[0].point.program = FindStepProgram("pipedream").value();
  report_.pipelines[0].prediction.versions = 2;
  report_.pipelines[0].prediction.older_versions_bytes = 3e6;
  EXPECT_THAT(Text(), Has("a device keeps up to 2 versions of its weights (3.0 MB beside the newest)"));
}

TEST_F(PipelineReport, FillsTheColumnsOfTheSummary) {
  const auto cells_of = [](const std::vector<Cell>& cells) {
    std::map<std::string, Cell> by_column;
    for (const Cell& cell : cells) by_column.emplace(cell.column, cell);
    return by_column;
  };
  const auto copies = cells_of(PredictedCells(report_, report_.rows[0]));
  const auto pipeline = cells_of(PipelineCells(report_, 0));
  EXPECT_EQ(std::get<std::string>(copies.at("layout").value), "dp2");
  EXPECT_EQ(std::get<std::string>(pipeline.at("layout").value), "pp2");
  EXPECT_EQ(std::get<std::string>(pipeline.at("program").value), "1f1b");
  EXPECT_EQ(std::get<int64_t>(pipeline.at("micro_batches").value), 4);
  EXPECT_EQ(pipeline.at("predicted_bubble_fraction").basis, Basis::kSimulated);
  EXPECT_DOUBLE_EQ(std::get<double>(pipeline.at("predicted_bubble_fraction").value),
                   report_.pipelines[0].prediction.bubble);
  EXPECT_TRUE(std::holds_alternative<std::monostate>(copies.at("program").value));
  for (const auto* row : {&copies, &pipeline}) {
    EXPECT_EQ(std::get<int64_t>(row->at("global_batch").value), 4 * 64);
  }
}

}  // namespace
}  // namespace psring
