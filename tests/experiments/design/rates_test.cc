#include "experiments/design/rates.h"

#include <gtest/gtest.h>

#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/match.h"
#include "tests/experiments/test_catalog.h"
#include "tests/has.h"

namespace psring {
namespace {

using testing::ElementsAre;

TEST(Rates, EveryStrategyGetsTheSameFactorsOfItsOwnRate) {
  CompareOptions options;
  options.lr_factors = {2, 0.5, 1};
  EXPECT_EQ(CountOfRates(options), 3);
  Configuration ring = TestConfiguration("ring", 4);
  ring.update.lr = 0.2;
  EXPECT_THAT(RatesToTry(options, ring), ElementsAre(0.1, 0.2, 0.4));
  Configuration async = TestConfiguration("ps-async", 4);
  async.update.lr = 0.02;
  EXPECT_THAT(RatesToTry(options, async), ElementsAre(0.01, 0.02, 0.04));
  options.lr_factors.clear();
  EXPECT_TRUE(RatesToTry(options, ring).empty());
  options.lrs = {0.3, 0.1};
  EXPECT_THAT(RatesToTry(options, ring), ElementsAre(0.1, 0.3));
}

TEST(Rates, TuningTrainsEveryStrategyWithEveryNumberOfWorkers) {
  CompareOptions options;
  options.lr_factors = {0.5, 1, 2};
  const Plan plan = PlanFor(options);
  std::vector<std::string> measured = Names(plan.cost);
  std::erase_if(measured, [](const std::string& name) { return absl::StartsWith(name, "none "); });
  EXPECT_THAT(Names(plan.accuracy), testing::UnorderedElementsAreArray(measured));
  EXPECT_EQ(TrainingsOfEach(options, plan), 4);
  // The time of the trials is planned.
  options.lr_factors.clear();
  EXPECT_LT(plan.accuracy.front().training.samples, PlanFor(options).accuracy.front().training.samples);
}

TEST(Rates, EachNumberOfWorkersGetsItsOwnBestRate) {
  std::vector<TriedRate> tried = {{"ring", 2, 0.1, 0.80, 0.5},
                                  {"ring", 2, 0.2, 0.85, 0.4},
                                  {"ring", 4, 0.1, 0.90, 0.3},
                                  {"ring", 4, 0.2, std::nullopt, 0}};
  ASSERT_TRUE(PickRates(tried).ok());
  Configuration two = TestConfiguration("ring", 2), four = TestConfiguration("ring", 4);
  UsePickedRate(tried, two);
  UsePickedRate(tried, four);
  EXPECT_EQ(two.training.lr, 0.2);
  EXPECT_EQ(two.update.lr, 0.2);
  EXPECT_THAT(two.tried_lrs, ElementsAre(0.1, 0.2));
  EXPECT_EQ(four.training.lr, 0.1) << "the other one diverged";
}

TEST(Rates, AreReadBackFromTheirFile) {
  std::vector<TriedRate> tried = {{"ps-ssp:2", 4, 0.05, 0.8125, 0.5, true},
                                  {"ps-ssp:2", 4, 1e12, std::nullopt, 0, false}};
  const auto read = RatesFromCsv(RatesCsv(tried)).value();
  ASSERT_EQ(read.size(), 2);
  const TriedRate& one = read[0];
  EXPECT_EQ(std::tuple(one.strategy, one.workers, one.lr, one.accuracy, one.picked),
            std::tuple("ps-ssp:2", 4, 0.05, 0.8125, true));
  EXPECT_FALSE(read[1].accuracy.has_value());
  EXPECT_FALSE(read[1].picked);
  const std::string header = RatesCsv({});
  for (const char* row : {"ring,x,0.1,,,true\n", "ring,2,0.1\n", "ring,2.5,0.1,,,true\n",
                          "ring,2,\"1,100\",,,true\n", "ring,2,0.1,,,yes\n", "ring,2,0.1,1,nan,true\n"}) {
    EXPECT_THAT(std::string(RatesFromCsv(header + row).status().message()), Has("line 2: ")) << row;
  }
  for (const std::string& text : {std::string(), std::string("a header\n"), header})
    EXPECT_FALSE(RatesFromCsv(text).ok()) << text;
}

}  // namespace
}  // namespace psring
