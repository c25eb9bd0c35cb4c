// When checkpoints are written, and how a rank continues from one.
#include "trainer/step/checkpointer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/kept_files.h"
#include "tests/trainer/checkpoints/small_checkpoint.h"
#include "tests/trainer/cluster.h"

namespace psring {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

// Its weights are SmallValues.
class SavedWeights : public SyncStrategy {
 public:
  explicit SavedWeights(const bool& is_of_step) : is_of_step_(is_of_step) {}
  absl::StatusOr<int64_t> Start(const TrainingState&) override { return 0; }
  absl::Status BeginStep(const StepInfo&) override { return absl::OkStatus(); }
  void GradientReady(absl::Span<const Bucket>, Event) override {}
  absl::StatusOr<StepReport> FinishStep() override { return StepReport(); }
  absl::StatusOr<bool> Save(Span weights, const std::vector<Span>&) override {
    const std::vector<float> values = SmallValues();
    std::copy(values.begin(), values.end(), weights.floats());
    return is_of_step_;
  }
  absl::Status Collect(Span) override { return absl::OkStatus(); }
  void Abort(absl::Status) override {}

 private:
  const bool& is_of_step_;
};

// Bytes of a checkpoint, as they are read from its folder.
CheckpointBytes ReadBack(const CheckpointFiles& written) {
  const std::map<std::string, std::string> files(written.begin(), written.end());
  return {.path = "here",
          .position = files.at(kPositionFile),
          .model = files.at(kModelFile),
          .optimizer = files.at(kOptimizerFile),
          .has_optimizer = true};
}

class CheckpointerTest : public testing::Test {
 protected:
  CheckpointerTest() {
    options_.checkpoint_dir = "unused";
    options_.checkpoint_every = 4;
    strategy_.sync = std::make_unique<SavedWeights>(is_of_step_);
    worker_.stops = [this] { return clock_.next() == stops_before_; };
    worker_.save = [this](int64_t step, const CheckpointContent& content) {
      saved_.emplace_back(step, ReadBack(FilesOf(content)));
      return absl::OkStatus();
    };
    worker_.on_note = [this](const std::string& note) { notes_.push_back(note); };
  }

  // The run of SmallCheckpoint by one worker.
  Checkpointer Make(const Resumption& resumption = {}) {
    TrainingPosition run = SmallCheckpoint(OptimizerKind::kSgd).position;
    run.workers = 1;
    run.drawn_batch = plan_.drawn_batch;
    run.worker_steps = {};
    return Checkpointer({.options = options_,
                         .worker = worker_,
                         .is_first_rank = true,
                         .plan = PlanCheckpoints(options_, row_),
                         .run = run,
                         .steps_per_epoch = plan_.steps_per_epoch,
                         .total_steps = plan_.total_steps(),
                         .resumption = resumption,
                         .clock = clock_,
                         .strategy = strategy_,
                         .rows = rows_,
                         .buffers = *buffers_,
                         .layout = layout_,
                         .weights = {},
                         .part = nullptr,
                         .replica = nullptr,
                         .same_stages = nullptr});
  }
  // Until the end, or an error.
  absl::Status Train(Checkpointer& checkpointer) {
    while (!clock_.is_over()) {
      const int64_t before = clock_.checkpoint_step();
      clock_.Finish({});
      PSRING_RETURN_IF_ERROR(checkpointer.SaveIfDue(before));
    }
    return checkpointer.SaveLast();
  }
  std::vector<int64_t> SavedSteps() const {
    std::vector<int64_t> steps;
    for (const auto& [step, bytes] : saved_) steps.push_back(step);
    return steps;
  }

  TrainingOptions options_ = SmallOptions("single");
  const StrategyRow row_ = FindStrategy("single").value();
  const std::unique_ptr<Device> device_ = MakeCpuDevice();
  const std::unique_ptr<Stream> compute_ = device_->NewStream(StreamKind::kCompute, "compute");
  Trace trace_{0};
  Worker worker_{.device = *device_, .data = SmallData(), .trace = trace_};
  const ParameterLayout layout_ = SmallLayout();
  const StepPlan plan_ = {
      .steps = 10, .global_batch = 4, .drawn_batch = 4, .steps_per_epoch = 5, .epoch_samples = 20};
  TrainingClock clock_{plan_, /*workers=*/1, {}};
  Strategy strategy_;
  TableRows rows_{{layout_, worker_.data, row_, plan_, trace_, 0}, nullptr};
  const std::unique_ptr<ModelBuffers> buffers_ =
      ModelBuffers::Create(worker_, layout_, *compute_, /*kept_every=*/0).value();
  bool is_of_step_ = true;
  int64_t stops_before_ = -1;
  std::vector<std::pair<int64_t, CheckpointBytes>> saved_;
  std::vector<std::string> notes_;
};

TEST_F(CheckpointerTest, SavesEverySoManyStepsAndTheLast) {
  Checkpointer checkpointer = Make({.sequence = 7});
  ASSERT_TRUE(Train(checkpointer).ok());
  ASSERT_THAT(SavedSteps(), ElementsAre(4, 8, 10));
  const TrainingCheckpoint second = DecodeCheckpoint(saved_[1].second, layout_).value();
  EXPECT_EQ(second.weights, SmallValues());
  EXPECT_EQ(second.position.step, 8);
  EXPECT_EQ(second.position.updates, 8);
  EXPECT_EQ(second.position.samples, 32);
  EXPECT_EQ(second.position.epoch, 1);
  EXPECT_EQ(second.position.epoch_samples, 12);
  EXPECT_EQ(second.position.sequence, 9) << "the second after the newest";
}

TEST_F(CheckpointerTest, SavesOnceWhenItIsStopped) {
  for (const int64_t stops_before : {3, 4}) {  // a checkpoint of step 4 is due anyway
    clock_.BeginAt(0);
    saved_.clear();
    stops_before_ = stops_before;
    Checkpointer checkpointer = Make();
    const absl::Status stopped = Train(checkpointer);
    EXPECT_EQ(stopped.code(), absl::StatusCode::kCancelled);
    EXPECT_EQ(stopped.message(),
              absl::StrCat("stopped by a signal after writing a checkpoint of step ", stops_before));
    EXPECT_THAT(SavedSteps(), ElementsAre(stops_before));
  }
}

TEST_F(CheckpointerTest, DoesNotSaveWhatIsOfAnotherStep) {
  is_of_step_ = false;
  Checkpointer checkpointer = Make();
  ASSERT_TRUE(Train(checkpointer).ok());
  EXPECT_THAT(SavedSteps(), IsEmpty());
}

TEST_F(CheckpointerTest, WithoutAFolderItDoesNotEvenStop) {
  options_.checkpoint_dir = "";
  stops_before_ = 3;
  Checkpointer checkpointer = Make();
  ASSERT_TRUE(Train(checkpointer).ok());
  EXPECT_THAT(SavedSteps(), IsEmpty());
}

TEST_F(CheckpointerTest, LoadsWhatItSaved) {
  Checkpointer before = Make();
  std::vector<float> weights = {1};
  EXPECT_THAT(before.Load(weights).value().state.weights, IsEmpty());
  EXPECT_THAT(weights, ElementsAre(1)) << "there is no checkpoint";
  clock_.Finish({});
  ASSERT_TRUE(before.SaveLast().ok());

  worker_.resume = &saved_[0].second;
  Checkpointer after = Make({.plan = {.step = 10, .samples = 40, .notes = {"a note"}}});
  ASSERT_TRUE(after.Load(weights).ok());
  EXPECT_EQ(weights, SmallValues());
  EXPECT_THAT(notes_, ElementsAre("resumed after step 10 of 10 (40 samples)", "a note"));
}

TEST(Resumption, EachWorkerContinuesWithItsOwnSamples) {
  TrainingCheckpoint checkpoint = SmallCheckpoint();
  checkpoint.position.asynchronous = true;
  checkpoint.position.worker_steps = {39, 42};
  const CheckpointBytes bytes = ReadBack(
      FilesOf([&](CheckpointSink& sink) { return WriteCheckpoint(checkpoint, SmallLayout(), sink); }));
  std::vector<int64_t> shifts;
  for (const int rank : {0, 1}) {
    const Resumption made = PlanResumption(bytes, checkpoint.position, /*steps_per_epoch=*/31, rank).value();
    EXPECT_EQ(made.plan.step, 40);
    EXPECT_EQ(made.plan.beyond, 1);
    EXPECT_EQ(made.sequence, 7);
    shifts.push_back(made.sample_shift);
  }
  EXPECT_THAT(shifts, ElementsAre(-1, 2));
}

TEST(Resumption, ANewerDamagedCheckpointKeepsItsNumber) {
  CheckpointBytes bytes = ReadBack(
      FilesOf([](CheckpointSink& sink) { return WriteCheckpoint(SmallCheckpoint(), SmallLayout(), sink); }));
  bytes.sequence = 12;
  const Resumption made = PlanResumption(bytes, SmallCheckpoint().position, 31, /*rank=*/1).value();
  EXPECT_EQ(made.sequence, 12);
  EXPECT_EQ(made.sample_shift, 0) << "synchronous";
}

}  // namespace
}  // namespace psring
