// The step's program: its units, its gradient, and when buckets are passed on.
#include "trainer/step/executor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/common/ops/reference_ops.h"
#include "tests/trainer/cluster.h"
#include "trainer/models/replayed_model.h"
#include "trainer/step/plan/training_plan.h"

namespace psring {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::Pair;

// The first layer of each unit.
std::vector<size_t> BeginsOf(const StepUnits& units) {
  std::vector<size_t> begins;
  size_t end = 0;
  for (const LayerRange& layers : units.layers) {
    EXPECT_EQ(layers.first, end) << "units are consecutive";
    begins.push_back(layers.first);
    end = layers.end;
  }
  return begins;
}

const std::vector<Bucket> kFourBuckets = {{0, 90, 10}, {1, 80, 10}, {2, 30, 50}, {3, 0, 30}};

TEST(PlanUnits, EndsThemWhereBucketsAreComplete) {
  // The last layer has a part of bucket 0, and the one before it the rest and bucket 1.
  const StepUnits units = PlanUnits({{0, 31}, {31, 49}, {80, 15}, {95, 5}}, kFourBuckets);
  EXPECT_THAT(BeginsOf(units), ElementsAre(0, 2));
  EXPECT_THAT(units.buckets, ElementsAre(Pair(2, 4), Pair(0, 2)));
  EXPECT_EQ(units.units_of(0), 2);
  EXPECT_THAT(units.BucketEnds(0), ElementsAre(1, 0));
}

TEST(PlanUnits, PassesBucketsOnInOrder) {
  // Bucket 3 is complete first, but every rank must send bucket 0 first.
  const StepUnits units = PlanUnits({{50, 30}, {80, 10}, {90, 10}, {30, 20}, {0, 30}}, kFourBuckets);
  EXPECT_THAT(BeginsOf(units), ElementsAre(0, 1, 2));
  EXPECT_THAT(units.buckets, ElementsAre(Pair(2, 4), Pair(1, 2), Pair(0, 1)));
  EXPECT_EQ(units.layers.back().end, 5);
}

TEST(PlanUnits, DoesNotWaitForLayersWithoutWeights) {
  const StepUnits units = PlanUnits({{}, {}, {0, 40}, {}, {40, 60}, {}}, {{0, 40, 60}, {1, 0, 40}});
  EXPECT_THAT(BeginsOf(units), ElementsAre(0, 2, 4));
  EXPECT_THAT(units.buckets, ElementsAre(Pair(2, 2), Pair(1, 2), Pair(0, 1)));
  EXPECT_THAT(units.BucketEnds(0), ElementsAre(2, 1));
}

TEST(PlanUnits, AModelWithoutBucketsIsOneUnit) {
  const StepUnits units = PlanUnits({{}, {}}, {});
  EXPECT_THAT(BeginsOf(units), ElementsAre(0));
  EXPECT_THAT(units.BucketEnds(0), IsEmpty());
}

// Copies the elements of the buckets it is given.
class NotingStrategy : public SyncStrategy {
 public:
  explicit NotingStrategy(const std::vector<float>& gradient) : seen(gradient.size()), gradient_(gradient) {}

  absl::StatusOr<int64_t> Start(const TrainingState&) override { return 0; }
  absl::Status BeginStep(const StepInfo&) override { return absl::OkStatus(); }
  void GradientReady(absl::Span<const Bucket> ready, Event event) override {
    EXPECT_TRUE(event.Happened());
    calls.emplace_back();
    for (const Bucket& bucket : ready) {
      calls.back().push_back(bucket.index);
      std::copy_n(gradient_.begin() + static_cast<int64_t>(bucket.first), bucket.count,
                  seen.begin() + static_cast<int64_t>(bucket.first));
    }
  }
  absl::StatusOr<StepReport> FinishStep() override { return StepReport(); }
  absl::StatusOr<bool> Save(Span, const std::vector<Span>&) override { return false; }
  absl::Status Collect(Span) override { return absl::OkStatus(); }
  void Abort(absl::Status) override {}

  std::vector<float> seen;              // the gradient, when its buckets were passed on
  std::vector<std::vector<int>> calls;  // the buckets of each

 private:
  const std::vector<float>& gradient_;
};

// A small model with three buckets, of which the first ends within a layer.
class ExecutedStep : public testing::Test {
 protected:
  static constexpr int kMaxBatch = 4;

  ExecutedStep() {
    options_.micro_batches = 3;
    model_ = *ModelOf(options_)->make(data_.spec(), *ops_);
    activations_ = *model_->NewActivations(kMaxBatch, Keep::kAll, *device_);
    batches_ = *BatchMemory::Create(data_.spec(), kMaxBatch, *device_);
    weights_ = model_->InitialWeights(1);
    gradient_.resize(weights_.size());
    buckets_ = PlanBuckets(model_->parameters(), TensorsByReadiness(*model_), BucketSizesOf(options_));
    auto noting = std::make_unique<NotingStrategy>(gradient_);
    noting_ = noting.get();
    strategy_.sync = std::move(noting);
  }

  void MakeExecutor() {
    executor_ = *Executor::Create(options_, {.device = *device_,
                                             .compute = *compute_,
                                             .ops = *ops_,
                                             .model = *model_,
                                             .program = program_,
                                             .samples = data_.spec(),
                                             .max_batch = kMaxBatch,
                                             .delay = delay_,
                                             .strategy = strategy_,
                                             .buckets = buckets_,
                                             .weights = {weights_.data(), weights_.size()},
                                             .gradient = {gradient_.data(), gradient_.size()},
                                             .buffers = {}});
  }

  void Run(const SampledStep& drawn) {
    noting_->calls.clear();
    const absl::Status run = executor_->Run(data_, drawn, {}, /*delay_step=*/0);
    ASSERT_TRUE(run.ok()) << run;
    ASSERT_TRUE(compute_->Synchronize().ok());
  }

  // By passes over the entire model.
  std::vector<float> GradientOf(const std::vector<int64_t>& samples) {
    std::vector<float> gradient(weights_.size());
    const ModelState state{.weights = {weights_.data(), weights_.size()}};
    const Batch batch = *batches_.Load(data_, samples, *compute_);
    EXPECT_TRUE(model_->Forward(state, batch, activations_, batches_.score(), *compute_).ok());
    EXPECT_TRUE(
        model_->Backward(state, batch, activations_, {gradient.data(), gradient.size()}, *compute_).ok());
    return gradient;
  }

  const Dataset& data_ = SmallData().train;
  TrainingOptions options_ = SmallOptions("single");
  const std::unique_ptr<Device> device_ = MakeCpuDevice();
  const std::unique_ptr<Ops> ops_ = MakeReferenceOps();
  const std::unique_ptr<Stream> compute_ = device_->NewStream(StreamKind::kCompute, "compute");
  std::unique_ptr<Model> model_;
  Activations activations_;
  BatchMemory batches_;
  const NamedProgram program_ = *FindStepProgram("single_stage");
  ComputeDelay delay_ = *ComputeDelay::Create(TrainingOptions(), /*worker=*/0, MonotonicNanos);
  std::vector<float> weights_, gradient_;
  std::vector<Bucket> buckets_;
  NotingStrategy* noting_ = nullptr;
  Strategy strategy_;
  std::unique_ptr<Executor> executor_;
};

TEST_F(ExecutedStep, AddsUpTheGradientsOfItsBatchesAndPassesCompleteBucketsOn) {
  MakeExecutor();
  for (const std::vector<std::vector<int64_t>>& batches :
       {std::vector<std::vector<int64_t>>{{0, 1, 2}, {3, 4, 5, 6}, {}}, {{7}, {8, 9}, {10, 11}}}) {
    std::vector<float> expected = GradientOf(batches[0]);
    for (const size_t i : {1, 2}) {
      const std::vector<float> more = GradientOf(batches[i]);
      for (size_t e = 0; e < expected.size(); ++e) expected[e] += more[e];
    }
    Run({.batches = batches});
    EXPECT_EQ(gradient_, expected);
    EXPECT_EQ(noting_->seen, expected) << "a bucket is complete when it is passed on";
    EXPECT_THAT(noting_->calls, ElementsAre(ElementsAre(0, 1), ElementsAre(2))) << "two at once";
  }
}

TEST_F(ExecutedStep, IsTheProgramSingleStage) {
  options_.micro_batches = 2;
  options_.clip_norm = 1;
  MakeExecutor();
  std::string text;
  for (const PlannedNode& node : executor_->nodes()) text += ToText(node.action) + " ";
  EXPECT_EQ(text,
            "0LOAD0 0.0F0 0.1F0 0.1B0 0.0B0 "
            "0LOAD1 0.0F1 0.1F1 0.1B1 0.1REDUCE_GRAD 0.0B1 0.0REDUCE_GRAD 0NORM 0.1UPDATE 0.0UPDATE ");
}

TEST_F(ExecutedStep, TimesAllComputationsOfTheFirst100Steps) {
  MakeExecutor();
  for (int step = 0; step <= 100; ++step) {
    Run({.batches = {{0}, {1}, {2}}});
    const RankTimes times = executor_->Times();
    ASSERT_EQ(times.units.size(), step < 100 ? 12 : 0);  // both passes of two units, of three batches
    ASSERT_EQ(times.passes.size(), 6);
    int64_t before = 1;
    for (const auto& [action, time] : times.units) {
      ASSERT_GE(time.begin_ns, before) << ToText(action);
      ASSERT_GE(time.end_ns, time.begin_ns) << ToText(action);
      before = time.end_ns;
    }
    int64_t computed_ns = 0;
    before = 1;
    for (size_t i = 0; i < times.passes.size(); ++i) {
      const auto& [action, time] = times.passes[i];
      EXPECT_EQ(action.kind, i % 2 == 0 ? StepKind::kForward : StepKind::kBackward);
      EXPECT_GE(time.begin_ns, before);
      EXPECT_GE(time.end_ns, time.begin_ns);
      before = time.end_ns;
      computed_ns += time.end_ns - time.begin_ns;
    }
    EXPECT_EQ(times.compute_ns, computed_ns);
  }
}

}  // namespace
}  // namespace psring
