// Training by pipelines that update without a flush equals, bit for bit, one process that computes every
// gradient with the versions of the weights that the stages read. Ranks are threads.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <ostream>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/device_factory/make_ops.h"
#include "tests/trainer/cluster.h"
#include "tests/trainer/divided_training.h"
#include "tests/trainer/kept_training.h"
#include "trainer/data/sampler.h"
#include "trainer/data/sources.h"
#include "trainer/models/batch_memory.h"
#include "trainer/models/replayed_model.h"
#include "trainer/programs/pipeline_flags.h"
#include "trainer/step/plan/training_plan.h"

namespace psring {
namespace {

TrainingOptions Asynchronous(const std::string& program, int positions, int micro_batches,
                             const std::string& optimizer = "momentum") {
  TrainingOptions options = SmallOptions("single");
  options.model = "cnn";
  options.bucket_mb = .05;
  options.program = program;
  options.pp = positions;
  options.cuts = positions == 4 ? "1,2,4" : positions == 3 ? "1,2" : "2";
  options.micro_batches = micro_batches;
  options.batch = 4;
  options.steps = 3;
  options.optimizer = optimizer;
  if (optimizer == "momentum") options.momentum = .9;
  options.lr = .01;
  return options;
}

// The version that stage `stage` reads, by the definitions of the papers.
int VersionRead(const TrainingOptions& options, int stage, int micro_batch) {
  if (options.program == "pipedream") return std::max(0, micro_batch - (options.pp - 1 - stage));
  return std::max(0, micro_batch / options.pp - 1);
}

// The final weights of one process with the whole model. Steps end with a flush.
std::vector<float> WithDelayedUpdates(const TrainingOptions& options, int replicas, const DataSplits& data) {
  const std::unique_ptr<Device> device = MakeCpuDevice();
  const std::unique_ptr<Ops> ops = *MakeOps(*device, options.threads, Precision::kFloat32);
  const std::unique_ptr<Stream> stream = device->NewStream(StreamKind::kCompute, "compute");
  const SampleSpec& samples = data.train.spec();
  const ModelRow row = *ModelOf(options);
  const std::unique_ptr<Model> model = *row.make(samples, *ops);
  Activations activations = *model->NewActivations(options.batch, Keep::kAll, *device);
  BatchMemory memory = *BatchMemory::Create(samples, options.batch, *device);
  const StepPlan plan = *PlanSteps(options, data.train.count(), replicas, samples.labels);
  const UpdatePlan updates = *PlanUpdates(options, *FindStrategy(options.strategy), row, plan);
  const std::vector<size_t> cuts = *ParseCuts(options.cuts, options.pp);
  std::vector<LayerRange> stages;
  for (const size_t cut : cuts) {
    stages.push_back({stages.empty() ? 0 : stages.back().end, cut});
  }
  stages.push_back({stages.back().end, model->layers()});
  const int every = options.program == "pipedream" ? 1 : options.pp;

  std::vector<DistributedSampler> samplers;
  for (int rank = 0; rank < replicas; ++rank) {
    samplers.emplace_back(SamplerOptions{.count = data.train.count(),
                                         .rank = rank,
                                         .world_size = replicas,
                                         .batch = options.batch,
                                         .micro_batches = options.micro_batches,
                                         .predictions = samples.labels,
                                         .seed = options.seed,
                                         .drop_last = options.drop_last == "true"});
  }
  const std::vector<float> initial = model->InitialWeights(options.seed);
  const Optimizer optimizer = *Optimizer::Create(updates.optimizer, *device, initial.size());
  const size_t bytes = initial.size() * sizeof(float);
  const Buffer newest = *device->Allocate(bytes), gradient = *device->Allocate(bytes),
               sum = *device->Allocate(bytes);
  std::vector<Buffer> read;  // by stage
  for (size_t stage = 0; stage < stages.size(); ++stage) read.push_back(*device->Allocate(bytes));
  std::copy(initial.begin(), initial.end(), newest.span().floats());
  const auto values = [&] {
    return std::vector<float>(newest.span().floats(), newest.span().floats() + initial.size());
  };
  int64_t made = 0, samples_before = 0;
  for (int64_t step = 0; step < plan.total_steps(); ++step) {
    std::vector<SampledStep> drawn;
    for (DistributedSampler& sampler : samplers) drawn.push_back(sampler.Next());
    std::vector<std::vector<float>> versions = {values()};
    std::fill_n(sum.span().floats(), initial.size(), 0.f);
    int64_t samples_of_update = 0;
    for (int m = 0; m < options.micro_batches; ++m) {
      for (size_t stage = 0; stage < stages.size(); ++stage) {
        const std::vector<float>& from = versions[VersionRead(options, static_cast<int>(stage), m)];
        std::copy(from.begin(), from.end(), read[stage].span().floats());
      }
      for (const SampledStep& of_rank : drawn) {
        if (of_rank.batches[m].empty()) continue;
        const Batch batch = *memory.Load(data.train, of_rank.batches[m], *stream);
        for (size_t stage = 0; stage < stages.size(); ++stage) {
          const ModelState state{.weights = read[stage].span()};
          EXPECT_TRUE(model->ForwardUnit(stages[stage], state, batch, activations, *stream).ok());
        }
        EXPECT_TRUE(model->Loss(batch, activations, memory.score(), *stream).ok());
        for (size_t stage = stages.size(); stage-- > 0;) {
          const ModelState state{.weights = read[stage].span()};
          EXPECT_TRUE(
              model->BackwardUnit(stages[stage], state, batch, activations, gradient.span(), *stream).ok());
        }
        for (size_t i = 0; i < initial.size(); ++i) sum.span().floats()[i] += gradient.span().floats()[i];
        samples_of_update += static_cast<int64_t>(of_rank.batches[m].size()) * samples.labels;
      }
      if ((m + 1) % every != 0 && m + 1 < options.micro_batches) continue;
      ++made;
      if (samples_of_update > 0) {
        optimizer.Apply(0, newest.span(), sum.span(), samples_of_update,
                        LearningRate(updates.schedule, samples_before), made, *ops, *stream);
      }
      samples_before += std::exchange(samples_of_update, 0);
      versions.push_back(values());
      std::fill_n(sum.span().floats(), initial.size(), 0.f);
    }
  }
  EXPECT_TRUE(stream->Synchronize().ok());
  return values();
}

struct Course {
  const char* program;
  int positions, micro_batches;
  const char* optimizer;
};
std::ostream& operator<<(std::ostream& out, const Course& course) {
  return out << course.program << " on " << course.positions << " ranks, " << course.micro_batches
             << " micro-batches, " << course.optimizer;
}
class PipelinesWithoutFlush : public testing::TestWithParam<Course> {
 protected:
  static TrainingOptions Options() {
    const auto& [program, positions, micro_batches, optimizer] = GetParam();
    return Asynchronous(program, positions, micro_batches, optimizer);
  }
};

TEST_P(PipelinesWithoutFlush, EqualDelayedUpdatesBitForBit) {
  const TrainingOptions options = Options();
  const auto ranks = RunPipelines(options, 1, SmallData());
  EXPECT_EQ(WeightsOf(ranks), WithDelayedUpdates(options, 1, SmallData()));
  for (const RankOutcome& rank : ranks) EXPECT_EQ(rank.weights, ranks[0].weights);
}

// Of every rank, as the servers' staleness is.
TEST_P(PipelinesWithoutFlush, RecordTheStalenessOfTheirStages) {
  const TrainingOptions options = Options();
  const auto ranks = RunPipelines(options, 1, SmallData());
  for (int stage = 0; stage < options.pp; ++stage) {
    const RankOutcome& rank = ranks[stage];
    ASSERT_TRUE(rank.result.ok()) << rank.result.status();
    const int every = options.program == "pipedream" ? 1 : options.pp;
    int64_t sum = 0, most = 0;
    for (int m = 0; m < options.micro_batches; ++m) {
      const int64_t staleness = m / every - VersionRead(options, stage, m);
      sum += staleness;
      most = std::max(most, staleness);
    }
    EXPECT_EQ(rank.result->staleness_max, most);
    EXPECT_EQ(rank.result->staleness_sum * options.micro_batches, rank.result->pushes * sum);
    const size_t updates = static_cast<size_t>((options.micro_batches + every - 1) / every);
    for (const StepRecord& step : rank.steps) {
      EXPECT_EQ(step.buckets.size(), updates * rank.result->bucket_elements.size());
      ExpectNoTimeCountedTwice(step);
    }
  }
}

// More and fewer micro-batches than ranks.
INSTANTIATE_TEST_SUITE_P(Programs, PipelinesWithoutFlush,
                         testing::Values(Course{"pipedream", 2, 5, "sgd"}, Course{"pipedream", 3, 2, "adam"},
                                         Course{"pipedream", 4, 8, "momentum"},
                                         Course{"pipedream-2bw", 2, 7, "adam"},
                                         Course{"pipedream-2bw", 3, 9, "sgd"},
                                         Course{"pipedream-2bw", 4, 3, "momentum"}));

TEST(PipelineWithoutFlush, OfOneMicroBatchEqualsOneRank) {
  for (const char* program : {"pipedream", "pipedream-2bw"}) {
    const TrainingOptions options = Asynchronous(program, 3, 1, "adam");
    EXPECT_EQ(WeightsOf(RunPipelines(options, 1, SmallData())), OneProcess(options, 1, SmallData()).weights);
  }
}

TEST(PipelineWithoutFlush, DiffersFromOneWithAFlush) {
  const TrainingOptions options = Asynchronous("pipedream", 2, 5);
  EXPECT_NE(WeightsOf(RunPipelines(options, 1, SmallData())), OneProcess(options, 1, SmallData()).weights);
}

TEST(PipelineWithoutFlush, WithOneCopyStreamHasTheSameBits) {
  TrainingOptions options = Asynchronous("pipedream", 3, 6);
  options.copy_streams = 1;
  EXPECT_EQ(WeightsOf(RunPipelines(options, 1, SmallData())), WithDelayedUpdates(options, 1, SmallData()));
}

// 25 samples: of the last step a micro-batch has one sample and the others none, which make no update.
TEST(PipelineWithoutFlush, CountsEverySampleOnceInAShortLastBatch) {
  const DataSplits data = MakeSyntheticData({.height = 8, .width = 8, .train = 25, .test = 10}, /*seed=*/5);
  for (const char* program : {"pipedream", "pipedream-2bw"}) {
    SCOPED_TRACE(program);
    TrainingOptions options = Asynchronous(program, 2, 3);
    options.drop_last = "false";
    options.schedule = "linear";
    options.steps = 0;
    options.epochs = 2;
    EXPECT_EQ(WeightsOf(RunPipelines(options, 1, data)), WithDelayedUpdates(options, 1, data));
  }
}

// Each stage sums the gradients of an update over the replicas.
TEST(PipelineWithoutFlush, TimesDataParallelismEqualsDelayedUpdatesUpToRounding) {
  for (const char* program : {"pipedream", "pipedream-2bw"}) {
    SCOPED_TRACE(program);
    TrainingOptions options = Asynchronous(program, 2, 4);
    options.strategy = "ring";
    options.check_replicas = true;
    const auto ranks = RunPipelines(options, 2, SmallData());
    EXPECT_LE(RelativeL2(WeightsOf(ranks), WithDelayedUpdates(options, 2, SmallData())), 1e-5);
    std::set<std::string> hashes;
    for (const RankOutcome& rank : ranks) {
      EXPECT_EQ(rank.weights, ranks[0].weights);
      for (const StepRecord& step : rank.steps) hashes.insert(step.weights_hash);
    }
    EXPECT_EQ(hashes.size(), static_cast<size_t>(options.steps)) << "equal on all ranks after each step";
    EXPECT_EQ(WeightsOf(RunPipelines(options, 2, SmallData())), ranks[0].weights) << "a replay";
  }
}

TEST(PipelineWithoutFlush, ResumesAndCountsItsUpdates) {
  TrainingOptions options = Asynchronous("pipedream", 2, 3, "adam");
  options.steps = 4;
  options.evaluate = true;
  options.eval_every = 2;
  options.checkpoint_dir = "kept";
  options.checkpoint_every = 2;
  KeptSteps kept, rest;
  const auto ranks = KeepReplicas(options, 1, SmallData(), kept);
  const std::vector<float> end = WeightsOf(ranks);
  EXPECT_EQ(ranks[0].result->curve.back().updates, 4 * 3);
  ASSERT_TRUE(kept.contains(2));
  EXPECT_EQ(WeightsOf(KeepReplicas(options, 1, SmallData(), rest, &kept[2])), end);
}

// The sum of a tied tensor's gradients has another order. Its two copies have different versions in flight.
TEST(PipelineWithoutFlush, WithATiedTensorEqualsDelayedUpdatesUpToRounding) {
  for (const auto& [program, positions, copy_streams] :
       {std::tuple{"pipedream", 2, 2}, {"pipedream", 4, 1}, {"pipedream-2bw", 4, 2}}) {
    SCOPED_TRACE(absl::StrCat(program, " on ", positions, " ranks"));
    TrainingOptions options = TinyGpt("single");
    options.layers = 4;
    options.cuts = EvenCuts(options, static_cast<size_t>(positions));
    options.program = program;
    options.pp = positions;
    options.micro_batches = 6;
    options.copy_streams = copy_streams;
    options.batch = 2;
    options.steps = 2;
    options.optimizer = "sgd";
    options.lr = .1;
    const auto ranks = RunPipelines(options, 1, SmallText());
    EXPECT_LE(RelativeL2(WeightsOf(ranks), WithDelayedUpdates(options, 1, SmallText())), 1e-6);
    EXPECT_EQ(WeightsOf(RunPipelines(options, 1, SmallText())), ranks[0].weights) << "a replay";
  }
}

TEST(PipelineWithServers, WithoutWaitingOfOneReplicaEqualsOneRank) {
  TrainingOptions options = Asynchronous("1f1b", 2, 3, "sgd");
  options.lr = .05;
  const TrainingOptions alone = options;
  options.strategy = "ps-async";
  EXPECT_LE(
      RelativeL2(WeightsOf(RunPipelines(options, 1, SmallData())), OneProcess(alone, 1, SmallData()).weights),
      1e-6);
}

// The servers of the first stage decide when all are done.
TEST(PipelineWithServers, WithoutWaitingReplicasShareTheSteps) {
  TrainingOptions options = Asynchronous("1f1b", 2, 2, "sgd");
  options.strategy = "ps-async";
  options.lr = .05;
  options.steps = 8;
  options.evaluate = true;
  options.eval_every = 2;
  const auto ranks = RunPipelines(options, 2, SmallData());
  const std::vector<float> weights = WeightsOf(ranks);
  for (const RankOutcome& rank : ranks) {
    EXPECT_EQ(rank.weights, weights);
    EXPECT_GT(rank.result->pushes, 0);
  }
  for (size_t replica = 0; replica < 2; ++replica) {  // ranks 2 and 3 have the second stage
    EXPECT_EQ(ranks[replica].steps.size(), ranks[2 + replica].steps.size());
  }
  EXPECT_EQ(ranks[0].steps.size() + ranks[1].steps.size(), 2 * 8);
  EXPECT_EQ(ranks[0].result->curve.back().updates, 2 * 8);
}

}  // namespace
}  // namespace psring
