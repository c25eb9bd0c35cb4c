#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_join.h"
#include "tests/trainer/checkpoints/small_checkpoint.h"

namespace psring {
namespace {

// The position of a run at its beginning.
TrainingPosition Now(int workers) {
  TrainingPosition now = SmallCheckpoint().position;
  now.workers = workers;
  now.drawn_batch = 16 * workers;
  now.step = now.updates = now.samples = now.epoch = now.epoch_samples = 0;
  return now;
}

ResumePlan Resume(const TrainingPosition& from, const TrainingPosition& now) {
  return PlanResume(from, now, now.data_count / now.drawn_batch, /*has_slots=*/true, /*residuals=*/0);
}

TEST(ResumePlan, TheSameRunContinuesWithoutNotes) {
  const ResumePlan plan = Resume(SmallCheckpoint().position, Now(2));
  EXPECT_EQ(plan.step, 40);
  EXPECT_EQ(plan.samples, 1280);
  EXPECT_TRUE(plan.with_slots);
  EXPECT_TRUE(plan.notes.empty()) << absl::StrJoin(plan.notes, "\n");
}

TEST(ResumePlan, WithOtherWorkersTheSamplerContinuesAtTheSameSample) {
  TrainingPosition from = SmallCheckpoint().position;
  from.optimizer.kind = OptimizerKind::kMomentum;
  TrainingPosition now = Now(1);
  now.optimizer.kind = OptimizerKind::kMomentum;
  // Epoch 1, 288 samples: of 62 steps an epoch of 16 samples, 18 of the second.
  EXPECT_EQ(Resume(from, now).step, 62 + 18);
  EXPECT_EQ(Resume(from, now).samples, 1280);
  ASSERT_EQ(Resume(from, now).notes.size(), 1);
  now = Now(4);
  now.optimizer.kind = OptimizerKind::kMomentum;
  EXPECT_EQ(Resume(from, now).step, 15 + 4);  // 256 of them are whole steps of 64
  const std::string notes = absl::StrJoin(Resume(from, now).notes, "\n");
  EXPECT_TRUE(absl::StrContains(notes, "32 samples of epoch 1 are drawn again")) << notes;
}

TEST(ResumePlan, AtTheEndOfAnEpochOtherWorkersBeginTheNextEpoch) {
  TrainingPosition from = SmallCheckpoint().position;
  from.epoch_samples = 992;                  // all 31 steps
  EXPECT_EQ(Resume(from, Now(4)).step, 30);  // 15 of 64 an epoch
}

TEST(ResumePlan, NotesWhatIsNotRestored) {
  const TrainingPosition from = SmallCheckpoint().position;
  const auto notes = [&](const std::function<void(TrainingPosition&)>& change, bool slots) {
    TrainingPosition now = Now(2);
    change(now);
    const ResumePlan plan = Resume(from, now);
    EXPECT_EQ(plan.with_slots, slots);
    return absl::StrJoin(plan.notes, "\n");
  };
  EXPECT_EQ(notes([](auto& p) { p.optimizer.kind = OptimizerKind::kSgd; }, false),
            "the optimizer is sgd and was adam: its state is not restored");
  EXPECT_EQ(notes(
                [](auto& p) {
                  p.flags = {"--lr=0.2", "--steps=9"};
                },
                true),
            "flags differ: --lr=0.2 now, --lr=0.1 in the checkpoint");
  EXPECT_TRUE(absl::StrContains(notes([](auto& p) { p.asynchronous = true; }, true), "asynchronous"));
  EXPECT_FALSE(absl::StrContains(notes([](auto& p) { p.wire = "bfloat16"; }, true), "rounding"));
  EXPECT_TRUE(absl::StrContains(notes([](auto& p) { p.data_count = 900; }, true), "900 training samples"));
}

// The count of updates continues with that of the optimizer's state, wherever the data's position is.
TEST(ResumePlan, ContinuesTheUpdatesOfTheOptimizer) {
  struct Case {
    int64_t was;  // updates in the checkpoint
    int workers;
    bool asynchronous;
    int64_t continues;  // the first update's number - 1
  };
  for (const Case& c : {Case{40, 2, false, 40}, Case{40, 1, false, 40}, Case{40, 4, false, 40},
                        Case{7, 2, false, 7}, Case{1000, 3, true, 1000}, Case{0, 2, true, 0}}) {
    TrainingPosition from = SmallCheckpoint().position, now = Now(c.workers);
    from.updates = c.was;
    now.asynchronous = c.asynchronous;
    const ResumePlan plan = Resume(from, now);
    const int64_t made = c.asynchronous ? plan.step * c.workers + plan.beyond : plan.step;
    EXPECT_EQ(made + plan.earlier_updates, c.continues) << c.was << " updates, " << c.workers << " workers";
    now.optimizer.kind = OptimizerKind::kAdamW;
    EXPECT_EQ(made + Resume(from, now).earlier_updates, 0);
  }
}

TEST(ResumePlan, ResidualsAreRestoredOnlyForTheSameWorkers) {
  TrainingPosition from = SmallCheckpoint().position;
  from.wire = "bfloat16";
  const auto plan = [&](int residuals, int workers, const char* wire, const char* strategy) {
    TrainingPosition now = Now(workers);
    now.wire = wire;
    now.strategy = strategy;
    return PlanResume(from, now, now.data_count / now.drawn_batch, true, residuals);
  };
  EXPECT_TRUE(plan(2, 2, "bfloat16", "ring").with_residuals);
  EXPECT_TRUE(plan(2, 2, "bfloat16", "ring").notes.empty());
  EXPECT_TRUE(plan(1, 2, "bfloat16", "ring").with_residuals);
  EXPECT_EQ(plan(1, 2, "bfloat16", "ring").notes,
            (std::vector<std::string>{"some rounding errors of bfloat16 gradients are dropped: the "
                                      "checkpoint has those of 1 of 2 workers"}));
  for (const auto& [workers, wire, strategy] : {std::tuple{1, "bfloat16", "ring"},
                                                {2, "float16", "ring"},
                                                {2, "float32", "ring"},
                                                {2, "bfloat16", "ps-sync"}}) {
    const ResumePlan other = plan(2, workers, wire, strategy);
    EXPECT_FALSE(other.with_residuals);
    const std::string notes = absl::StrJoin(other.notes, "\n");
    EXPECT_TRUE(absl::StrContains(notes, "the rounding errors of bfloat16 gradients are dropped")) << notes;
  }
}

TEST(ResumePlan, AsynchronousWorkersContinueAtTheirOwnSteps) {
  TrainingPosition from = SmallCheckpoint().position;
  from.asynchronous = true;
  from.worker_steps = {38, 42};
  from.updates = 80;
  TrainingPosition now = Now(2);
  now.asynchronous = true;
  EXPECT_EQ(Resume(from, now).worker_steps, from.worker_steps);
  EXPECT_TRUE(Resume(from, now).notes.empty()) << absl::StrJoin(Resume(from, now).notes, "\n");
  now.data_count = 900;  // another order of samples
  EXPECT_TRUE(Resume(from, now).worker_steps.empty());
  TrainingPosition three = Now(3);
  three.asynchronous = true;
  EXPECT_TRUE(Resume(from, three).worker_steps.empty());
  EXPECT_TRUE(absl::StrContains(absl::StrJoin(Resume(from, three).notes, "\n"), "twice or never"));
}

TEST(ResumePlan, WeightsWithoutPositionBeginTraining) {
  const ResumePlan plan = PlanResume({}, Now(2), 31, /*has_slots=*/false, /*residuals=*/0);
  EXPECT_EQ(plan.step, 0);
  EXPECT_EQ(plan.samples, 0);
  EXPECT_FALSE(plan.with_slots);
  EXPECT_TRUE(plan.notes.empty()) << absl::StrJoin(plan.notes, "\n");
}

}  // namespace
}  // namespace psring
