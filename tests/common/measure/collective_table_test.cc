// nccl-tests' table, column for column, and sizes as its flags take them.
#include "common/measure/collective_table.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "common/base/units.h"

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
  EXPECT_DOUBLE_EQ(BusFactor("all_reduce", 2), 1);
  EXPECT_DOUBLE_EQ(BusFactor("all_reduce", 4), 1.5);
  EXPECT_DOUBLE_EQ(BusFactor("all_reduce", 1), 0);
  EXPECT_DOUBLE_EQ(BusFactor("reduce_scatter", 4), 0.75);
  EXPECT_DOUBLE_EQ(BusFactor("all_gather", 4), 0.75);
  EXPECT_DOUBLE_EQ(BusFactor("broadcast", 4), 1);
  EXPECT_DOUBLE_EQ(BusFactor("ps_push_pull", 4), 1);
}

TEST(CollectiveTable, AlgbwIsBytesOverTimeIn10To9) {
  PlacementFigures figures{.time_us = 500};
  SetBandwidths("all_reduce", 4, 1'000'000, figures);
  EXPECT_DOUBLE_EQ(figures.algbw, 2);
  EXPECT_DOUBLE_EQ(figures.busbw, 3);
}

TEST(CollectiveTable, ARowHasNcclTestsThirteenColumnsInItsWidths) {
  EXPECT_EQ(
      CollectiveTableLine(Row(), false),
      "    33554432       8388608     float     sum      -1  1234.56   27.18   40.77       0  98765.4    "
      "0.34    0.51       0\n");
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
  EXPECT_EQ(
      CollectiveTableLine(row, false),
      "    33554432       8388608     float     sum      -1  1234.56   27.18   40.77     N/A      N/A     "
      "N/A     N/A     N/A\n");
}

TEST(CollectiveTable, HeaderLinesAreComments) {
  for (const bool limits : {false, true}) {
    for (absl::string_view line : absl::StrSplit(CollectiveTableHeader(limits), '\n', absl::SkipEmpty()))
      EXPECT_EQ(line[0], '#');
  }
  EXPECT_EQ(CollectiveTableFooter(0, 4.25),
            "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 4.25 \n#\n");
}

TEST(ByteSize, AcceptsTheSizesOfNcclTests) {
  EXPECT_EQ(*ParseByteSize("0"), 0);
  EXPECT_EQ(*ParseByteSize("4096"), 4096);
  EXPECT_EQ(*ParseByteSize("4K"), 4096);
  EXPECT_EQ(*ParseByteSize("4k"), 4096);
  EXPECT_EQ(*ParseByteSize("1.5M"), 3 << 19);
  EXPECT_EQ(*ParseByteSize("2GB"), uint64_t{2} << 30);
}

TEST(ByteSize, RejectsOthers) {
  for (const char* text : {"", "K", "4X", "-1", "1e3", "inf", "4Xi", "0.1", "44i", "2000G", "1.2.3"})
    EXPECT_FALSE(ParseByteSize(text).ok()) << text;
}

TEST(ByteSize, TextIsShortAndRoundTrips) {
  EXPECT_EQ(ByteSizeText(4096), "4K");
  EXPECT_EQ(ByteSizeText(3 << 19), "1.5M");
  EXPECT_EQ(ByteSizeText(1000), "1000");
  for (const uint64_t bytes : {uint64_t{0}, uint64_t{4095}, uint64_t{25} << 20, uint64_t{3} << 29})
    EXPECT_EQ(*ParseByteSize(ByteSizeText(bytes)), bytes);
}

}  // namespace
}  // namespace psring
