#include "common/io/csv.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace psring {
namespace {

using ::testing::HasSubstr;
using Table = std::vector<std::vector<std::string>>;

// The fields of all records, "#" before those of comments; the last row is the error, if there is one.
Table Read(const std::string& text) {
  CsvReader file(text);
  Table rows;
  while (true) {
    const absl::StatusOr<bool> any = file.Next();
    if (!any.ok()) rows.push_back({std::string(any.status().message())});
    if (!any.ok() || !*any) return rows;
    rows.emplace_back();
    for (const CsvField& field : file.fields())
      rows.back().push_back((file.is_comment() ? "#" : "") + field.text);
  }
}

TEST(Csv, RecordsAreReadAsInRfc4180) {
  const std::pair<std::string, Table> cases[] = {
      {"", {}},
      {"a,b\n1,2\n", {{"a", "b"}, {"1", "2"}}},
      {"a,b\r\n1,2", {{"a", "b"}, {"1", "2"}}},
      {"a,b\r1,2\r", {{"a", "b"}, {"1", "2"}}},
      {"\"a,\"\"b\"\"\",\"\"\n", {{"a,\"b\""}}},
      {"a,\"\",c\n", {{"a", "", "c"}}},
      {"\"two\nlines\",1\n", {{"two\nlines", "1"}}},
      {" a , \" b \" ,c\t\n", {{"a", " b ", "c"}}},
      {"24\" wide,1\n", {{"24\" wide", "1"}}},
      {"\xEF\xBB\xBF"
       "a,b\n",
       {{"a", "b"}}},
  };
  for (const auto& [text, rows] : cases) EXPECT_EQ(Read(text), rows) << text;
}

TEST(Csv, SpreadsheetsMayChangeDelimitersAndPadRows) {
  const std::pair<std::string, Table> cases[] = {
      {"a;b\n1,5;2\n", {{"a", "b"}, {"1,5", "2"}}},
      {"a\tb\n1,5\t2\n", {{"a", "b"}, {"1,5", "2"}}},
      {"# x: 1, 2, 3\n\"a,b\";c\n", {{"# x: 1, 2, 3"}, {"a,b", "c"}}},
      {"a,b,,\n,,,\n1,2,,\n", {{"a", "b"}, {"1", "2"}}},
      {"# x: 1,,\n\"# y: 2, 3\",,\n\" # z\",\na,b\n", {{"# x: 1"}, {"# y: 2, 3"}, {" # z"}, {"a", "b"}}},
      {"# x: 1;;\na;b\n", {{"# x: 1"}, {"a", "b"}}},
      {"\"#a\",1\n", {{"#a", "1"}}},
  };
  for (const auto& [text, rows] : cases) EXPECT_EQ(Read(text), rows) << text;
}

TEST(Csv, MalformedRecordsAreErrorsThatNameTheLine) {
  const std::pair<std::string, std::string> cases[] = {
      {"a,b\n1,\"2\n3,4\n", "line 2: a quote is not closed"},
      {"\"two\nlines\"\n\n\"a\"b\n", "line 4: field 1 has text after its closing quote"},
      {absl::StrCat("a\n\"", std::string(1 << 17, 'w'), "\"\n"), "line 2: a quote is not closed"},
      {std::string(1 << 17, 'w'), "line 1: it has more than 65536 bytes"},
      {"#" + std::string(1 << 17, 'w'), "line 1: it has more than 65536 bytes"},
      {std::string(2000, ','), "line 1: it has more than 1024 fields"},
      {std::string("a\0b\n", 4), "line 1: it contains the control character 0"},
      {"# a\n# \x1b[31m\n", "line 2: it contains the control character 27"},
      {std::string("\xFF\xFE#\0 \0", 6), "line 1: it contains the control character 0"},
  };
  for (const auto& [text, what] : cases) {
    const Table rows = Read(text);
    ASSERT_FALSE(rows.empty()) << text;
    EXPECT_THAT(rows.back()[0], HasSubstr(what));
  }
}

TEST(Csv, RowsMustHaveTheColumnsOfTheHeader) {
  const auto error_of = [](const std::string& text) {
    CsvReader file(text);
    absl::Status status = file.ReadHeader();
    while (status.ok() && status.message().empty()) {
      const absl::StatusOr<bool> any = file.NextRow();
      status = any.status();
      if (any.ok() && !*any) break;
    }
    return std::string(status.message());
  };
  EXPECT_EQ(error_of("# c\na,b\n1,2,,\n"), "");
  EXPECT_THAT(error_of("a,b\n1\n"), HasSubstr("line 2: it has 1 fields; the header has 2"));
  EXPECT_THAT(error_of("a,b\n1,2,3\n"), HasSubstr("the header has 2; quote names that contain ','"));
  EXPECT_THAT(error_of("a,b,a\n"), HasSubstr("line 1: the column 'a' appears twice"));
  EXPECT_THAT(error_of("#\n"), HasSubstr("needs a header"));
  EXPECT_THAT(error_of("a,b\n#0,5\n"), HasSubstr("line 2: '#0,5' is a comment or a row"));
  EXPECT_EQ(error_of("a,b\n# 0,5\n#0\n#0,x\n\"# 0\",\n"), "");
  EXPECT_EQ(error_of("a,b\n\"#0\",5\n"), "");
}

// The number in the column "x" of the last row, or its error.
std::string NumberIn(const std::string& text) {
  CsvReader file(text);
  if (!file.ReadHeader().ok()) return "no header";
  absl::StatusOr<double> number = 0;
  while (file.NextRow().value_or(false) && number.ok()) number = file.Number("x", -1e9, 1e9);
  return number.ok() ? absl::StrCat(*number) : std::string(number.status().message());
}

TEST(Csv, ANumberIsAWholeField) {
  for (const auto& [field, value] : std::vector<std::pair<std::string, double>>{{"12.25", 12.25},
                                                                                {" 12.25 ", 12.25},
                                                                                {"\" 12.25 \"", 12.25},
                                                                                {"1e3", 1000},
                                                                                {"-5", -5},
                                                                                {"+5", 5},
                                                                                {"1E-3", 0.001},
                                                                                {".5", 0.5},
                                                                                {"5.", 5}}) {
    EXPECT_EQ(NumberIn("a,x\n1," + field + "\n"), absl::StrCat(value)) << field;
  }
  for (const char* field :
       {"soon", "12ms", "0x10", "nan", "inf", "-inf", "1e300", "1e", "--5", "1 000", "1'000", "1_000",
        "\"8,388,608\"", "\"1,000.5\"", "1.000.000", "\"12,25,\"", "\",5\"", "\"5,\"",
        "1\xC2\xA0"
        "000"}) {
    EXPECT_THAT(NumberIn(absl::StrCat("a,x\n1,", field, "\n")), HasSubstr("line 2: x '")) << field;
  }
  EXPECT_THAT(NumberIn("a,x\n1,\n"), HasSubstr("line 2: x is empty"));
  EXPECT_THAT(NumberIn("a,x\n1,\"8,388,608\"\n"), HasSubstr("without thousands separators"));
}

TEST(Csv, ADecimalCommaIsReadIfItCannotBeASeparator) {
  for (const auto& [text, value] :
       std::vector<std::pair<std::string, double>>{{"a,x\n1,\"12,25\"\n", 12.25},
                                                   {"a,x\n1,\"-0,125\"\n", -0.125},
                                                   {"a,x\n1,\"1234,567\"\n", 1234.567},
                                                   {"a;x\n1;12,250\n", 12.25},
                                                   {"a;x\n1;20\n2;12,250\n", 12.25},
                                                   {"a\tx\n1\t12,25\n", 12.25}}) {
    EXPECT_EQ(NumberIn(text), absl::StrCat(value)) << text;
  }
  EXPECT_THAT(NumberIn("a,x\n1,\"12,250\"\n"), HasSubstr("line 2: x '12,250' is not"));
  EXPECT_THAT(NumberIn("a\tx\n1\t12,250\n"), HasSubstr("line 2: x '12,250' is not"));
  EXPECT_THAT(NumberIn("a;x\n1;0,5\n2;1.234\n"),
              HasSubstr("line 3: x '1.234' has a decimal point, and a number above has a comma"));
  EXPECT_THAT(NumberIn("a;x\n1;1.234\n2;0,5\n"), HasSubstr("line 3: x '0,5' has a decimal comma"));
}

TEST(Csv, AWholeNumberHasOnlyDigits) {
  const auto number_in = [](const std::string& field) {
    const std::string text = absl::StrCat("x,a\n", field, ",1\n");
    CsvReader file(text);
    EXPECT_TRUE(file.ReadHeader().ok() && file.NextRow().ok());
    const absl::StatusOr<int64_t> number = file.WholeNumber("x", 0, INT64_MAX);
    return number.ok() ? absl::StrCat(*number) : std::string(number.status().message());
  };
  EXPECT_EQ(number_in(" 8388608 "), "8388608");
  EXPECT_EQ(number_in("9223372036854775807"), "9223372036854775807");
  for (const char* field : {"2.5", "8.39E+06", "9223372036854775808", "-1", "0x10", "nan", "\"8,388,608\"",
                            "\"12,5\"", "8 388"}) {
    EXPECT_THAT(number_in(field), HasSubstr("is not a whole number from 0 to ")) << field;
  }
}

TEST(Csv, WrittenFieldsAreReadBack) {
  const std::vector<std::string> fields = {"a", "b,c", "\"d\"", "e\nf", ""};
  EXPECT_EQ(Read(CsvLine(fields) + CsvLine({"1", "2", "3", "4", "5"}))[0],
            (std::vector<std::string>{"a", "b,c", "\"d\"", "e\nf"}));
}

}  // namespace
}  // namespace psring
