#include "trainer/step/plan/training_plan.h"

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "tests/has.h"

namespace psring {
namespace {

StepPlan Steps(const TrainingOptions& options, int world_size = 1) {
  const auto plan = PlanSteps(options, 60000, world_size);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return plan.value_or(StepPlan());
}

UpdatePlan Updates(const TrainingOptions& options, int world_size = 1) {
  const auto plan = PlanUpdates(options, *FindStrategy(options.strategy), **FindModel(options.model),
                                Steps(options, world_size));
  EXPECT_TRUE(plan.ok()) << plan.status();
  return plan.value_or(UpdatePlan());
}

TEST(PlanSteps, EpochsSamplesAndStepsCountAllWorkers) {
  EXPECT_EQ(Steps({}).steps, 468);
  EXPECT_EQ(Steps({.epochs = 3}).steps, 3 * 468);
  EXPECT_EQ(Steps({.epochs = 3}, 4).steps, 3 * 117);
  EXPECT_EQ(Steps({.epochs = .5}, 4).steps, 59);  // 58.5, to the nearest
  EXPECT_EQ(Steps({.samples = 51200}, 4).steps, 100);
  EXPECT_EQ(Steps({.samples = 1}, 4).steps, 1);
  EXPECT_EQ(Steps({.steps = 7}, 4).steps, 7);
  EXPECT_EQ(Steps({.epochs = 3, .reference_workers = 4}).steps, 3 * 117);
}

TEST(RoundingNote, SaysHowManySamplesAreTrainedOn) {
  const auto note = [](const TrainingOptions& options) { return RoundingNote(options, Steps(options, 2)); };
  EXPECT_EQ(note({.samples = 100}), "--samples 100 is rounded to 256: a step has 256 samples");
  EXPECT_EQ(note({.samples = 700, .warmup_steps = 3}),
            "--samples 700 is rounded to 768: a step has 256 samples");
  EXPECT_EQ(note({.samples = 512, .warmup_steps = 3}), "");
  EXPECT_EQ(note({.epochs = .5}), "");
  EXPECT_EQ(note({.steps = 7}), "");
}

TEST(PlanSteps, CountsThatOverflowAreRejected) {
  for (const auto& [options, flag] : std::vector<std::pair<TrainingOptions, std::string>>{
           {{.samples = INT64_MAX}, "--samples"},
           {{.steps = INT64_MAX}, "--steps"},
           {{.steps = 1, .warmup_steps = INT64_MAX}, "--steps or --warmup_steps"},
           {{.epochs = 1e300}, "--epochs"},
           {{.batch = INT32_MAX, .reference_workers = INT32_MAX}, "--batch 2147483647"},
           {{.batch = INT32_MAX, .micro_batches = INT32_MAX, .drop_last = "false"}, "--batch 2147483647"}}) {
    const absl::Status planned = PlanSteps(options, 60000, 2).status();
    EXPECT_TRUE(absl::IsInvalidArgument(planned)) << flag;
    EXPECT_THAT(std::string(planned.message()), testing::StartsWith(flag));
  }
}

TEST(PlanSteps, SamplesOfATextAreTokens) {
  const auto plan = PlanSteps({.samples = 5 * 4 * 64 * 10, .batch = 10}, 1000, 4, /*predictions=*/64).value();
  EXPECT_EQ(plan.steps, 5);
  EXPECT_EQ(plan.global_batch, 4 * 64 * 10);
  EXPECT_EQ(plan.steps_per_epoch, 25);
  EXPECT_EQ(plan.epoch_samples, 64'000);
}

TEST(PlanSteps, TheScheduleEndsWithTheLastSample) {
  const StepPlan plan = Steps({.steps = 10, .warmup_steps = 5, .batch = 100}, 3);
  EXPECT_EQ(plan.global_batch, 300);
  EXPECT_EQ(plan.total_steps(), 15);
  EXPECT_EQ(plan.total_samples, 15 * 300);
}

TEST(PlanSteps, AccumulatedBatchesCountAsBatches) {
  EXPECT_EQ(Steps({.epochs = 3, .micro_batches = 2}, 2).steps, 3 * 117);
  EXPECT_EQ(Steps({.batch = 100, .micro_batches = 5}, 3).global_batch, 1500);
  const StepPlan spare = Steps({.strategy = "ps-backup:1", .batch = 100, .micro_batches = 5}, 3);
  EXPECT_EQ(spare.global_batch, 1000);
  EXPECT_EQ(spare.drawn_batch, 1500);
}

TEST(PlanSteps, AShortLastBatchIsAStepUnlessDropped) {
  const StepPlan plan = Steps({.epochs = 2, .warmup_steps = 1, .batch = 7000, .drop_last = "false"}, 2);
  EXPECT_EQ(plan.steps_per_epoch, 5);  // the last has 4000
  EXPECT_EQ(plan.steps, 10);
  EXPECT_EQ(plan.total_samples, 2 * 60000 + 14000);
  EXPECT_EQ(plan.SamplesBefore(4), 56000);
  EXPECT_EQ(plan.SamplesBefore(5), 60000);
  EXPECT_EQ(plan.SamplesBefore(6), 74000);
  EXPECT_EQ(plan.SamplesIn(2 * 6, 2), 74000) << "two updates a step";
  EXPECT_EQ(plan.SamplesIn(9, 2), 58000);
  // Samples are rounded to the nearest step.
  EXPECT_EQ(Steps({.samples = 60000, .batch = 7000, .drop_last = "false"}, 2).steps, 5);
  EXPECT_EQ(Steps({.samples = 116000, .batch = 7000, .drop_last = "false"}, 2).steps, 9);
  // The same without a short batch.
  EXPECT_EQ(Steps({.batch = 7000}, 2).steps, 4);
  EXPECT_EQ(Steps({.batch = 7000}, 2).SamplesBefore(5), 70000);
}

TEST(PlanSteps, DataSmallerThanABatchIsOneShortStepUnlessDropped) {
  const auto plan = PlanSteps({.batch = 128, .drop_last = "false"}, 5, 4).value();
  EXPECT_EQ(plan.steps, 1);
  EXPECT_EQ(plan.total_samples, 5);
}

TEST(PlanSteps, RejectsABatchLargerThanTheData) {
  EXPECT_EQ(PlanSteps({.batch = 60001}, 60000, 1).status().message(),
            "--batch 60001 is larger than the data (60000 samples)");
  EXPECT_EQ(PlanSteps({.batch = 20000}, 60000, 4).status().message(),
            "--batch 20000 times 4 workers is larger than the data (60000 samples)");
  EXPECT_EQ(PlanSteps({.batch = 60000}, 60000, 1)->steps, 1);
}

TEST(PlanUpdates, TheStrategyChoosesMomentumAndTheModelTheRate) {
  const UpdatePlan ring = Updates({.strategy = "ring"});
  EXPECT_EQ(ring.optimizer.kind, OptimizerKind::kMomentum);
  EXPECT_EQ(ring.optimizer.momentum, .9);
  EXPECT_EQ(ring.schedule.base, .05);
  const UpdatePlan async = Updates({.strategy = "ps-async"});
  EXPECT_EQ(async.optimizer.kind, OptimizerKind::kSgd);
  EXPECT_EQ(async.schedule.base, (*FindModel("mlp"))->default_async_lr);
  EXPECT_EQ(Updates({.strategy = "ring", .optimizer = "adam"}).schedule.base, .001);
  EXPECT_EQ(Updates({.strategy = "ring", .optimizer = "sgd"}).schedule.base, async.schedule.base);
}

TEST(PlanUpdates, FlagsOverrideDefaults) {
  const UpdatePlan plan =
      Updates({.strategy = "ps-async", .lr = .2, .momentum = .5, .schedule = "linear", .warmup_epochs = .5});
  EXPECT_EQ(plan.optimizer.kind, OptimizerKind::kMomentum);
  EXPECT_EQ(plan.optimizer.momentum, .5);
  EXPECT_EQ(plan.schedule.base, .2);
  EXPECT_EQ(plan.schedule.decay, LrDecay::kLinear);
  EXPECT_EQ(plan.schedule.warmup_samples, 30000);
}

TEST(PlanUpdates, TextsTrainWithAdamWByDefault) {
  const UpdatePlan gpt = Updates({.model = "gpt-nano", .schedule = "cosine"});
  EXPECT_EQ(gpt.optimizer.kind, OptimizerKind::kAdamW);
  EXPECT_EQ(gpt.optimizer.weight_decay, .1);
  EXPECT_EQ(gpt.schedule.base, 1e-3);
  EXPECT_EQ(gpt.schedule.decay, LrDecay::kCosine);
  EXPECT_EQ(Updates({.model = "gpt-nano", .optimizer = "sgd"}).optimizer.kind, OptimizerKind::kSgd);
}

TEST(PlanUpdates, LinearScalingCountsTheSamplesInOneUpdate) {
  TrainingOptions options{.linear_scaling = true};
  for (const auto& [strategy, scale] :
       {std::pair{"ring", 4}, {"star", 4}, {"ps-sync", 4}, {"ps-async", 1}, {"none", 1}}) {
    options.strategy = strategy;
    EXPECT_EQ(Updates(options, 4).schedule.scale, scale) << strategy;
  }
  options.strategy = "single";
  options.reference_workers = 4;
  EXPECT_EQ(Updates(options).schedule.scale, 4);
  options.linear_scaling = false;
  EXPECT_EQ(Updates(options).schedule.scale, 1);
  EXPECT_EQ(Updates({.strategy = "ring", .micro_batches = 3, .linear_scaling = true}, 4).schedule.scale, 12);
  EXPECT_EQ(Updates({.strategy = "ps-async", .micro_batches = 3, .linear_scaling = true}, 4).schedule.scale,
            3);
  TrainingOptions stages{.strategy = "ring", .micro_batches = 4, .linear_scaling = true};
  stages.pp = 2;
  for (const auto& [program, scale] : {std::pair{"1f1b", 16}, {"pipedream", 4}, {"pipedream-2bw", 8}}) {
    stages.program = program;
    EXPECT_EQ(Updates(stages, 4).schedule.scale, scale) << program;
  }
}

TEST(PlanWarnings, WarnOfMomentumWithStaleGradients) {
  const auto warnings = [](const TrainingOptions& options) { return PlanWarnings(Updates(options)).size(); };
  EXPECT_EQ(warnings({.strategy = "ps-async", .momentum = .9}), 1);
  EXPECT_EQ(warnings({.strategy = "ps-async"}), 0);
  EXPECT_EQ(warnings({.strategy = "ps-ssp:2", .momentum = .9}), 1);
  EXPECT_EQ(warnings({.strategy = "ring", .momentum = .9}), 0);
  TrainingOptions stages{.strategy = "ring", .micro_batches = 4};
  stages.momentum = .9;
  stages.pp = 2;
  EXPECT_EQ(warnings(stages), 0);
  stages.program = "pipedream";
  const std::vector<std::string> warned = PlanWarnings(Updates(stages));
  ASSERT_EQ(warned.size(), 1);
  EXPECT_NE(warned[0].find("--momentum 0.9 with pipedream at"), std::string::npos) << warned[0];
}

TEST(PlanUpdates, WithoutAFlushTheDefaultsAreThoseOfStaleGradients) {
  TrainingOptions stages{.strategy = "ring", .micro_batches = 4};
  stages.pp = 2;
  stages.program = "pipedream";
  const UpdatePlan plan = Updates(stages), servers = Updates({.strategy = "ps-async"});
  EXPECT_EQ(plan.optimizer.kind, servers.optimizer.kind);
  EXPECT_EQ(plan.schedule.base, servers.schedule.base);
}

// The error of `options` with two workers, or as many as a strategy of one process has.
std::string Rejection(const TrainingOptions& options, int workers = 2) {
  return std::string(CheckStrategy(options, *FindStrategy(options.strategy), workers).message());
}

TEST(CheckStrategy, RejectsFlagsOfOtherStrategiesInOneLine) {
  for (const char* strategy : {"ring", "ps-sync", "ps-backup:1", "none"})
    EXPECT_EQ(Rejection({.strategy = strategy, .clip_norm = 1}), "");
  for (const char* strategy : {"ps-async", "ps-ssp:2"})
    EXPECT_THAT(Rejection({.strategy = strategy, .clip_norm = 1}),
                Has("--clip_norm is for synchronous strategies", strategy));
  EXPECT_EQ(Rejection({.strategy = "ps-async", .staleness_lr = "inverse"}), "");
  EXPECT_THAT(Rejection({.strategy = "ps-sync", .staleness_lr = "inverse"}),
              Has("--staleness_lr is for asynchronous"));
  EXPECT_THAT(Rejection({.strategy = "ring", .staleness_lr = "inverse"}), Has("ring"));
  for (const char* strategy : {"ring", "ps-async"})
    EXPECT_EQ(Rejection({.strategy = strategy, .wire = "float16"}), "");
  EXPECT_THAT(Rejection({.strategy = "none", .wire = "float16"}), Has("--wire sets the type"));
  EXPECT_EQ(Rejection({.strategy = "ring", .drop_last = "false"}), "");
  EXPECT_THAT(Rejection({.strategy = "ps-backup:1", .drop_last = "false"}), Has("--drop_last false"));
}

TEST(CheckStrategy, ShardsOfGradientsAreFloat32AndOnlyFsdpGathersWeights) {
  for (const char* strategy : {"zero2", "fsdp"}) {
    EXPECT_EQ(Rejection({.strategy = strategy, .recompute = true, .micro_batches = 3}), "");
    EXPECT_EQ(Rejection({.strategy = strategy, .wire = "bfloat16"}),
              absl::StrCat("--strategy ", strategy, " does not support --wire; omit it"));
    EXPECT_THAT(Rejection({.strategy = strategy, .cuda_graph = true}), Has("--cuda_graph"));
    EXPECT_THAT(Rejection({.strategy = strategy, .clock = "virtual"}), Has("--clock virtual"));
  }
  EXPECT_EQ(Rejection({.strategy = "fsdp", .reshard = "never"}), "");
  EXPECT_EQ(Rejection({.strategy = "zero2", .reshard = "never"}), "--reshard is for fsdp; omit it for zero2");
}

TEST(CheckStrategy, GroupsThatHaveOneCopyOfTheStateDivideTheReplicas) {
  for (const char* strategy : {"zero1", "zero2", "fsdp"}) {
    EXPECT_EQ(Rejection({.strategy = strategy, .dp_shard = 2}, 4), "");
    EXPECT_EQ(Rejection({.strategy = strategy, .dp_shard = 4}, 4), "");
    EXPECT_EQ(Rejection({.strategy = strategy, .dp_shard = 3}, 4),
              "--dp_shard 3 does not divide 4 replicas; use --dp_shard 2 or 4");
    EXPECT_THAT(Rejection({.strategy = strategy, .dp_shard = 2}, 1), Has("needs several replicas"));
    EXPECT_THAT(Rejection({.strategy = strategy, .dp_shard = 2, .clock = "virtual"}, 4),
                Has("omit it for --clock virtual"));
  }
  EXPECT_EQ(Rejection({.strategy = "ring", .dp_shard = 2}, 4),
            "--dp_shard is for zero1, zero2 and fsdp; omit it for --strategy ring");
}

TEST(CheckStrategy, OnlySingleHasMicroBatchesAndItIsOneProcess) {
  EXPECT_NE(Rejection({.strategy = "single"}, 2), "");
  EXPECT_EQ(Rejection({.strategy = "single", .reference_workers = 4}, 1), "");
  EXPECT_NE(Rejection({.strategy = "ring", .reference_workers = 4}, 1), "");
  EXPECT_EQ(Rejection({.strategy = "ring"}, 2), "");
}

TEST(CheckStrategy, OnlyAllReduceSharesStatistics) {
  const auto shared = [](TrainingOptions options) {
    options.sync_batch_norm = true;
    return Rejection(options, 1);
  };
  for (const char* strategy : {"ring", "gloo", "single", "none"})
    EXPECT_EQ(shared({.strategy = strategy}), "");
  EXPECT_EQ(shared({.strategy = "ps-ssp:2"}),
            "--sync_batch_norm with --strategy ps-ssp:2, whose workers have no process group; choose an "
            "all-reduce strategy such as ring, or omit it");
  EXPECT_THAT(shared({.strategy = "data-parallel"}),
              testing::StartsWith("--sync_batch_norm with --strategy data-parallel"));
  EXPECT_EQ(shared({.strategy = "ring", .backend = "mpi"}),
            "--sync_batch_norm with mpi, which has one call in progress at a time; choose native or gloo, or "
            "omit it");
  EXPECT_NE(shared({.strategy = "single", .reference_workers = 2}), "");
  EXPECT_NE(shared({.strategy = "ring", .drop_last = "false"}), "");
}

TEST(StatisticsNote, NamesTheBatchesOfEveryMode) {
  const auto of = [](const TrainingOptions& options, int workers = 2) {
    const std::string note = StatisticsNote(options, *FindStrategy(options.strategy), workers);
    constexpr char kBegin[] = "BatchNorm: evaluation uses the running statistics of ";
    EXPECT_EQ(note.find(kBegin), 0) << note;
    return note.substr(sizeof(kBegin) - 1);
  };
  EXPECT_EQ(of({.strategy = "single"}, 1), "all batches");
  EXPECT_EQ(of({.strategy = "ring"}), "rank 0's batches, which all ranks receive before every forward pass");
  EXPECT_EQ(of({.strategy = "ring", .broadcast_buffers = "false"}),
            "rank 0's batches; each rank has its own");
  EXPECT_EQ(of({.strategy = "ring", .sync_batch_norm = true}), "all ranks' batches (--sync_batch_norm)");
  for (const char* strategy : {"ps-sync", "ps-async", "none"})
    EXPECT_EQ(of({.strategy = strategy}), "rank 0's batches; each rank has its own");
  EXPECT_EQ(of({.strategy = "single", .reference_workers = 4}, 1),
            "the first of 4 workers' batches, as rank 0 would");
  EXPECT_EQ(of({.strategy = "data-parallel", .replicas = 3}, 1), "replica 0's batches");
}

TEST(PlanCheckpoints, FollowsFromWhatAnUpdateIs) {
  const auto plan = [](const char* strategy) {
    TrainingOptions options;
    options.strategy = strategy;
    return PlanCheckpoints(options, *FindStrategy(strategy));
  };
  const CheckpointPlan ring = plan("ring"), server = plan("ps-sync"), backup = plan("ps-backup:1"),
                       pushing = plan("ps-ssp:1"), hybrid = plan("hybrid");
  EXPECT_TRUE(ring.ranks_meet && ring.same_step && ring.barrier && !ring.pauses_updates);
  EXPECT_TRUE(!server.ranks_meet && server.same_step && !server.barrier && !server.pauses_updates);
  EXPECT_TRUE(!backup.ranks_meet && !backup.same_step && backup.barrier && !backup.pauses_updates);
  EXPECT_TRUE(pushing.ranks_meet && !pushing.same_step && !pushing.barrier && pushing.pauses_updates);
  EXPECT_TRUE(hybrid.ranks_meet && hybrid.same_step && hybrid.barrier && !hybrid.pauses_updates);
}

}  // namespace
}  // namespace psring
