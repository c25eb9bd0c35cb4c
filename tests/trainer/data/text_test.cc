#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/has.h"
#include "tests/test_folder.h"
#include "trainer/data/sources.h"

namespace psring {
namespace {

class Texts : public testing::Test {
 protected:
  const TestFolder folder_;
};

struct Window {
  std::vector<int32_t> tokens, labels;
};
Window Read(const Dataset& data, int64_t index) {
  const size_t context = static_cast<size_t>(data.spec().labels);
  Window window{.tokens = std::vector<int32_t>(context), .labels = std::vector<int32_t>(context)};
  void* const inputs[] = {window.tokens.data()};
  data.Gather({index}, inputs, window.labels.data());
  return window;
}

TEST_F(Texts, BytesAreNumberedAndLabelsAreTheNextTokens) {
  std::string text;
  for (int i = 0; i < 50; ++i) text += "dbca";
  const auto data = ReadText(folder_.Put("a", text), 3).value();
  EXPECT_EQ(data.train.spec().classes, 4);
  // 196 bytes train, 4 test: a window of 3 needs one token more.
  EXPECT_EQ(data.train.count(), 65);
  EXPECT_EQ(data.train.predictions(), 195);
  EXPECT_EQ(data.test.count(), 1);
  const Window first = Read(data.train, 0), second = Read(data.train, 1);
  EXPECT_EQ(first.tokens, (std::vector<int32_t>{3, 1, 2}));
  EXPECT_EQ(first.labels, (std::vector<int32_t>{1, 2, 0}));
  EXPECT_EQ(second.tokens, (std::vector<int32_t>{0, 3, 1}));
}

TEST_F(Texts, ShortTextsAreRejected) {
  EXPECT_THAT(ReadText(folder_.Put("b", "too short"), 8).status().message(), Has("too few for --context 8"));
  EXPECT_EQ(ReadText(folder_ / "none", 8).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(Texts, TokenFilesHave16BitNumbers) {
  folder_.Put("train.bin", std::string("\1\0\2\0\0\1\3\0\4\0", 10));
  folder_.Put("val.bin", std::string("\5\0\6\0\7\0", 6));
  const auto data = ReadTokens(folder_.path(), 2).value();
  EXPECT_EQ(data.train.count(), 2);
  EXPECT_EQ(data.test.count(), 1);
  EXPECT_EQ(data.train.spec().classes, 257);
  EXPECT_EQ(Read(data.train, 1).tokens, (std::vector<int32_t>{256, 3}));
  EXPECT_EQ(Read(data.train, 1).labels, (std::vector<int32_t>{3, 4}));
  folder_.Put("val.bin", "odd");
  EXPECT_THAT(ReadTokens(folder_.path(), 2).status().message(), Has("is odd"));
}

// `count` numbers from `first` on, of `width` bytes in little-endian order.
std::string Numbers(int count, int64_t first, int width) {
  std::string bytes;
  for (int64_t number = first; number < first + count; ++number)
    bytes.append(reinterpret_cast<const char*>(&number), static_cast<size_t>(width));
  return bytes;
}

// llm.c's header.
std::string Header(int32_t magic, int32_t version, int32_t tokens) {
  std::vector<int32_t> header(256);
  header[0] = magic;
  header[1] = version;
  header[2] = tokens;
  return std::string(reinterpret_cast<const char*>(header.data()), 1024);
}

TEST_F(Texts, LlmcsHeaderIsNotRead) {
  folder_.Put("train.bin", Header(20240520, 1, 300) + Numbers(300, 50257 - 300, 2));
  folder_.Put("val.bin", Header(20240520, 1, 9) + Numbers(9, 5, 2));
  const auto data = ReadTokens(folder_.path(), 2).value();
  EXPECT_EQ(data.train.count(), 149);
  EXPECT_EQ(data.train.spec().classes, 50257);
  EXPECT_EQ(Read(data.test, 0).tokens, (std::vector<int32_t>{5, 6}));
}

TEST_F(Texts, OtherTokenFilesAreRejected) {
  folder_.Put("val.bin", Numbers(300, 0, 2));
  for (const auto& [bytes, error] : std::vector<std::pair<std::string, std::string>>{
           {Numbers(300, 100'000, 4), "seem to have 32 or 64 bits"},
           {Numbers(300, 200, 4), "seem to have 32 or 64 bits"},
           {Numbers(300, 1'000'000, 4), "seem to have 32 or 64 bits"},
           {Numbers(300, 40'000, 8), "seem to have 32 or 64 bits"},
           {Header(20240801, 7, 300) + Numbers(300, 0, 4), "llm.c's header of 32-bit tokens (Llama 3)"},
           {Header(20240520, 2, 300) + Numbers(300, 0, 2), "psring reads version 1"},
           {Header(20240520, 1, 300) + Numbers(299, 0, 2), "1 and 300 tokens, but 598 bytes follow"},
           {Header(20240520, 1, 300) + Numbers(300, 50000, 2),
            "token 50257 at position 257 is outside the vocabulary of 50257"},
           {"\x93NUMPY\1" + Numbers(300, 0, 2), "a NumPy array (.npy); write its values with .tofile()"},
           {"\x1f\x8b\x08" + Numbers(300, 0, 2), "compressed by gzip"},
           {"PK\3\4" + Numbers(300, 0, 2), "a zip archive"}}) {
    const std::string path = folder_.Put("train.bin", bytes);
    const std::string message(ReadTokens(folder_.path(), 2).status().message());
    EXPECT_EQ(message.find(path), 0) << message;
    EXPECT_THAT(message, Has(error));
    EXPECT_EQ(message.find('\n'), std::string::npos);
  }
  // 16-bit tokens of large and small vocabularies.
  for (const std::string& bytes :
       {Numbers(300, 65535 - 300, 2), Numbers(600, 0, 2), std::string(600, '\7')}) {
    folder_.Put("train.bin", bytes);
    EXPECT_TRUE(ReadTokens(folder_.path(), 2).ok()) << ReadTokens(folder_.path(), 2).status();
  }
}

TEST_F(Texts, APartOfTheirPositionsHasTheirTokensAndLabels) {
  const DataSplits data =
      ReadText(folder_.Put("text", std::string(600, 'x') + "abcdefghijklmnopqrstuvwxyz"), 8).value();
  const Dataset part = data.train.Positions({{1, 2}, {6, 1}});
  EXPECT_EQ(part.count(), data.train.count());
  EXPECT_EQ(part.spec().labels, 3);
  EXPECT_EQ(part.spec().inputs[0].count(), 3u);
  for (int64_t index : {int64_t{0}, data.train.count() - 1}) {
    const Window whole = Read(data.train, index), own = Read(part, index);
    EXPECT_EQ(own.tokens, (std::vector<int32_t>{whole.tokens[1], whole.tokens[2], whole.tokens[6]}));
    EXPECT_EQ(own.labels, (std::vector<int32_t>{whole.labels[1], whole.labels[2], whole.labels[6]}));
  }
}

}  // namespace
}  // namespace psring
