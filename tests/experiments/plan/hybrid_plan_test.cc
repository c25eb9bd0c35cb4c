// Plans of models with tables.
#include <gtest/gtest.h>

#include "experiments/plan/plan.h"
#include "tests/experiments/test_catalog.h"

namespace psring {
namespace {

Plan PlanOfTables(const CompareOptions& options) { return *MakePlan(options, TestProbe(), /*cores=*/64); }

std::vector<std::string> ConfigurationsOf(const std::vector<Configuration>& configurations) {
  std::vector<std::string> names;
  for (const Configuration& configuration : configurations) names.push_back(configuration.name());
  return names;
}

std::string RefusalOf(const CompareOptions& options) {
  return std::string(CheckCompareOptions(options).message());
}

TEST(HybridPlan, TheDefaultForAModelWithTablesHasHybridAndEvaluatesAtTheEnd) {
  CompareOptions options{.workers = {2}};
  options.training.model = "dlrm-small";
  const Plan plan = PlanOfTables(options);
  EXPECT_EQ(ConfigurationsOf(plan.cost),
            (std::vector<std::string>{"single x 1", "none x 2", "ring x 2", "ps-sync x 2", "ps-async x 2",
                                      "hybrid x 2"}));
  ASSERT_FALSE(plan.accuracy.empty());
  for (const Configuration& configuration : plan.accuracy) EXPECT_EQ(configuration.training.eval_every, 0);
  options.training.model = "mlp";
  EXPECT_GT(PlanOfTables(options).accuracy.front().training.eval_every, 0);
}

TEST(HybridPlan, HybridHasTheFlagsOfBothOfItsParts) {
  CompareOptions options{.strategies = {"ring", "hybrid"}, .workers = {2}, .servers = {1, 2}};
  options.training.model = "dlrm-small";
  options.training.backend = "gloo";
  EXPECT_EQ(RefusalOf(options), "");
  const Plan plan = PlanOfTables(options);
  EXPECT_EQ(ConfigurationsOf(plan.cost), (std::vector<std::string>{"single x 1", "none x 2", "ring x 2",
                                                                   "hybrid x 2", "hybrid x 2 on 2 servers"}));
  EXPECT_EQ(plan.cost.back().backend(), "gloo");
  options.training.backend.clear();
  options.training.ps_schedule = "serial";
  EXPECT_EQ(
      RefusalOf(options),
      "--ps_schedule serial is for servers that have all parameters (such as ps-sync); name one, or omit "
      "the flag");
  options.strategies = {"ps-sync", "hybrid"};
  EXPECT_EQ(RefusalOf(options), "");
  for (const Configuration& configuration : PlanOfTables(options).cost)
    EXPECT_EQ(configuration.training.ps_schedule,
              configuration.strategy.name == "ps-sync" ? "serial" : "pipelined");
  options = {.strategies = {"ring", "hybrid"}, .workers = {2}};
  options.training.local_aggregation = true;
  EXPECT_NE(RefusalOf(options).find("--local_aggregation is for ps-sync"), std::string::npos);
  EXPECT_EQ(CheckVirtualStrategy(*FindStrategy("hybrid"), {.clock = "virtual"}).message(),
            "--clock virtual has no model of the rows of tables; omit hybrid");
}

}  // namespace
}  // namespace psring
