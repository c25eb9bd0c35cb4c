#include "common/cli/config_file.h"

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

TEST(ParseConfig, ReadsTheSubsetOfTomlThatFlagsNeed) {
  EXPECT_EQ(Pairs(""), "");
  EXPECT_EQ(Pairs("a = 1\r\n\n  b=true # c\n"), "a=1;b=true;");
  EXPECT_EQ(Pairs("lr = [0.1, 1e-3,\n # more\n -2 , \"x\"]"), "lr=0.1,1e-3,-2,x;");
  EXPECT_EQ(Pairs(R"(a = "q\"b\\ #\n" # c)"), "a=q\"b\\ #\n;");
  EXPECT_EQ(Pairs(R"(a = 'C:\x "y"')"), "a=C:\\x \"y\";");
  EXPECT_EQ(Pairs("[debug]\nscore = \"test\""), "debug.score=test;");
}

TEST(ParseConfig, NamesTheLineOfAnError) {
  for (const auto& [text, what] : {std::pair{"a = 1\na = 2", "f:2: a is given twice"},
                                   {"a = b", "f:1: b needs quotes"},
                                   {"a =", "f:1: a value expected"},
                                   {"a = 1 2", "f:1: unexpected text at the end of the line"},
                                   {"a", "f:1: '=' expected after a"},
                                   {"= 1", "f:1: a flag's name expected, as in: batch = 64"},
                                   {"[a", "f:1: ']' expected after a section's name"},
                                   {"a = [1", "f:1: ',' or ']' expected in a list"},
                                   {"a = \"1", "f:1: a string has no closing quote"},
                                   {"\n\na = \"\\q\"", "f:3: unknown escape in a string"}}) {
    EXPECT_EQ(Pairs(text), what);
  }
}

TEST(ConfigLine, RoundTrips) {
  for (const std::string value :
       {"", "1", "-1e3", "1:3,2:1.5", "true", "a # b", "\"\\\n\t'", "0x10", "ring"}) {
    EXPECT_EQ(Pairs(ConfigLine("key", value)), absl::StrCat("key=", value, ";"));
  }
  EXPECT_EQ(ConfigLine("batch", "64"), "batch = 64\n");
}

}  // namespace
}  // namespace psring
