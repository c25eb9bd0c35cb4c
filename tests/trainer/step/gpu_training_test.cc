// Training on a GPU gives the results of the CPU. Built twice: on a fake CUDA runtime (fake_cuda.h), which
// runs on any machine and kills a process whose host code accesses device memory; and on CUDA, skipped
// without GPU.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "common/device_factory/make_device.h"
#include "tests/trainer/cluster.h"

namespace psring {
namespace {

struct GpuCase {
  std::string strategy;
  int workers;
  friend std::ostream& operator<<(std::ostream& out, const GpuCase& c) { return out << c.strategy; }
};

class OnGpu : public testing::Test {
 protected:
  void SetUp() override {
    const auto device = MakeDevice("cuda");
    if (!device.ok()) GTEST_SKIP() << device.status().message();
  }

  static std::vector<RankOutcome> Train(TrainingOptions options, int workers, const std::string& device) {
    options.device = device;
    return TrainRanks(options, workers, SmallData());
  }

  static void ExpectTheSame(const TrainingOptions& options, int workers, double tolerance = 1e-4) {
    const auto cpu = Train(options, workers, "cpu"), gpu = Train(options, workers, "cuda");
    for (size_t rank = 0; rank < gpu.size(); ++rank) {
      EXPECT_EQ(gpu[rank].result->device, "cuda:0");
      EXPECT_LT(RelativeL2(gpu[rank].weights, cpu[rank].weights), tolerance) << "rank " << rank;
      ASSERT_EQ(gpu[rank].steps.size(), cpu[rank].steps.size());
      for (size_t i = 0; i < gpu[rank].steps.size(); ++i) {
        const StepRecord& step = gpu[rank].steps[i];
        EXPECT_NEAR(step.loss, cpu[rank].steps[i].loss, 1e-3) << "step " << i;
        EXPECT_EQ(step.weights_hash, gpu[0].steps[i].weights_hash) << "replicas differ after step " << i;
        EXPECT_GT(step.compute_ms, 0);
        EXPECT_LE(step.compute_ms, step.step_ms + 5) << "the GPU's clock may differ by some ms";
        EXPECT_GE(step.exposed_comm_ms, 0);
        for (const BucketRecord& bucket : step.buckets) {
          EXPECT_GT(bucket.ready_ns, 0);
          EXPECT_LE(bucket.begin_ns, bucket.end_ns);
        }
      }
    }
  }
};

class GpuTraining : public OnGpu, public testing::WithParamInterface<GpuCase> {
 protected:
  int workers() const { return GetParam().workers; }
  TrainingOptions Options() const {
    TrainingOptions options = SmallOptions(GetParam().strategy);
    options.check_replicas = true;
    options.steps = 8;
    return options;
  }
};

// Each way of moving gradients to where they are added.
std::vector<GpuCase> Cases() {
  return {{"single", 1}, {"ring", 2},  {"ring", 3}, {"star", 3},    {"zero1", 2},
          {"zero1", 3},  {"zero2", 3}, {"fsdp", 3}, {"ps-sync", 1}, {"ps-sync", 3}};
}

INSTANTIATE_TEST_SUITE_P(Strategies, GpuTraining, testing::ValuesIn(Cases()), [](const auto& info) {
  std::string name = absl::StrCat(info.param.strategy, "_", info.param.workers);
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

TEST_P(GpuTraining, EqualsTheCpu) {
  TrainingOptions momentum = Options(), adam = momentum, clipped = momentum, convolutional = momentum;
  momentum.optimizer = "momentum";
  adam.optimizer = "adam";
  clipped.clip_norm = .3;
  clipped.steps = 4;
  convolutional.model = "cnn";
  convolutional.batch = 2;
  convolutional.steps = 2;
  convolutional.bucket_mb = .05;
  for (const TrainingOptions& options : {momentum, clipped, convolutional}) ExpectTheSame(options, workers());
  ExpectTheSame(adam, workers(), 1e-3);
}

TEST_P(GpuTraining, EvaluatesTheWeightsOfEachSnapshot) {
  TrainingOptions options = Options();
  options.evaluate = true;
  options.eval_every = 4;
  const auto cpu = Train(options, workers(), "cpu"), gpu = Train(options, workers(), "cuda");
  ASSERT_EQ(gpu[0].result->curve.size(), 2);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_NEAR(gpu[0].result->curve[i].test_loss, cpu[0].result->curve[i].test_loss, 1e-3);
    EXPECT_NEAR(gpu[0].result->curve[i].test_accuracy, cpu[0].result->curve[i].test_accuracy, .011);
  }
}

// Both devices round activations; because a CPU adds in another order, some differ in the last bit.
TEST_F(OnGpu, TrainsInBFloat16LikeTheCpu) {
  if (BFloat16Support() == BFloat16::kNone) GTEST_SKIP() << "no AVX-512 to compare with";
  for (const std::string strategy : {"single", "ring", "ps-sync"}) {
    for (const char* model : {"mlp-small", "cnn"}) {
      TrainingOptions options = SmallOptions(strategy);
      options.model = model;
      options.check_replicas = true;
      options.precision = "bfloat16";
      options.batch = 4;
      options.steps = 4;
      const int workers = strategy == "single" ? 1 : 2;
      const auto cpu = Train(options, workers, "cpu"), gpu = Train(options, workers, "cuda");
      EXPECT_LT(RelativeL2(gpu[0].weights, cpu[0].weights), 1e-2) << strategy << " " << model;
      for (const RankOutcome& outcome : gpu) EXPECT_EQ(outcome.weights, gpu[0].weights);
      options.precision = "float32";
      EXPECT_NE(Train(options, workers, "cuda")[0].weights, gpu[0].weights);
    }
  }
}

TEST_F(OnGpu, TrainsInTf32CloseToFloat32) {
  TrainingOptions options = SmallOptions("ring");
  options.check_replicas = true;
  const auto exact = Train(options, 2, "cuda");
  options.precision = "tf32";
  const auto tf32 = Train(options, 2, "cuda");
  EXPECT_NE(tf32[0].weights, exact[0].weights);
  EXPECT_LT(RelativeL2(tf32[0].weights, exact[0].weights), 1e-2);
  EXPECT_EQ(tf32[0].weights, tf32[1].weights);
}

// The same kernels on the same memory in the same order, so the same bits.
TEST_F(OnGpu, GraphsGiveTheBitsOfPlainTraining) {
  for (const std::string strategy : {"single", "none", "ring", "star", "zero1", "ps-sync"}) {
    for (const char* model : {"mlp-small", "cnn"}) {
      for (const std::string precision : {"float32", "bfloat16"}) {
        // What a step computes does not depend on the strategy.
        if (strategy != "single" && (model == std::string("cnn")) == (precision == "bfloat16")) continue;
        TrainingOptions options = SmallOptions(strategy);
        options.model = model;
        options.precision = precision;
        options.batch = 3;
        options.steps = 5;
        options.bucket_mb = .05;
        options.deterministic = strategy == "ps-sync";
        const int workers = strategy == "single" ? 1 : 2;
        const auto plain = Train(options, workers, "cuda");
        options.cuda_graph = true;
        const auto graphs = Train(options, workers, "cuda");
        for (size_t rank = 0; rank < graphs.size(); ++rank) {
          EXPECT_EQ(graphs[rank].weights, plain[rank].weights) << strategy << " " << model;
          ASSERT_EQ(graphs[rank].steps.size(), plain[rank].steps.size());
          for (size_t i = 0; i < graphs[rank].steps.size(); ++i) {
            EXPECT_EQ(graphs[rank].steps[i].loss, plain[rank].steps[i].loss) << "step " << i;
            EXPECT_EQ(graphs[rank].steps[i].buckets.size(), plain[rank].steps[i].buckets.size());
          }
        }
      }
    }
  }
}

// Numbers that change from step to step must not be recorded.
TEST_F(OnGpu, GraphsUpdateWithTheirStepsNumbers) {
  for (const std::string what : {"adam", "linear", "clipped"}) {
    TrainingOptions options = SmallOptions("single");
    options.steps = 8;
    if (what == "adam") options.optimizer = "adam";
    if (what == "linear") options.schedule = "linear";
    if (what == "clipped") options.clip_norm = .3;
    const auto plain = Train(options, 1, "cuda");
    options.cuda_graph = true;
    EXPECT_EQ(Train(options, 1, "cuda")[0].weights, plain[0].weights) << what;
  }
}

// Batches of several sizes and positions in a step have separate recordings.
TEST_F(OnGpu, GraphsExistForEveryKindOfBatch) {
  TrainingOptions options = SmallOptions("single");
  options.reference_workers = 2;
  options.micro_batches = 2;
  options.batch = 30;  // 400 samples: the last step of an epoch has 40
  options.drop_last = "false";
  options.steps = 12;
  options.evaluate = true;
  const auto plain = Train(options, 1, "cuda");
  options.cuda_graph = true;
  EXPECT_EQ(Train(options, 1, "cuda")[0].weights, plain[0].weights);
}

TEST_F(OnGpu, NativeSchedulesAddGradientsOnTheGpu) {
  for (const auto& [strategy, workers] :
       {std::pair("ring", 2), {"ring", 3}, {"star", 3}, {"zero1", 3}, {"zero2", 3}, {"fsdp", 3}}) {
    TrainingOptions options = SmallOptions(strategy);
    options.backend = "native";
    options.check_replicas = true;
    options.optimizer = "adam";
    options.steps = 8;
    ExpectTheSame(options, workers, 1e-3);
    for (const RankOutcome& outcome : Train(options, workers, "cuda"))
      EXPECT_EQ(outcome.result->payload, "cuda_peer on shared GPUs");
  }
}

TEST_F(OnGpu, MicroBatchesAndShortLastBatchesCountBySamples) {
  TrainingOptions options = SmallOptions("single");
  options.check_replicas = true;
  options.reference_workers = 3;
  options.batch = 30;  // 400 samples: the last step of an epoch has 40
  options.steps = 6;
  ExpectTheSame(options, 1);
}

TEST_F(OnGpu, AsynchronousAnd16BitPushesLearn) {
  TrainingOptions options = SmallOptions("ps-async");
  options.wire = "bfloat16";
  options.batch = 32;
  options.steps = 200;
  const auto gpu = Train(options, 2, "cuda");
  const auto mean_loss = [&](size_t first) {
    double sum = 0;
    for (size_t i = first; i < first + 20; ++i) sum += gpu[0].steps[i].loss;
    return sum / 20;
  };
  EXPECT_LT(mean_loss(180), .9 * mean_loss(0));
}

TEST_F(OnGpu, AReplayedWorkloadKeepsItsTimes) {
  const std::string file = absl::StrCat(testing::TempDir(), "/gpu_training-", getpid(), ".csv");
  std::ofstream(file) << "# forward_ms: 2\n# backward_ms: 9\n# batch: 4\n# device: none\n"
                         "name,bytes,ready_ms\nlast,4000,3\nfirst,8000,8\n";
  TrainingOptions options = SmallOptions("ring");
  options.workload = file;
  options.steps = 2;
  const auto gpu = Train(options, 2, "cuda");
  std::remove(file.c_str());
  EXPECT_GE(gpu[0].steps[0].compute_ms, 10.9);
}

}  // namespace
}  // namespace psring
