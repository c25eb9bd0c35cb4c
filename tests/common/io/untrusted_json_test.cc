#include "common/io/untrusted_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/io/json_text.h"

namespace psring {
namespace {

TEST(UntrustedJson, ReadsEveryKindOfValueInTheOrderOfTheText) {
  const std::string text =
      R"({"z":[1,-2,2.5,true,null,"\u00e9",{},[]],"a":{"b":18446744073709551615},"c":[{"d":0},{"d":1}]})";
  EXPECT_EQ(DumpUntrusted(ParseUntrusted(text)),
            "{\"z\":[1,-2,2.5,true,null,\"\xc3\xa9\",{},[]],\"a\":{\"b\":18446744073709551615},"
            "\"c\":[{\"d\":0},{\"d\":1}]}");
  EXPECT_EQ(DumpUntrusted(ParseUntrusted("7")), "7");
  EXPECT_EQ(DumpUntrusted(ParseUntrusted(R"({"a":1,"a":{"b":2}})")), R"({"a":{"b":2}})");
}

TEST(UntrustedJson, DiscardsOtherTexts) {
  for (const char* text : {"", "[1,", "{\"a\":}", "nul", "[1] 2", "[1e999]", "[\"\\ud800\"]", "\xff"})
    EXPECT_TRUE(ParseUntrusted(text).is_discarded()) << text;
}

TEST(UntrustedJson, DiscardsWhatIsNestedTooDeeply) {
  const auto arrays = [](int count) { return std::string(count, '[') + std::string(count, ']'); };
  EXPECT_EQ(DumpUntrusted(ParseUntrusted(arrays(32))), arrays(32));
  for (const int depth : {33, 40, 1 << 20})
    EXPECT_TRUE(ParseUntrusted(arrays(depth)).is_discarded()) << depth;
}

TEST(UntrustedJson, TakesTheElementsOfAFieldOneAfterAnother) {
  std::vector<std::string> taken;
  const auto take = [&](UntrustedJson& element) { taken.push_back(DumpUntrusted(element)); };
  const std::string text = R"({"a":[{"e":[7]}],"e":[1,{"e":[2,3]},[4],"x",null,[]],"b":{"e":[5]},"c":6})";
  EXPECT_TRUE(TakeElements(text, "e", take));
  EXPECT_THAT(taken, testing::ElementsAre("1", R"({"e":[2,3]})", "[4]", R"("x")", "null", "[]"));
  EXPECT_TRUE(TakeElements(R"({"e" : [ ]})", "e", take));
  EXPECT_EQ(taken.size(), 6);
  for (const char* other : {"", "7", "[1]", "{}", R"({"e":7})", R"({"e":{"e":[1]}})", R"([{"e":[1]}])",
                            R"({"e":[1,)", R"({"e":[1]}])", R"(["e",[1]])", R"({"e":[1,]})", R"({"e":[,1]})",
                            R"({"e":[1}]})", R"({"e":[1],"a"})", R"({"e":["]})"}) {
    EXPECT_FALSE(TakeElements(other, "e", take)) << other;
  }
}

TEST(UntrustedJson, DiscardsAnObjectWithTooManyFields) {
  std::string text = "{\"0\":0";
  for (int i = 1; i < 5000; ++i) absl::StrAppend(&text, ",\"", i, "\":0");
  EXPECT_TRUE(ParseUntrusted(absl::StrCat("[", text, "}]")).is_discarded());
}

TEST(JsonShape, CountsLevelsAndTheFieldsOfTheLargestObject) {
  EXPECT_EQ(ShapeOfJson("7").depth, 0u);
  EXPECT_EQ(ShapeOfJson("[[1], {}]").depth, 2u);
  const JsonShape shape = ShapeOfJson(R"({"a": {"b": 1, "c": 2, "d": [{"e": 3}]}, "f": {"g": 4}})");
  EXPECT_EQ(shape.depth, 4u);
  EXPECT_EQ(shape.fields, 3u);
}

TEST(JsonShape, DoesNotCountWhatIsInStrings) {
  const JsonShape shape = ShapeOfJson(R"({"[{:\"[{:\\": "\\\"[[{\":"})");
  EXPECT_EQ(shape.depth, 1u);
  EXPECT_EQ(shape.fields, 1u);
}

TEST(JsonShape, AcceptsEveryText) {
  for (const char* text : {"", "]]]}", ":::", "\"", "\"\\", "{\"a\":", "\xff["}) ShapeOfJson(text);
  EXPECT_EQ(ShapeOfJson("]]:").depth, 0u);
  EXPECT_EQ(ShapeOfJson(std::string(1 << 20, '{')).depth, 1000u);
}

}  // namespace
}  // namespace psring
