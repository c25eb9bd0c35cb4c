// What a configuration of psring train --pp is, and how long it is expected to take.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "experiments/design/estimate.h"
#include "experiments/design/plan.h"
#include "tests/experiments/test_catalog.h"
#include "tests/has.h"

namespace psring {
namespace {

constexpr int kManyCores = 64;

Configuration Of(const std::string& strategy, int workers, const TrainingOptions& training) {
  return MakeConfiguration(strategy, workers, training, TestProbe(), kManyCores).value();
}

TEST(PipelineConfiguration, WorkersAreRanksOfReplicas) {
  const Configuration ring = Of("ring", 8, {.batch = 16, .micro_batches = 4, .pp = 2});
  EXPECT_EQ(ring.workers, 8);
  EXPECT_EQ(ring.ranks(), 8);
  EXPECT_EQ(ring.replicas(), 4);
  EXPECT_EQ(ring.layout(), "dp4xpp2");
  EXPECT_EQ(ring.step_samples(), 64);
  // A strategy of one process has one replica.
  const Configuration single = Of("single", 2, {.pp = 2, .transport = "tcp"});
  EXPECT_EQ(single.workers, 2);
  EXPECT_EQ(single.ranks(), 2);
  EXPECT_EQ(single.replicas(), 1);
  EXPECT_EQ(single.training.transport, "tcp") << "its stages exchange activations";
  EXPECT_EQ(Of("single", 2, {.transport = "tcp"}).training.transport, "auto");
}

TEST(PipelineConfiguration, AServerHasTheReplicasOfItsStages) {
  const Configuration sync = Of("ps-sync", 8, {.pp = 2, .servers = 3});
  EXPECT_EQ(sync.servers(), 6);
  EXPECT_EQ(sync.name(), "ps-sync x 8 on 6 servers (dp4xpp2 1f1b)");
  const CommPattern pattern = PatternOf(sync, *SchemeOf(sync.strategy));
  EXPECT_EQ(pattern.workers, 4);
  EXPECT_EQ(pattern.servers, 3);
}

TEST(PipelineConfiguration, ServersOfAllStagesOnOneHostShareItsLink) {
  const auto speed = [](int workers, int pp, const std::string& placement) {
    Probe probe = TestProbe();
    probe.per_machine = 1;
    probe.link = Wires{.bytes_per_s = 1e6};  // slower than all else
    const TrainingOptions training{.batch = 128, .pp = pp, .server_placement = placement};
    return SamplesPerSecond(MakeConfiguration("ps-sync", workers, training, probe, kManyCores).value(), probe,
                            kManyCores);
  };
  EXPECT_NEAR(speed(4, 2, "rank0") / speed(2, 1, "rank0"), 1, .05);
  EXPECT_NEAR(speed(4, 2, "colocated") / speed(2, 1, "colocated"), 2, .1);
}

TEST(PipelineConfiguration, AGlobalBatchIsDividedAmongReplicasAndMicroBatches) {
  TrainingOptions training{.micro_batches = 4, .pp = 2};
  training.global_batch = 64;
  EXPECT_EQ(Of("ring", 4, training).training.batch, 8);
  CompareOptions options{.strategies = {"ring"}, .workers = {4}, .training = training};
  EXPECT_TRUE(CheckBatches(options, 60000).ok());
  options.training.global_batch = 65;
  EXPECT_THAT(CheckBatches(options, 60000).message(), Has("use 64 or 72"));
  options.strategies = {"single"};
  options.workers = {2};
  options.training.global_batch = 64;
  EXPECT_TRUE(CheckBatches(options, 60000).ok());
}

TEST(PipelineConfiguration, TheBubbleOfTheFormulaIsExpected) {
  EXPECT_EQ(BubbleOf({}), 0);
  EXPECT_DOUBLE_EQ(BubbleOf({.micro_batches = 1, .pp = 2}), .5);
  EXPECT_DOUBLE_EQ(BubbleOf({.micro_batches = 8, .pp = 4}), 3. / 11);
  const auto speed = [](int micro_batches, int cores) {
    Probe probe = TestProbe();
    probe.step_samples = 128;
    const Configuration configuration =
        MakeConfiguration("single", 4, {.batch = 128, .micro_batches = micro_batches, .pp = 4}, probe, cores)
            .value();
    return SamplesPerSecond(configuration, probe, cores);
  };
  EXPECT_NEAR(speed(64, kManyCores) / speed(1, kManyCores), (64. / 67) / (1. / 4), 1e-6);
  // On one core, ranks compute while others wait.
  EXPECT_NEAR(speed(64, 1) / speed(1, 1), 1, 1e-6);
}

TEST(PipelineConfiguration, ANoteGivesTheStepOfAReplica) {
  Plan plan;
  plan.cost = {Of("ring", 4, {.batch = 16, .micro_batches = 4, .pp = 2}), Of("ring", 4, {})};
  AddPipelineNotes(plan);
  EXPECT_EQ(plan.notes,
            std::vector<std::string>{
                "dp2xpp2: a replica's step is 4 x 16 samples (--micro_batches x --batch); without messages a "
                "worker would be idle in 20% of it (1f1b)"});
}

}  // namespace
}  // namespace psring
