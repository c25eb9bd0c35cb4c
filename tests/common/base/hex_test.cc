#include "common/base/hex.h"

#include <gtest/gtest.h>

#include <string>

#include "absl/strings/escaping.h"

namespace psring {
namespace {

TEST(Hex, EveryByteSurvivesARoundTrip) {
  std::string bytes;
  for (int value = 0; value < 256; ++value) bytes.push_back(static_cast<char>(value));
  EXPECT_EQ(BytesFromHex(absl::BytesToHexString(bytes)), bytes);
  EXPECT_EQ(BytesFromHex("0aFF"), "\n\xff");
  EXPECT_EQ(BytesFromHex(""), "");
}

TEST(Hex, OtherTextIsEmpty) {
  for (const char* text : {"0", "abc", "0g", "g0", "12 4", "-1"}) EXPECT_EQ(BytesFromHex(text), "") << text;
}

}  // namespace
}  // namespace psring
