// nccl-tests' table, column for column.
#include "common/measure/collective_table.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_split.h"

namespace psring {
namespace {

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
