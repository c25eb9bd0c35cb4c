#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/io/json_object.h"
#include "common/io/json_text.h"
#include "common/io/untrusted_json.h"
#include "tests/has.h"

namespace psring {
namespace {

constexpr size_t kPlenty = 1 << 20;

TEST(JsonObject, ReadsFieldsOfEachType) {
  const auto json =
      JsonObject::Parse(
          R"({"flag": true, "count": -3, "time": 0.5, "name": "ring", "names": ["a", ""], "other": null})",
          kPlenty)
          .value();
  EXPECT_EQ(json.Bool("flag").value(), true);
  EXPECT_EQ(json.WholeNumber("count", -3, 7).value(), -3);
  EXPECT_EQ(json.Number("time", 0, 1).value(), 0.5);
  EXPECT_EQ(json.Number("count", -5, 5).value(), -3);
  EXPECT_EQ(json.Text("name", 4).value(), "ring");
  EXPECT_EQ(json.Texts("names", 2, 1).value(), (std::vector<std::string>{"a", ""}));
}

TEST(JsonObject, RejectsTextThatIsNotAnObject) {
  for (const char* text : {"", "5", "[]", "null", R"("text")", "{", "{} {}", R"({"a": 1e999})", "\xff"})
    EXPECT_TRUE(absl::IsInvalidArgument(JsonObject::Parse(text, kPlenty).status())) << text;
}

// In quadratic time this would take minutes.
TEST(JsonObject, ReadsAMillionObjectsInLinearTime) {
  std::string text = R"({"a": [{})";
  for (int i = 0; i < 1'000'000; ++i) text += ",{}";
  EXPECT_EQ(JsonObject::Parse(text + "]}", 8 * kPlenty).status(), absl::OkStatus());
}

TEST(JsonObject, RejectsTextThatIsTooLongOrTooDeep) {
  EXPECT_TRUE(JsonObject::Parse("{   }", 5).ok());
  EXPECT_TRUE(absl::IsInvalidArgument(JsonObject::Parse("{    }", 5).status()));
  const auto nested = [](int depth) {
    return absl::StrCat(R"({"a": )", std::string(static_cast<size_t>(depth), '['),
                        std::string(static_cast<size_t>(depth), ']'), "}");
  };
  EXPECT_TRUE(JsonObject::Parse(nested(8), kPlenty).ok());
  EXPECT_THAT(JsonObject::Parse(nested(100000), kPlenty).status().message(), Has("deeper"));
}

TEST(JsonObject, EveryReaderRejectsEveryOtherType) {
  const auto json =
      JsonObject::Parse(
          R"({"bool": true, "whole": 3, "real": 2.5, "text": "x", "list": ["x"], "object": {}, "null": null})",
          kPlenty)
          .value();
  for (const std::string type : {"bool", "whole", "real", "text", "list", "object", "null", "missing"}) {
    const char* key = type.c_str();
    EXPECT_EQ(json.Bool(key).ok(), type == "bool") << type;
    EXPECT_EQ(json.WholeNumber(key, 0, 9).ok(), type == "whole") << type;
    EXPECT_EQ(json.Unsigned(key).ok(), type == "whole") << type;
    EXPECT_EQ(json.Number(key, 0, 9).ok(), type == "whole" || type == "real") << type;
    EXPECT_EQ(json.Text(key, 9).ok(), type == "text") << type;
    EXPECT_EQ(json.Texts(key, 9, 9).ok(), type == "list") << type;
  }
}

TEST(JsonObject, RejectsValuesOutOfBounds) {
  const auto json =
      JsonObject::Parse(
          R"({"whole": 8, "huge": 18446744073709551615, "long": "four", "many": ["a", "b"], "mixed": ["a", 5]})",
          kPlenty)
          .value();
  EXPECT_FALSE(json.WholeNumber("whole", 0, 7).ok());
  EXPECT_FALSE(json.WholeNumber("whole", 9, 10).ok());
  EXPECT_FALSE(json.WholeNumber("huge", INT64_MIN, INT64_MAX).ok());
  EXPECT_EQ(json.Unsigned("huge").value(), UINT64_MAX);
  EXPECT_FALSE(json.Number("whole", 0, 7.5).ok());
  EXPECT_FALSE(json.Text("long", 3).ok());
  EXPECT_FALSE(json.Texts("many", 1, 1).ok());
  EXPECT_FALSE(json.Texts("many", 2, 0).ok());
  EXPECT_FALSE(json.Texts("mixed", 2, 9).ok());
}

TEST(JsonObject, NamesTheFieldWhatItExpectsAndWhatItFound) {
  const auto json =
      JsonObject::Parse(
          R"({"nodes": [{}, {"gpus": 4294967297}, 3], "name": ["a", 5], "times": [1, -2], "text": "\n", "empty": {}})",
          kPlenty, "cluster.json")
          .value();
  const auto message = [](const auto& value) { return std::string(value.status().message()); };
  EXPECT_EQ(message(json.Objects("nodes", 3)), "cluster.json: nodes[2]: expected an object, found 3");
  EXPECT_EQ(message(json.Objects("nodes", 2)), "cluster.json: nodes: expected at most 2 elements, found 3");
  EXPECT_EQ(message(json.Objects("empty", 3)), "cluster.json: empty: expected a list, found an object");
  EXPECT_EQ(message(json.Texts("name", 9, 9)),
            "cluster.json: name[1]: expected a text of at most 9 bytes, found 5");
  EXPECT_EQ(message(json.Numbers("times", 9, 0, 1.5)),
            "cluster.json: times[1]: expected a number from 0 to 1.5, found -2");
  EXPECT_EQ(message(json.WholeNumbers("times", 9, 0, 1)),
            "cluster.json: times[1]: expected a whole number from 0 to 1, found -2");
  EXPECT_EQ(message(json.Bool("text")), "cluster.json: text: expected true or false, found \"\\n\"");
  EXPECT_EQ(message(json.Object("none")), "cluster.json: none: missing");
  const auto nested = JsonObject::Parse(R"({"nodes": [{}, {"gpus": 4294967297}]})", kPlenty, "cluster.json");
  const auto nodes = nested->Objects("nodes", 2).value();
  EXPECT_EQ(message(nodes[1].WholeNumber("gpus", 1, 1024)),
            "cluster.json: nodes[1].gpus: expected a whole number from 1 to 1024, found 4294967297");
  EXPECT_EQ(json.UnknownField("empty").message(), "cluster.json: unknown field \"empty\"");
}

TEST(JsonObject, AMissingFieldMayHaveAValue) {
  const auto json = JsonObject::Parse(R"({"text": 5, "null": null})", kPlenty).value();
  EXPECT_EQ(json.Text("none", 9, "x").value(), "x");
  EXPECT_EQ(json.WholeNumber("none", 0, 9, 3).value(), 3);
  EXPECT_EQ(json.Number("none", 0, 9, -1).value(), -1);
  EXPECT_TRUE(json.Bool("none", true).value());
  // A wrong one has none.
  EXPECT_FALSE(json.Text("text", 9, "x").ok());
  EXPECT_FALSE(json.WholeNumber("null", 0, 9, 3).ok());
  EXPECT_TRUE(std::isnan(json.NumberOrNull("null", 0, 9).value()));
}

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
