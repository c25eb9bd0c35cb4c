#include "common/io/json_object.h"

#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace psring {
namespace {

constexpr size_t kPlenty = 1 << 20;

TEST(JsonObject, ReadsFieldsOfEachType) {
  const auto json = JsonObject::Parse(
      R"({"flag": true, "count": -3, "time": 0.5, "name": "ring", "names": ["a", ""], "other": null})",
      kPlenty);
  ASSERT_TRUE(json.ok()) << json.status();
  EXPECT_EQ(json->Bool("flag").value(), true);
  EXPECT_EQ(json->WholeNumber("count", -3, 7).value(), -3);
  EXPECT_EQ(json->Number("time", 0, 1).value(), 0.5);
  EXPECT_EQ(json->Number("count", -5, 5).value(), -3);
  EXPECT_EQ(json->Text("name", 4).value(), "ring");
  EXPECT_EQ(json->Texts("names", 2, 1).value(), (std::vector<std::string>{"a", ""}));
}

TEST(JsonObject, RejectsTextThatIsNotAnObject) {
  for (const char* text : {"", "5", "[]", "null", R"("text")", "{", "{} {}", R"({"a": 1e999})", "\xff"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(JsonObject::Parse(text, kPlenty).status())) << text;
  }
}

TEST(JsonObject, RejectsTextThatIsTooLongOrTooDeep) {
  EXPECT_TRUE(JsonObject::Parse("{   }", 5).ok());
  EXPECT_TRUE(absl::IsInvalidArgument(JsonObject::Parse("{    }", 5).status()));
  const auto nested = [](int depth) {
    return absl::StrCat(R"({"a": )", std::string(static_cast<size_t>(depth), '['),
                        std::string(static_cast<size_t>(depth), ']'), "}");
  };
  EXPECT_TRUE(JsonObject::Parse(nested(8), kPlenty).ok());
  const absl::Status deep = JsonObject::Parse(nested(100000), kPlenty).status();
  EXPECT_TRUE(absl::StrContains(deep.message(), "deeper")) << deep;
}

TEST(JsonObject, EveryReaderRejectsEveryOtherType) {
  const auto json = JsonObject::Parse(
      R"({"bool": true, "whole": 3, "real": 2.5, "text": "x", "list": ["x"], "object": {}, "null": null})",
      kPlenty);
  ASSERT_TRUE(json.ok()) << json.status();
  for (const std::string type : {"bool", "whole", "real", "text", "list", "object", "null", "missing"}) {
    const char* key = type.c_str();
    EXPECT_EQ(json->Bool(key).ok(), type == "bool") << type;
    EXPECT_EQ(json->WholeNumber(key, 0, 9).ok(), type == "whole") << type;
    EXPECT_EQ(json->Number(key, 0, 9).ok(), type == "whole" || type == "real") << type;
    EXPECT_EQ(json->Text(key, 9).ok(), type == "text") << type;
    EXPECT_EQ(json->Texts(key, 9, 9).ok(), type == "list") << type;
    EXPECT_TRUE(absl::StrContains(json->Bool("whole").status().message(), "\"whole\""));
  }
}

TEST(JsonObject, RejectsValuesOutOfBounds) {
  const auto json = JsonObject::Parse(
      R"({"whole": 8, "huge": 18446744073709551615, "long": "four", "many": ["a", "b"], "mixed": ["a", 5]})",
      kPlenty);
  ASSERT_TRUE(json.ok()) << json.status();
  EXPECT_FALSE(json->WholeNumber("whole", 0, 7).ok());
  EXPECT_FALSE(json->WholeNumber("whole", 9, 10).ok());
  EXPECT_FALSE(json->WholeNumber("huge", INT64_MIN, INT64_MAX).ok());
  EXPECT_FALSE(json->Number("whole", 0, 7.5).ok());
  EXPECT_FALSE(json->Text("long", 3).ok());
  EXPECT_FALSE(json->Texts("many", 1, 1).ok());
  EXPECT_FALSE(json->Texts("many", 2, 0).ok());
  EXPECT_FALSE(json->Texts("mixed", 2, 9).ok());
}

}  // namespace
}  // namespace psring
