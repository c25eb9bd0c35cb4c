#include "common/text/peer_text.h"

#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_format.h"

namespace psring {
namespace {

TEST(PeerText, KeepsPrintableUtf8) {
  const std::string text = "rank 1: caf\xc3\xa9 \xe6\xaf\x94 \xf0\x9f\x9a\x80 'a' \\";
  EXPECT_EQ(PeerText(text), text);
  EXPECT_EQ(PeerText(""), "");
}

TEST(PeerText, EscapesControlCharactersAndLines) {
  EXPECT_EQ(PeerText("a\nb\tc\r\x1b[2J\x7f"), "a\\x0ab\\x09c\\x0d\\x1b[2J\\x7f");
  EXPECT_EQ(PeerText(std::string("a\0b", 3)), "a\\x00b");
  EXPECT_EQ(PeerText("\xc2\x9b[2J"), "\\xc2\\x9b[2J");
  for (const std::string text :
       {"\xe2\x80\xae", "\xe2\x81\xa7", "\xe2\x80\x8f", "\xd8\x9c", "\xe2\x80\xa8", "\xe2\x80\xa9",
        "\xc2\x85", "\xe2\x80\x8b", "\xef\xbb\xbf", "\xf3\xa0\x81\x81"}) {
    std::string escaped;
    for (const char byte : text) absl::StrAppendFormat(&escaped, "\\x%02x", static_cast<unsigned char>(byte));
    EXPECT_EQ(PeerText(text), escaped) << "it changes lines or the direction of writing, or is invisible";
    EXPECT_EQ(OneLine(text), escaped);
    EXPECT_EQ(OneLine(text, "\n\t"), escaped);
  }
}

TEST(PeerText, OnlyTextsOfPsringHaveSeveralLines) {
  const std::string lines = "two lines\n  | \tof plain text";
  EXPECT_EQ(OneLine(lines, "\n\t"), lines);
  EXPECT_EQ(OneLine(lines), "two lines\\x0a  | \\x09of plain text");
  EXPECT_EQ(MessageText("it failed\n  | the log\x1b\n  | of it\n--resume it continues\npsring: done"),
            "it failed\n  | the log\\x1b\n  | of it\n--resume it continues\\x0apsring: done");
  EXPECT_EQ(OneLine(std::string(100'000, 'x')), std::string(100'000, 'x'));
}

TEST(PeerText, EscapesWhatIsNotUtf8) {
  EXPECT_EQ(PeerText("caf\xe9"), "caf\\xe9");
  EXPECT_EQ(PeerText("\xc2"), "\\xc2") << "truncated";
  EXPECT_EQ(PeerText("\xc0\xaf"), "\\xc0\\xaf") << "too long";
  EXPECT_EQ(PeerText("\xe0\x80\xaf"), "\\xe0\\x80\\xaf");
  EXPECT_EQ(PeerText("\xed\xa0\x80"), "\\xed\\xa0\\x80") << "a surrogate";
  EXPECT_EQ(PeerText("\xf4\x90\x80\x80"), "\\xf4\\x90\\x80\\x80") << "above U+10FFFF";
  EXPECT_EQ(PeerText("\xff\xc3\xa9"), "\\xff\xc3\xa9");
}

TEST(PeerText, IsBoundedAndEndsAtACharacter) {
  EXPECT_EQ(PeerText(std::string(kMaxPeerTextBytes, 'x')), std::string(kMaxPeerTextBytes, 'x'));
  EXPECT_EQ(PeerText(std::string(1 << 20, 'x')), std::string(kMaxPeerTextBytes - 3, 'x') + "...");
  EXPECT_EQ(PeerText("abcdef", 5), "ab...");
  EXPECT_EQ(PeerText("a\xc3\xa9\xc3\xa9\xc3\xa9", 5), "a...");
  EXPECT_EQ(PeerText("\x1b\x1b", 7), "\\x1b...");
  EXPECT_EQ(PeerText("\x1b\x1b", 6), "...");
}

}  // namespace
}  // namespace psring
