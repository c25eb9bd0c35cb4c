#include "common/io/json_shape.h"

#include <gtest/gtest.h>

#include <string>

namespace psring {
namespace {

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
