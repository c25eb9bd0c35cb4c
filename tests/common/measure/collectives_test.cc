#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_split.h"
#include "common/measure/collective_bench.h"
#include "common/measure/collective_table.h"

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

// nccl-tests' table, column for column.

CollectiveRow Row() {
  CollectiveRow row{.bytes = 33554432, .count = 8388608, .type = "float", .op = "sum"};
  row.out_of_place = {.time_us = 1234.56, .wrong = 0, .percent_of_limit = 87.65};
  row.in_place = {.time_us = 98765.4, .wrong = 0};
  SetBandwidths("all_reduce", 4, row.bytes, row.out_of_place);
  SetBandwidths("all_reduce", 4, row.bytes, row.in_place);
  return row;
}

TEST(CollectiveTable, TheMedianOfAnEvenCountIsTheMeanOfTheMiddleValues) {
  EXPECT_DOUBLE_EQ(Median({4, 1, 3, 2}), 2.5);
  EXPECT_DOUBLE_EQ(Median({9, 1, 5}), 5);
  EXPECT_DOUBLE_EQ(Median({}), 0);
}

TEST(CollectiveTable, BusFactorsAreThoseOfNcclTests) {
  for (const auto& [collective, factor] : {std::pair("all_reduce", 1.5),
                                           {"reduce_scatter", 0.75},
                                           {"all_gather", 0.75},
                                           {"all_to_all", 0.75},
                                           {"broadcast", 1},
                                           {"ps_push_pull", 1}}) {
    EXPECT_DOUBLE_EQ(BusFactor(collective, 4), factor) << collective;
  }
  EXPECT_DOUBLE_EQ(BusFactor("all_reduce", 2), 1);
  EXPECT_DOUBLE_EQ(BusFactor("all_reduce", 1), 0);
}

TEST(CollectiveTable, AlgbwIsBytesOverTimeIn10To9) {
  PlacementFigures figures{.time_us = 500};
  SetBandwidths("all_reduce", 4, 1'000'000, figures);
  EXPECT_DOUBLE_EQ(figures.algbw, 2);
  EXPECT_DOUBLE_EQ(figures.busbw, 3);
}

TEST(CollectiveTable, ARowHasNcclTestsThirteenColumnsInItsWidths) {
  EXPECT_EQ(CollectiveTableLine(Row(), false),
            "    33554432       8388608     float     sum      -1  1234.56   27.18   40.77       0  98765.4  "
            "  0.34    0.51       0\n");
  const std::vector<std::string> columns =
      absl::StrSplit(CollectiveTableLine(Row(), false), absl::ByAnyChar(" \n"), absl::SkipEmpty());
  EXPECT_EQ(columns.size(), 13);
}

TEST(CollectiveTable, PercentOfLimitFollowsTheColumns) {
  const std::string plain = CollectiveTableLine(Row(), false), held = CollectiveTableLine(Row(), true);
  EXPECT_EQ(held.substr(0, plain.size() - 1), plain.substr(0, plain.size() - 1));
  EXPECT_EQ(held.substr(plain.size() - 1), "    87.7     N/A\n");
}

TEST(CollectiveTable, MissingFiguresAreNotAvailable) {
  CollectiveRow row = Row();
  row.out_of_place.wrong = -1;
  row.in_place.measured = false;
  EXPECT_EQ(CollectiveTableLine(row, false),
            "    33554432       8388608     float     sum      -1  1234.56   27.18   40.77     N/A      N/A  "
            "   N/A     N/A     N/A\n");
}

TEST(CollectiveTable, HeaderLinesAreComments) {
  for (const bool limits : {false, true}) {
    for (absl::string_view line : absl::StrSplit(CollectiveTableHeader(limits), '\n', absl::SkipEmpty()))
      EXPECT_EQ(line[0], '#');
  }
  EXPECT_EQ(CollectiveTableFooter(0, 4.25),
            "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 4.25 \n#\n");
}

}  // namespace
}  // namespace psring
