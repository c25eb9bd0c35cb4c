#include <gtest/gtest.h>

#include <set>

#include "experiments/verbs/predict/published_check.h"
#include "experiments/verbs/predict/report.h"
#include "tests/experiments/test_catalog.h"
#include "tests/has.h"

namespace psring {
namespace {

using testing::HasSubstr;

TEST(PublishedSystems, EachIsNamedOnceAndHasEveryCause) {
  std::set<std::string> names;
  for (const PublishedSystem& system : PublishedSystems()) {
    EXPECT_TRUE(names.insert(system.name).second) << system.name;
    const bool computes = system.models.front().exchange_mib == 0;
    for (const std::string& name : FittedCauses()) {
      EXPECT_EQ(system.constants.contains(name), computes || name != "compute_cv")
          << system.name << " " << name;
    }
    for (const PublishedModel& model : system.models) EXPECT_GE(model.rows.size(), 2u) << system.name;
  }
  EXPECT_THAT(FindSystem("byteps").status().message(), Has("use auto, none or one of byteps-tcp"));
}

// Fits all systems: a few seconds.
TEST(PublishedSystems, TheRegistryHoldsWhatTheFitFinds) {
  for (const PublishedSystem& system : PublishedSystems()) {
    const Constants fitted = Fit(RowsOf(system).value(), FittedCauses()).value();
    for (const auto& [name, value] : system.constants)
      EXPECT_NEAR(value / fitted.at(name), 1, 0.1) << system.name << " " << name << " " << fitted.at(name);
  }
}

TEST(PublishedSystems, RangesHoldWhenEachIsPredictedFromTheOthers) {
  std::vector<LeftOutSystem> systems;
  for (const PublishedSystem& system : PublishedSystems()) systems.push_back(LeaveOut(system).value());
  const LeftOutSummary all = SummaryOf(systems);
  EXPECT_GE(all.rows, 40u);
  EXPECT_LE(all.median_error, 0.12);
  EXPECT_GE(all.coverage, 0.85);
  EXPECT_LE(all.coverage, 0.95);
  EXPECT_NEAR(SmallestModelFactor(systems), kModelFactor, 1e-9);
  const std::string text = PublishedText(systems);
  for (const PublishedSystem& system : PublishedSystems()) EXPECT_THAT(text, HasSubstr(system.name));
  EXPECT_THAT(text, Has("**no**", "are in their ranges"));
}

// Walks steps of up to 65,000 passes through layers: some seconds.
TEST(PublishedTrainings, RangesHoldWhenEachIsPredictedFromTheOthers) {
  std::vector<LeftOutSystem> trainings;
  for (const PublishedTraining& training : PublishedTrainings()) {
    trainings.push_back(LeaveOut(training, /*walks=*/true).value());
  }
  const double factor = LayoutModelFactor();
  const LeftOutSummary all = SummaryOf(trainings, factor);
  EXPECT_GE(all.rows, 20u);
  EXPECT_LE(all.median_error, .15);
  EXPECT_LT(all.worst_error, 1);
  EXPECT_GE(all.coverage, .8);
  EXPECT_LT(factor, 1.5);
  const std::string text = PublishedLayoutsText(trainings);
  for (const PublishedTraining& training : PublishedTrainings()) EXPECT_THAT(text, HasSubstr(training.title));
}

TEST(PublishedTrainings, ProgramsThatGatherWeightsAreSimilar) {
  const Cluster& cluster = PublishedTrainings()[2].cluster;
  const auto lost = [&](bool gathers, const PublishedTraining* left_out = nullptr) {
    const Causes causes = CausesOfLayouts(cluster, 1, gathers, left_out);
    return causes.at("fraction").low / (1 + causes.at("node_loss").high);
  };
  EXPECT_LT(lost(true), lost(false)) << "ZeRO-3 lost most";
  EXPECT_GT(lost(true, &PublishedTrainings()[2]), lost(true)) << "a system that is left out has no weight";
  EXPECT_EQ(LayoutDifferences("an H100", cluster, 1024).size(), 0u);
  EXPECT_EQ(LayoutDifferences("a V100", cluster, 1 << 20).size(), 2u);
}

// As a user's prediction, and without the constants of each of the two.
TEST(PublishedSystems, NoWrongWinnerIsNamedBetweenARingAndServersOnTheSameMachines) {
  const Predictor predictor({.tensors = {{.name = "w", .bytes = 4}}}, {});
  int shown = 0;
  for (const auto& [ring, servers] : {std::pair("horovod-tcp", "byteps-tcp"), {"aws-ring", "aws-ps"}}) {
    const PublishedSystem* const systems[] = {FindSystem(ring).value(), FindSystem(servers).value()};
    const std::vector<FitRow> measured[] = {RowsOf(*systems[0]).value(), RowsOf(*systems[1]).value()};
    ASSERT_EQ(measured[0].size(), measured[1].size());
    for (const PublishedSystem* const left_out :
         {systems[0], systems[1], static_cast<const PublishedSystem*>(nullptr)}) {
      for (size_t i = 0; i < measured[0].size(); ++i) {
        ASSERT_EQ(measured[0][i].label, measured[1][i].label);
        const Cluster& cluster = systems[0]->cluster;
        const int gpus = measured[0][i].size, nodes = ShapeOf(cluster, gpus).nodes;
        PredictReport report{.predictor = &predictor};
        for (const int s : {0, 1}) {
          const PredictCase point{s == 0 ? kRing : kSync, gpus, s * nodes};
          PredictedRow row{.point = point,
                           .constants = GuessesOf(CausesOf(cluster, 0, left_out), nodes),
                           .situation = {.gpu = systems[s]->gpu,
                                         .point = point,
                                         .options = systems[s]->options,
                                         .cluster = cluster},
                           .system = "auto"};
          for (const Constants& guess : row.constants) {
            const double seconds = measured[s][i].predict(guess).value();
            row.guesses.push_back({.step = seconds, .samples_per_s = 1 / seconds});
          }
          report.rows.push_back(row);
        }
        const PredictionVerdict verdict = *VerdictAt(report, gpus);
        if (!verdict.shown) continue;
        ++shown;
        EXPECT_EQ(verdict.winner->point.strategy.uses_group,
                  measured[0][i].measured < measured[1][i].measured)
            << ring << ", " << measured[0][i].label << ": " << verdict.factor;
      }
    }
  }
  EXPECT_GT(shown, 0);
}

}  // namespace
}  // namespace psring
