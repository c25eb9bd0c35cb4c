#include "common/measure/collective_bench.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <memory>
#include <string>
#include <tuple>

namespace psring {
namespace {

using testing::ElementsAre;

TEST(CollectiveBench, ATurnHasAsManyCallsAsTheSlowestRankMakesIn200us) {
  const std::vector<std::string> call_ns = {"1000 100000", "2000 50000", "1 what"};
  EXPECT_THAT(CallsPerTurn(call_ns, 2, 0), ElementsAre(100, 2));
  EXPECT_THAT(CallsPerTurn(call_ns, 2, 7), ElementsAre(7, 7));
  EXPECT_THAT(CallsPerTurn({"1000000"}, 2, 0), ElementsAre(1, 10000));
}

TEST(CollectiveBench, SamplesCombineTheRanks) {
  const std::vector<std::string> turn_ns = {"1000 2000 8000 8000", "3000 1000 4000 16000"};
  for (const auto& [across, first, second] : {std::tuple{AcrossRanks::kRankZero, 1., 2.},
                                              {AcrossRanks::kMean, 2., 1.5},
                                              {AcrossRanks::kMin, 1., 1.},
                                              {AcrossRanks::kMax, 3., 2.}}) {
    const auto samples = SamplesOf(turn_ns, {1, 4}, 2, across).value();
    EXPECT_THAT(samples[0].times_us, ElementsAre(first, second));
    EXPECT_EQ(samples[1].calls_per_turn, 4);
  }
  EXPECT_THAT((*SamplesOf(turn_ns, {1, 4}, 2, AcrossRanks::kMax))[1].times_us, ElementsAre(2, 4));
  EXPECT_FALSE(SamplesOf({"1 2", "1"}, {1}, 2, AcrossRanks::kMax).ok());
  EXPECT_FALSE(SamplesOf({"1 x"}, {1}, 2, AcrossRanks::kMax).ok());
}

TEST(CollectiveBench, HostNamesThatAreNotUtf8AreReplacedInJson) {
  const std::unique_ptr<FILE, int (*)(FILE*)> file(tmpfile(), fclose);
  ASSERT_NE(file, nullptr);
  MakeJsonOutput(file.get())->Start({{.host = "caf\xe9", .pid = 7}}, {});
  std::rewind(file.get());
  char line[256] = {};
  ASSERT_NE(fgets(line, sizeof line, file.get()), nullptr);
  EXPECT_NE(std::string(line).find("\"caf\xef\xbf\xbd\""), std::string::npos) << line;
}

TEST(RankInfo, IsReadAsItWasSent) {
  const std::vector<RankInfo> ranks =
      RanksFrom({RankText({.host = "a host", .pid = 7, .device = "cuda:1"}), "no rank"});
  ASSERT_EQ(ranks.size(), 2u);
  EXPECT_EQ(ranks[0].host, "a host");
  EXPECT_EQ(ranks[0].pid, 7);
  EXPECT_EQ(ranks[0].device, "cuda:1");
  EXPECT_EQ(ranks[1].host, "");
}

}  // namespace
}  // namespace psring
