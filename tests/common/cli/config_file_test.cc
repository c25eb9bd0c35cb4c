#include "common/cli/config_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace psring {
namespace {

std::string Pairs(const std::string& text) {
  const auto items = ParseConfig(text, "f");
  if (!items.ok()) return std::string(items.status().message());
  std::string pairs;
  for (const ConfigItem& item : *items) absl::StrAppend(&pairs, item.key, "=", item.value, ";");
  return pairs;
}

TEST(ParseConfig, ReadsWhatFlagsNeed) {
  EXPECT_EQ(Pairs(""), "");
  EXPECT_EQ(Pairs("a = 1\r\n\n  b=true # c\n"), "a=1;b=true;");
  EXPECT_EQ(Pairs("lr = [0.1, 1e-3,\n # more\n -2 , \"x\"]"), "lr=0.1,0.001,-2,x;");
  EXPECT_EQ(Pairs(R"(a = "q\"b\\ #\n" # c)"), "a=q\"b\\ #\n;");
  EXPECT_EQ(Pairs(R"(a = 'C:\x "y"')"), "a=C:\\x \"y\";");
  EXPECT_EQ(Pairs("[debug]\nscore = \"test\""), "debug.score=test;");
  EXPECT_EQ(Pairs("z = 1\nb = 0x10\na = 1_000"), "z=1;b=16;a=1000;");
}

TEST(ParseConfig, NamesThePlaceOfAnErrorInOneLine) {
  for (const auto& [text, line] : {std::pair{"a = 1\na = 2", 2},
                                   {"a = b", 1},
                                   {"a =", 1},
                                   {"a = 1 2", 1},
                                   {"a", 1},
                                   {"= 1", 1},
                                   {"[a", 1},
                                   {"a = [1", 1},
                                   {"a = \"1", 1},
                                   {"a = 2026-11-28", 1},
                                   {"a = [[1], 2]", 1},
                                   {"[a.b.c]\nd = 1", 1},
                                   {"a = \"\xff\"", 1},
                                   {"\n\na = \"\\q\"", 3}}) {
    EXPECT_THAT(Pairs(text), testing::MatchesRegex(absl::StrCat("f:", line, ":[0-9]+: [^\n]+"))) << text;
  }
}

TEST(ConfigLine, RoundTrips) {
  for (const std::string value :
       {"", "1", "-1e3", "1:3,2:1.5", "true", "a # b", "\"\\\n\t'\x7f", "0x10", "ring", ".5", "0.50", "007",
        "0.05", "1e400", "inf", "99999999999999999999", "训练"}) {
    EXPECT_EQ(Pairs(ConfigLine("key", value)), absl::StrCat("key=", value, ";"));
  }
  EXPECT_EQ(ConfigLine("batch", "64"), "batch = 64\n");
}

}  // namespace
}  // namespace psring
