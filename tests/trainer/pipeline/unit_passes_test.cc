// Units whose weights and gradients are in the blocks of a strategy.
#include "trainer/pipeline/unit_passes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/measure/trace.h"
#include "tests/common/ops/reference_ops.h"
#include "tests/trainer/cluster.h"
#include "trainer/models/batch_memory.h"
#include "trainer/models/replayed_model.h"
#include "trainer/programs/lower_program.h"
#include "trainer/programs/program_rows.h"

namespace psring {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::Not;

constexpr float kUnset = std::numeric_limits<float>::quiet_NaN();

// Has a block for every bucket, and adds up the gradients that it is given.
class AddingStrategy : public SyncStrategy, public UnitMemory {
 public:
  AddingStrategy(const std::vector<Bucket>& buckets, std::vector<float> weights)
      : sum(weights.size()),
        reductions(buckets.size()),
        buckets_(buckets),
        weights_(std::move(weights)),
        gradient_(weights_.size(), kUnset) {}

  absl::StatusOr<int64_t> Start(const TrainingState&) override { return 0; }
  absl::Status BeginStep(const StepInfo&) override { return absl::OkStatus(); }
  void GradientReady(absl::Span<const Bucket> ready, Event) override {
    for (const Bucket& bucket : ready) {
      ++reductions[static_cast<size_t>(bucket.index)];
      for (size_t i = bucket.first; i < bucket.first + bucket.count; ++i) {
        sum[i] += std::exchange(gradient_[i], kUnset);
      }
    }
  }
  absl::StatusOr<StepReport> FinishStep() override { return StepReport(); }
  absl::StatusOr<bool> Save(Span, const std::vector<Span>&) override { return false; }
  absl::Status Collect(Span) override { return absl::OkStatus(); }
  void Abort(absl::Status) override {}

  bool shards_weights() const override { return true; }
  absl::Status Unshard(int, const Event&) override { return absl::OkStatus(); }
  Span UseWeights(int bucket) override { return BlockOf(weights_, bucket); }
  void ForgetWeights() override {}
  Span BeginGradient(int bucket) override {
    const Span block = BlockOf(gradient_, bucket);
    std::fill_n(block.floats(), block.count, 0.f);
    return block;
  }
  absl::Status ReadWeights(const TakeBucket&) override { return absl::OkStatus(); }

  std::vector<float> sum;
  std::vector<int> reductions;  // by bucket

 private:
  Span BlockOf(std::vector<float>& all, int bucket) const {
    const Bucket& of = buckets_[static_cast<size_t>(bucket)];
    return {all.data() + of.first, of.count};
  }

  const std::vector<Bucket>& buckets_;
  std::vector<float> weights_, gradient_;
};

// Three layers, which are a unit each, and three micro-batches, of which the second is empty.
class UnitsInBlocks : public testing::Test {
 protected:
  UnitsInBlocks() {
    model_ = *ModelOf(SmallOptions("single"))->make(data_.spec(), *ops_);
    buckets_ = UnitBuckets(*model_, model_->CutPoints(), /*recompute=*/false);
    shards_.whole = {false, true, false};
    shards_.weights.keeps = {false, false, false};
    shards_.weights.blocks = {0, 1000, 0};
    auto adding = std::make_unique<AddingStrategy>(buckets_, model_->InitialWeights(1));
    adding_ = adding.get();
    strategy_.units = adding.get();
    strategy_.sync = std::move(adding);
  }

  UnitPasses::Parts Parts(bool divides_backward) {
    aside_.assign(
        UnitPasses::AsideElements(*model_, buckets_, shards_.whole, int{kMicroBatches}, divides_backward),
        kUnset);
    return {.model = *model_,
            .compute = *compute_,
            .ops = *ops_,
            .strategy = strategy_,
            .buckets = buckets_,
            .shards = &shards_,
            .aside = {aside_.data(), aside_.size()},
            .divides_backward = divides_backward};
  }

  // By passes over the entire model.
  std::vector<float> ExpectedSum() {
    const std::vector<float> weights = model_->InitialWeights(1);
    std::vector<float> sum(weights.size()), one(weights.size());
    Activations activations = *model_->NewActivations(kMaxBatch, Keep::kAll, *device_);
    BatchMemory memory = *BatchMemory::Create(data_.spec(), kMaxBatch, *device_);
    for (const std::vector<int64_t>& samples : kSamples) {
      const ModelState state{.weights = {weights.data(), weights.size()}};
      const Batch batch = *memory.Load(data_, samples, *compute_);
      EXPECT_TRUE(model_->Forward(state, batch, activations, memory.score(), *compute_).ok());
      EXPECT_TRUE(model_->Backward(state, batch, activations, {one.data(), one.size()}, *compute_).ok());
      for (size_t i = 0; i < sum.size(); ++i) sum[i] += one[i];
    }
    return sum;
  }

  // All forward passes, then the parts of backward, each of all micro-batches. Reduces a unit after each of
  // its gradients, or after the last if it is kept whole.
  void Run(UnitPasses& passes, const std::vector<BackwardPart>& parts) {
    const Keep keep = parts.size() > 1 ? Keep::kForWeights : Keep::kAll;
    std::vector<Activations> activations;
    std::vector<BatchMemory> memory;
    std::vector<Batch> batches;
    const ModelState state{};
    for (const std::vector<int64_t>& samples : kSamples) {
      activations.push_back(*model_->NewActivations(kMaxBatch, keep, *device_));
      memory.push_back(*BatchMemory::Create(data_.spec(), kMaxBatch, *device_));
      batches.push_back(*memory.back().Load(data_, samples, *compute_));
      for (size_t unit = 0; unit < 3; ++unit) {
        ASSERT_TRUE(passes.Forward(unit, {state, batches.back(), activations.back()}).ok());
      }
      ASSERT_TRUE(model_->Loss(batches.back(), activations.back(), memory.back().score(), *compute_).ok());
    }
    for (const BackwardPart part : parts) {
      for (size_t m = 0; m < kMicroBatches; ++m) {
        const ModelState of_part{.part = part};
        for (size_t unit = 3; unit-- > 0;) {
          ASSERT_TRUE(passes.Backward(unit, {of_part, batches[m], activations[m]}, Span()).ok());
          const bool is_whole = shards_.whole[passes.units().buckets[unit].first];
          if (part == BackwardPart::kInput || (is_whole && m + 1 < kMicroBatches)) continue;
          passes.Reduce(unit);
        }
      }
    }
  }

  void ExpectSums() {
    const std::vector<float> expected = ExpectedSum();
    EXPECT_LE(RelativeL2(adding_->sum, expected), 1e-6);
    EXPECT_THAT(adding_->reductions, ElementsAre(3, 1, 3));
    for (size_t i = 0; i < expected.size(); ++i) {
      ASSERT_EQ(adding_->sum[i] == 0, expected[i] == 0) << "padding stays zero: element " << i;
    }
  }

  static constexpr int kMaxBatch = 4;
  static constexpr size_t kMicroBatches = 3;
  const std::vector<std::vector<int64_t>> kSamples = {{3, 1, 4, 15}, {}, {9, 2, 6}};
  const Dataset& data_ = SmallData().train;
  const std::unique_ptr<Device> device_ = MakeCpuDevice();
  const std::unique_ptr<Ops> ops_ = MakeReferenceOps();
  const std::unique_ptr<Stream> compute_ = device_->NewStream(StreamKind::kCompute, "compute");
  std::unique_ptr<Model> model_;
  std::vector<Bucket> buckets_;
  ShardPlan shards_;
  std::vector<float> aside_;
  AddingStrategy* adding_ = nullptr;
  Strategy strategy_;
};

// Whose gathered weights arrive late.
class LateWeights : public AddingStrategy {
 public:
  using AddingStrategy::AddingStrategy;
  Span UseWeights(int bucket) override {
    absl::SleepFor(absl::Milliseconds(15));
    return AddingStrategy::UseWeights(bucket);
  }
};

TEST(UnitsOfARecording, TakeTheirTimeAfterTheyHaveWaited) {
  Workload recorded;
  recorded.batch = 1;
  recorded.forward_ms = recorded.backward_ms = 20;
  recorded.activation_bytes = 4;
  recorded.tensors = {{"block.1", 40, 10}, {"block.0", 40, 20}};
  const auto model = MakeReplayedModel(recorded);
  const std::vector<Bucket> buckets = UnitBuckets(*model, model->CutPoints(), /*recompute=*/false);
  ASSERT_EQ(buckets.size(), 2u);
  const std::unique_ptr<Device> device = MakeCpuDevice();
  const std::unique_ptr<Ops> ops = MakeReferenceOps();
  const std::unique_ptr<Stream> compute = device->NewStream(StreamKind::kCompute, "compute");
  Strategy strategy;
  auto late = std::make_unique<LateWeights>(buckets, model->InitialWeights(1));
  strategy.units = late.get();
  strategy.sync = std::move(late);
  UnitPasses passes(
      {.model = *model, .compute = *compute, .ops = *ops, .strategy = strategy, .buckets = buckets});
  const ModelState state{};
  const Batch batch{.size = 1};
  Activations activations;
  const int64_t begin_ns = MonotonicNanos();
  for (size_t unit = 0; unit < passes.units().layers.size(); ++unit) {
    ASSERT_TRUE(passes.Forward(unit, {state, batch, activations}).ok());
  }
  EXPECT_GE(1e-6 * static_cast<double>(MonotonicNanos() - begin_ns), 2 * 15 + 20);
}

TEST_F(UnitsInBlocks, KeepOneGradientWholeAndGiveAwayOthersForEachMicroBatch) {
  UnitPasses passes(Parts(/*divides_backward=*/false));
  Run(passes, {BackwardPart::kBoth});
  ExpectSums();
}

TEST_F(UnitsInBlocks, AddWhatTheFirstPartOfBackwardWritesToTheSecond) {
  UnitPasses passes(Parts(/*divides_backward=*/true));
  Run(passes, {BackwardPart::kInput, BackwardPart::kWeight});
  ExpectSums();
}

// The first and the last unit use one block, so the first one of the second micro-batch is gathered after the
// last one of the first.
TEST_F(UnitsInBlocks, WaitForTheBlockThatTheyUse) {
  UnitPasses passes(Parts(/*divides_backward=*/false));
  const StepProgram compute = *MakeStepProgram(*FindStepProgram("gpipe"), 2, 2);
  ModelCut cut = ModelCut::WholeStages(2);
  cut.units[0] = 3;
  cut.bucket_ends[0] = {2, 1, 0};
  std::vector<StepNode> nodes =
      WalkProgram(*LowerProgram(compute, cut, {.reduce_always = true, .shard_weights = true}))->nodes[0];
  passes.WaitForBlocks([](const StepAction& action) { return static_cast<size_t>(action.unit); }, nodes);
  const auto node_of = [&](const StepAction& action, size_t from) {
    const auto found = std::find_if(nodes.begin() + static_cast<std::ptrdiff_t>(from), nodes.end(),
                                    [&](const StepNode& node) { return node.action == action; });
    EXPECT_NE(found, nodes.end()) << ToText(action);
    return static_cast<size_t>(found - nodes.begin());
  };
  const size_t last_unit = node_of({StepKind::kForward, 0, 2, 0}, 0);
  EXPECT_THAT(nodes[node_of({StepKind::kUnshard, 0, 0}, last_unit)].after,
              Contains(static_cast<int>(last_unit)));
  EXPECT_THAT(nodes[node_of({StepKind::kUnshard, 0, 1}, last_unit)].after,
              Not(Contains(static_cast<int>(node_of({StepKind::kForward, 0, 0, 1}, last_unit)))));
}

}  // namespace
}  // namespace psring
