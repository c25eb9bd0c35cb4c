#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <random>

#include "common/io/files.h"
#include "common/workloads/changes.h"
#include "experiments/simulator/compute_variation.h"
#include "experiments/simulator/fluid_network.h"
#include "experiments/simulator/prediction.h"
#include "tests/experiments/simulator/test_network.h"
#include "tests/experiments/test_catalog.h"
#include "tests/has.h"
#include "tests/test_folder.h"

namespace psring {
namespace {

ComputeVariation Varies(const std::string& text) { return ParseComputeVariation(text).value(); }

// 80 MB, ready in the middle and at the end of a backward pass of half the step.
Workload Block() {
  return {.name = "block",
          .device = "none",
          .batch = 10,
          .forward_ms = 50,
          .backward_ms = 50,
          .tensors = {{"late", 40'000'000, 25}, {"early", 40'000'000, 50}}};
}

PredictOptions Dedicated() {
  return {.buckets = {.first_mb = 0, .others_mb = 0}, .place = ServerPlace::kDedicated};
}

PredictCase Ring(int workers) { return {.strategy = kRing, .workers = workers}; }

double Step(const PredictOptions& options, const PredictCase& point, const Cluster& cluster) {
  return Predictor(Block(), options).Predict(point, cluster).value().step;
}

TEST(ComputeVariation, ExpectedMaximaOfNormalDrawsAreThoseOfTheTables) {
  // Teichroew 1956: the largest of 2, 10 and 20 standard normal draws.
  const ComputeVariation normal = Varies("normal:0.1");
  EXPECT_NEAR(ExpectedMaximum(normal, 2), 1 + 0.1 * 0.56419, 1e-5);
  EXPECT_NEAR(ExpectedMaximum(normal, 10), 1 + 0.1 * 1.53875, 1e-5);
  EXPECT_NEAR(ExpectedMaximum(normal, 20), 1 + 0.1 * 1.86748, 1e-5);
  EXPECT_EQ(ExpectedMaximum(normal, 1), 1);
}

TEST(ComputeVariation, ExpectedMaximaAgreeWithDraws) {
  const ComputeVariation measured = VariationOfSamples({9, 10, 10, 11, 15}).value();
  std::mt19937_64 random(1);
  std::normal_distribution<double> normal;
  std::uniform_real_distribution<double> uniform(0, 1);
  for (const ComputeVariation& variation : {Varies("normal:0.2"), Varies("lognormal:0.5"), measured}) {
    for (const int count : {2, 8, 64}) {
      double sum = 0;
      constexpr int kDraws = 20'000;
      for (int i = 0; i < kDraws; ++i) {
        double most = 0;
        for (int j = 0; j < count; ++j)
          most = std::max(most, Draw(variation, normal(random), uniform(random)));
        sum += most / kDraws;
      }
      EXPECT_NEAR(ExpectedMaximum(variation, count), sum, 0.02 * sum) << count;
    }
  }
}

TEST(ComputeVariation, BadInputSaysWhatToWrite) {
  for (const auto& [text, what] : {std::pair("normal:0", "must be above 0"),
                                   {"normal", "write normal:0.05"},
                                   {"gamma:1", "is not a variation; use none, normal:CV"},
                                   {"./no_such_file", "no_such_file"}}) {
    EXPECT_THAT(ParseComputeVariation(text).status().message(), Has(what));
  }
  EXPECT_FALSE(VariationOfSamples({1}).ok());
  EXPECT_FALSE(VariationOfSamples({1, 0}).ok());
}

TEST(ComputeVariation, AFileHasOneTimeOnEachLine) {
  const TestFolder folder;
  const auto read = [&](const std::string& text) { return ParseComputeVariation(folder.Put("times", text)); };
  for (const char* text : {"# ms\n1\n3\n",
                           "\xEF\xBB\xBF"
                           "1,,\r\n3,,\r\n",
                           "  # ms\n 1.0 \n\n\"3,0\"\n"}) {
    EXPECT_EQ(read(text).value().samples, (std::vector<double>{0.5, 1.5})) << text;
  }
  for (const auto& [text, what] : {std::pair("1\n2,5\n", "line 2: it must be one time, with a decimal point"),
                                   {"1\n3 ms\n", "line 2: time '3 ms' is not a number"}}) {
    EXPECT_THAT(read(text).status().message(), Has(what));
  }
}

TEST(ComputeVariation, SynchronyWaitsForTheSlowestAndAsynchronyDoesNot) {
  PredictOptions options = Dedicated();
  Cluster fast = TestNetwork();
  fast.link_bytes_per_s = 1e15;
  options.variation = Varies("normal:0.2");
  const double slowest = ExpectedMaximum(options.variation, 8);
  EXPECT_NEAR(Step(options, Ring(8), fast), 0.1 * slowest, 1e-4);
  EXPECT_NEAR(Step(options, {kSync, 8, 1}, fast), 0.1 * slowest, 1e-4);
  EXPECT_NEAR(Step(options, {kAsync, 8, 1}, fast), 0.1, 3e-3);
  Predictor predictor(Block(), options);
  const Prediction sync = predictor.Predict({kSync, 8, 1}, fast).value();
  EXPECT_NEAR(sync.compute, 0.1, 1e-9);
  EXPECT_NEAR(sync.wait, 0.1 * (slowest - 1), 1e-6);
  EXPECT_NEAR(sync.slowest, slowest, 1e-12);
}

TEST(Contention, ManyNodesLoseGoodput) {
  Cluster lossy = TestNetwork(), slow = TestNetwork();
  lossy.node_loss = 0.5;
  slow.fraction = 0.5;
  EXPECT_EQ(WithNodes(lossy, 2), lossy);
  EXPECT_DOUBLE_EQ(Step(Dedicated(), Ring(8), lossy), Step(Dedicated(), Ring(8), slow));
}

TEST(Contention, ABarrierEndsSynchronousSteps) {
  Cluster network = TestNetwork();
  network.barrier_s = 0.01;
  for (const StrategyRow& strategy : {kRing, kSync}) {
    const PredictCase point{strategy, 8, strategy.uses_servers ? 1 : 0};
    EXPECT_NEAR(Step(Dedicated(), point, network), Step(Dedicated(), point, TestNetwork()) + 0.03, 1e-9);
  }
  EXPECT_DOUBLE_EQ(Step(Dedicated(), {kAsync, 8, 1}, network),
                   Step(Dedicated(), {kAsync, 8, 1}, TestNetwork()));
}

TEST(Contention, AConnectionIsCapped) {
  Cluster network = TestNetwork();
  network.connection_bytes_per_s = 0.25e9;
  // A worker's connections to 1 and 4 servers carry 1/4 and all of a link.
  EXPECT_NEAR(Step(Dedicated(), {kSync, 1, 1}, network), 0.075 + 0.16 + 0.16 + 0.16, 1e-6);
  EXPECT_DOUBLE_EQ(Step(Dedicated(), {kSync, 1, 4}, network),
                   Step(Dedicated(), {kSync, 1, 4}, TestNetwork()));
  Cluster slow = TestNetwork();
  slow.link_bytes_per_s = 0.25e9;
  EXPECT_DOUBLE_EQ(Step(Dedicated(), Ring(4), network), Step(Dedicated(), Ring(4), slow));
}

TEST(Contention, AServersCostPerWorkerAndByteGrowsWithWorkers) {
  Cluster network = TestNetwork();
  network.link_bytes_per_s = 1e15;
  network.server_worker_s_per_byte = 1e-9;
  PredictOptions serial = Dedicated();
  serial.pipelined = false;
  // 80 MB per worker each way; the push starts 25 ms before the end of backward.
  EXPECT_NEAR(Step(serial, {kSync, 2, 1}, network), 0.1 + 0.16 - 0.025 + 0.055 + 0.16 - 0.055, 2e-2);
  const double two = Step(serial, {kSync, 2, 1}, network), eight = Step(serial, {kSync, 8, 1}, network);
  EXPECT_NEAR(eight - two, 6 * 0.16, 1e-6);
  EXPECT_NEAR(Step(serial, {kSync, 8, 8}, network), Step(serial, {kSync, 1, 1}, network), 1e-6);
}

Cluster Machines(int gpus, double intra_bytes_per_s) {
  Cluster machines = TestNetwork();
  machines.gpus_per_node = gpus;
  machines.intra_bytes_per_s = intra_bytes_per_s;
  return machines;
}

PredictOptions Together() {
  PredictOptions options = Dedicated();
  options.local_aggregation = true;
  return options;
}

TEST(LocalAggregation, AMachineIsOneWorkerOnTheNetwork) {
  const Cluster eight = Machines(8, 1e15);
  const PredictOptions together = Together();
  EXPECT_NEAR(Step(together, {kSync, 32, 2}, eight), Step(Dedicated(), {kSync, 4, 2}, TestNetwork()), 1e-6);
  EXPECT_GT(Step(Dedicated(), {kSync, 32, 2}, eight), 2 * Step(together, {kSync, 32, 2}, eight));
  Predictor predictor(Block(), together);
  const Prediction whole = predictor.Predict({kSync, 32, 2}, eight).value();
  EXPECT_NEAR(whole.samples_per_s, 32 * 10 / whole.step, 1e-6 * whole.samples_per_s);
  EXPECT_NEAR(whole.server_bytes, 4 * 2 * 80e6, 1);
}

TEST(LocalAggregation, AddingWithinTheMachineTakesTime) {
  const Cluster eight = Machines(8, 10e9);
  // The last bucket: 7/8 of 40 MB at 10 GB/s before its push and after its pull.
  const double inside = 2 * 7.0 / 8 * 40e6 / 10e9;
  EXPECT_NEAR(Step(Together(), {kSync, 8, 1}, eight),
              Step(Dedicated(), {kSync, 1, 1}, TestNetwork()) + inside, 1e-6);
}

TEST(LocalAggregation, AMachineIsAsSlowAsItsSlowestWorker) {
  const Cluster two = Machines(2, 1e15);
  PredictOptions together = Together(), apart = Dedicated();
  together.delays = {.slowness = {1, 3, 1, 1}};
  apart.delays = {.slowness = {3, 1}};
  EXPECT_NEAR(Step(together, {kSync, 4, 1}, two), Step(apart, {kSync, 2, 1}, TestNetwork()), 1e-6);
  together.delays = {.jitter = {.kind = TimeDistribution::Kind::kExponential, .scale_ms = 10}};
  EXPECT_FALSE(Predictor(Block(), together).Predict({kSync, 4, 1}, two).ok());
}

TEST(WorkloadChanges, PiecesKeepBytesAndTimes) {
  const Workload cut = InPieces(Block(), 30'000'000);
  ASSERT_EQ(cut.tensors.size(), 4u);
  EXPECT_EQ(cut.bytes(), Block().bytes());
  EXPECT_EQ(cut.tensors[1].bytes, 20'000'000);
  EXPECT_EQ(cut.tensors[1].ready_ms, 25);
  EXPECT_EQ(InPieces(Block(), 40'000'000).tensors.size(), 2u);
}

TEST(WorkloadChanges, NothingOverlapsAfterBackward) {
  Predictor predictor(AfterBackward(Block()), Dedicated());
  EXPECT_NEAR(predictor.Predict(Ring(2), TestNetwork())->step, 0.1 + 0.08, 1e-6);
  Predictor exchange(WithoutComputing(Block()), Dedicated());
  EXPECT_NEAR(exchange.Predict(Ring(2), TestNetwork())->step, 0.08, 1e-6);
}

using Ends = std::vector<std::pair<double, int64_t>>;  // in order: (time, token)

Ends RunDry(FluidNetwork& network) {
  Ends ends;
  std::vector<int64_t> ended;
  while (network.NextEnd() < FluidNetwork::kUnlimited) {
    ended.clear();
    network.AdvanceTo(network.NextEnd(), ended);
    for (const int64_t token : ended) ends.emplace_back(network.now(), token);
  }
  return ends;
}

TEST(FluidNetwork, ASingleFlowGetsTheWholeLink) {
  FluidNetwork network;
  const size_t link = network.AddResource(10);
  const size_t kind = network.AddKind({{link, 1}});
  network.Start(kind, 30, 7);
  EXPECT_EQ(RunDry(network), (Ends{{3, 7}}));
  EXPECT_DOUBLE_EQ(network.BusySeconds(link), 3);
}

TEST(FluidNetwork, FlowsShareALinkAndSpeedUpWhenOthersEnd) {
  FluidNetwork network;
  const size_t kind = network.AddKind({{network.AddResource(10), 1}});
  network.Start(kind, 10, 1);
  network.Start(kind, 30, 2);
  // 5 each until 1 ends at 2; then 2 has 20 left at 10.
  EXPECT_EQ(RunDry(network), (Ends{{2, 1}, {4, 2}}));
}

TEST(FluidNetwork, AFlowLimitedElsewhereLeavesItsShareToOthers) {
  // The textbook's case: three flows over links of 10 and 4; the one over both gets 2, as does its neighbor
  // on the small link, and the third gets 8.
  FluidNetwork network;
  const size_t large = network.AddResource(10), small = network.AddResource(4);
  const size_t both = network.AddKind({{large, 1}, {small, 1}});
  const size_t on_small = network.AddKind({{small, 1}});
  const size_t on_large = network.AddKind({{large, 1}});
  network.Start(both, 2, 1);
  network.Start(on_small, 2, 2);
  network.Start(on_large, 8, 3);
  EXPECT_DOUBLE_EQ(network.NextEnd(), 1);
  std::vector<int64_t> ended;
  network.AdvanceTo(1, ended);
  EXPECT_EQ(ended, (std::vector<int64_t>{1, 2, 3}));
}

TEST(FluidNetwork, AFlowIsLimitedByItsOwnRate) {
  FluidNetwork network;
  const size_t link = network.AddResource(10);
  network.Start(network.AddKind({{link, 1}}, 2), 2, 1);
  network.Start(network.AddKind({{link, 1}}), 8, 2);
  EXPECT_DOUBLE_EQ(network.NextEnd(), 1);
}

TEST(FluidNetwork, LoadsMultiplyTheBytesOnALink) {
  FluidNetwork network;
  const size_t link = network.AddResource(8);
  network.Start(network.AddKind({{link, 3}}), 1, 1);
  network.Start(network.AddKind({{link, 0.5}}, 4), 4, 2);
  // Alike until 8 / 3.5 each.
  EXPECT_DOUBLE_EQ(network.NextEnd(), 3.5 / 8);
}

TEST(FluidNetwork, FlowsWithoutBytesOrLimitEndImmediately) {
  FluidNetwork network;
  const size_t kind = network.AddKind({{network.AddResource(10), 1}});
  const size_t free = network.AddKind({{network.AddResource(FluidNetwork::kUnlimited), 1}});
  network.Start(kind, 0, 1);
  network.Start(free, 100, 2);
  EXPECT_EQ(RunDry(network), (Ends{{0, 1}, {0, 2}}));
}

TEST(FluidNetwork, TheOrderOfStartsAtOneTimeDoesNotMatter) {
  std::mt19937 random(1);
  Ends first;
  for (int turn = 0; turn < 20; ++turn) {
    FluidNetwork network;
    std::vector<size_t> kinds, links;
    for (int i = 0; i < 6; ++i) links.push_back(network.AddResource(1.0 + i / 3.0));
    for (int i = 0; i < 12; ++i)
      kinds.push_back(network.AddKind({{links[i % 6], 1}, {links[(i * 5 + 1) % 6], 0.7}}));
    std::vector<int> order;
    for (int i = 0; i < 60; ++i) order.push_back(i);
    std::shuffle(order.begin(), order.end(), random);
    for (const int i : order) network.Start(kinds[i % 12], 1 + i % 7, i);
    const auto ends = RunDry(network);
    if (turn == 0) first = ends;
    ASSERT_EQ(ends.size(), first.size());
    for (size_t i = 0; i < ends.size(); ++i) {
      EXPECT_EQ(ends[i].second, first[i].second);
      EXPECT_DOUBLE_EQ(ends[i].first, first[i].first);
    }
  }
}

TEST(FluidNetwork, ABurstIsUnlimitedAndRefillsInAPause) {
  FluidNetwork network;
  const size_t link = network.AddResource(1e6, {.bytes = 1e5, .tokens = 1e5, .full_bytes_per_s = 1.1e7});
  const size_t kind = network.AddKind({{link, 1}});
  // Tokens go at 1e7 a second more than they come: 0.01 s and 1.1e5 bytes. The other 2e5 take 0.2 s.
  network.Start(kind, 3.1e5, 1);
  Ends ends = RunDry(network);
  ASSERT_EQ(ends.size(), 1);
  EXPECT_NEAR(ends[0].first, 0.21, 1e-12);
  // A pause of 0.05 s brings half of them back.
  std::vector<int64_t> ended;
  network.AdvanceTo(0.26, ended);
  network.Start(kind, 2.55e5, 2);
  ends = RunDry(network);
  ASSERT_EQ(ends.size(), 1);
  EXPECT_NEAR(ends[0].first, 0.26 + 0.005 + 0.2, 1e-12);
}

TEST(FluidNetwork, AFlowLimitedElsewhereLeavesTokensForLaterFlows) {
  FluidNetwork network;
  const size_t slow = network.AddResource(1e5);
  const size_t link = network.AddResource(1e6, {.bytes = 1e5, .tokens = 0, .full_bytes_per_s = 1.1e7});
  const size_t trickle = network.AddKind({{slow, 1}, {link, 1}}), flood = network.AddKind({{link, 1}});
  network.Start(trickle, 1e6, 1);
  std::vector<int64_t> ended;
  network.AdvanceTo(1, ended);  // the bucket is full again
  network.Start(flood, 1.09e5, 2);
  // Beside 1e5 of the trickle the flood has 1.09e7: tokens go at 1e7, for 0.01 s.
  network.AdvanceTo(network.NextEnd(), ended);
  EXPECT_NEAR(network.now(), 1.01, 1e-12);
  EXPECT_EQ(ended, (std::vector<int64_t>{2}));
}

TEST(FluidNetwork, WithoutTokensThereIsNoBurst) {
  FluidNetwork network;
  const size_t kind =
      network.AddKind({{network.AddResource(10, {.bytes = 5, .tokens = 0, .full_bytes_per_s = 100}), 1}});
  network.Start(kind, 30, 1);
  EXPECT_EQ(RunDry(network), (Ends{{3, 1}}));
}

}  // namespace
}  // namespace psring
