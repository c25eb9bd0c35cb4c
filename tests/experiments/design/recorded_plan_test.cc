// Plans of an earlier run.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "experiments/design/launches.h"
#include "experiments/run_folder/manifest.h"
#include "tests/experiments/test_catalog.h"
#include "tests/has.h"

namespace psring {
namespace {

CompareOptions Asked() { return {.strategies = {"ring", "ps-sync"}, .workers = {2}}; }

Plan Planned(const CompareOptions& options, double step_s) {
  Probe probe = TestProbe();
  probe.step_s = step_s;
  return PlanFor(options, 2, probe);
}

std::string ManifestOf(const Plan& plan, int rounds_done) {
  return ManifestJson({.verb = "compare", .plan = plan, .rounds_done = rounds_done, .wall_s = 1});
}

TEST(RecordedPlan, SetsRoundsStepsAndSamples) {
  const Plan first = Planned(Asked(), 0.05), second = Planned(Asked(), 0.002);
  ASSERT_NE(first.steps, second.steps);
  ASSERT_NE(first.accuracy.front().training.samples, second.accuracy.front().training.samples);
  const auto recorded = RecordedPlanFromJson(ManifestOf(first, first.rounds - 1)).value();
  Plan plan = second;
  ASSERT_TRUE(TakeRecordedPlan(recorded, Asked(), plan).ok());
  EXPECT_EQ(plan.rounds, first.rounds - 1);
  EXPECT_EQ(plan.steps, first.steps);
  EXPECT_FALSE(plan.rounds_fitted);
  EXPECT_FALSE(plan.accuracy_fitted);
  ASSERT_EQ(plan.cost.size(), first.cost.size());
  for (size_t i = 0; i < plan.cost.size(); ++i)
    EXPECT_EQ(TrainingArguments(plan.cost[i].training), TrainingArguments(first.cost[i].training));
  for (size_t i = 0; i < plan.accuracy.size(); ++i)
    EXPECT_EQ(TrainingArguments(plan.accuracy[i].training), TrainingArguments(first.accuracy[i].training));
}

TEST(RecordedPlan, KeepsValuesThatAreSet) {
  CompareOptions asked = Asked();
  asked.repeats = 7;
  asked.training.steps = 9;
  const auto recorded = RecordedPlanFromJson(ManifestOf(Planned(Asked(), 0.05), 3)).value();
  Plan plan = Planned(asked, 0.002);
  ASSERT_TRUE(TakeRecordedPlan(recorded, asked, plan).ok());
  EXPECT_EQ(plan.rounds, 7);
  EXPECT_EQ(plan.steps, 9);
  EXPECT_EQ(plan.cost.front().training.steps, 9);
}

TEST(RecordedPlan, AResumedRunHasAllPlannedRoundsAndTrainings) {
  Plan first = Planned(Asked(), 0.05);
  first.accuracy_repeats = 3;
  const auto recorded = RecordedPlanFromJson(ManifestJson({.verb = "compare",
                                                           .plan = first,
                                                           .rounds_done = 2,
                                                           .trainings_done = {"records/accuracy-1/ring-2"}}))
                            .value();
  EXPECT_EQ(recorded.rounds_done, 2);
  EXPECT_EQ(recorded.trainings_done, std::vector<std::string>{"records/accuracy-1/ring-2"});
  EXPECT_FALSE(recorded.all_done());
  Plan plan = Planned(Asked(), 0.002);
  ASSERT_TRUE(ContinueRecordedPlan(recorded, Asked(), plan).ok());
  EXPECT_EQ(plan.rounds, first.rounds);
  EXPECT_EQ(plan.accuracy_repeats, 3);
  ASSERT_EQ(plan.accuracy.size(), first.accuracy.size());
  EXPECT_EQ(TrainingArguments(plan.accuracy.back().training),
            TrainingArguments(first.accuracy.back().training));
  // A run whose time budget left the accuracy part out.
  first.accuracy.clear();
  const auto without =
      RecordedPlanFromJson(ManifestJson({.verb = "compare", .plan = first, .rounds_done = first.rounds}));
  ASSERT_TRUE(without.ok());
  EXPECT_TRUE(without->all_done());
  plan = Planned(Asked(), 0.002);
  ASSERT_TRUE(ContinueRecordedPlan(*without, Asked(), plan).ok());
  EXPECT_TRUE(plan.accuracy.empty());
}

TEST(RecordedPlan, NamesAMissingConfiguration) {
  const auto recorded = RecordedPlanFromJson(ManifestOf(Planned(Asked(), 0.05), 3)).value();
  CompareOptions asked = Asked();
  asked.workers = {3};
  Plan plan = Planned(asked, 0.05);
  EXPECT_THAT(TakeRecordedPlan(recorded, asked, plan).message(), Has("x 3"));
}

TEST(RecordedPlan, RejectsOtherTexts) {
  for (const char* text : {"", "[]", "{}", "{\"cost\":1,\"accuracy\":{}}", "{\"cost\":{},\"accuracy\":{}}",
                           "{\"cost\":{\"rounds_done\":2,\"configurations\":[{\"strategy\":1,"
                           "\"workers\":\"x\",\"trainer_flags\":[]}]},\"accuracy\":{}}"}) {
    EXPECT_FALSE(RecordedPlanFromJson(text).ok()) << text;
  }
}

// Paths need not be UTF-8, which JSON requires.
TEST(RecordedPlan, PathsThatAreNotUtf8AreReplaced) {
  const std::string path = "caf\xe9";
  const std::string manifest =
      ManifestJson({.verb = "compare", .command_line = {"psring", path}, .plan = Planned(Asked(), 0.1)});
  EXPECT_TRUE(nlohmann::json::accept(manifest));
  EXPECT_THAT(manifest, Has("caf\xef\xbf\xbd"));
  const std::string note = ToJson(LaunchNote{.strategy = "ring", .trainer_flags = {"--data_dir=" + path}});
  EXPECT_TRUE(nlohmann::json::accept(note)) << note;
}

}  // namespace
}  // namespace psring
