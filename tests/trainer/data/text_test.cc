#include "trainer/data/text.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace psring {
namespace {

namespace fs = std::filesystem;

class Texts : public testing::Test {
 protected:
  Texts() : dir_(fs::path(testing::TempDir()) / ("texts_" + std::to_string(getpid()))) {
    fs::create_directories(dir_);
  }
  ~Texts() override { fs::remove_all(dir_); }

  std::string Write(const std::string& name, const std::string& bytes) {
    const std::string path = (dir_ / name).string();
    std::ofstream(path, std::ios::binary) << bytes;
    return path;
  }

  const fs::path dir_;
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
  const auto data = ReadText(Write("a", text), 3);
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_EQ(data->train.spec().classes, 4);
  // 196 bytes train, 4 test: a window of 3 needs one token more.
  EXPECT_EQ(data->train.count(), 65);
  EXPECT_EQ(data->train.predictions(), 195);
  EXPECT_EQ(data->test.count(), 1);
  const Window first = Read(data->train, 0), second = Read(data->train, 1);
  EXPECT_EQ(first.tokens, (std::vector<int32_t>{3, 1, 2}));
  EXPECT_EQ(first.labels, (std::vector<int32_t>{1, 2, 0}));
  EXPECT_EQ(second.tokens, (std::vector<int32_t>{0, 3, 1}));
}

TEST_F(Texts, ShortTextsAreRejected) {
  EXPECT_NE(ReadText(Write("b", "too short"), 8).status().message().find("too few for --context 8"),
            std::string::npos);
  EXPECT_EQ(ReadText((dir_ / "none").string(), 8).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(Texts, TokenFilesHave16BitNumbers) {
  Write("train.bin", std::string("\1\0\2\0\0\1\3\0\4\0", 10));
  Write("val.bin", std::string("\5\0\6\0\7\0", 6));
  const auto data = ReadTokens(dir_.string(), 2);
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_EQ(data->train.count(), 2);
  EXPECT_EQ(data->test.count(), 1);
  EXPECT_EQ(data->train.spec().classes, 257);
  EXPECT_EQ(Read(data->train, 1).tokens, (std::vector<int32_t>{256, 3}));
  EXPECT_EQ(Read(data->train, 1).labels, (std::vector<int32_t>{3, 4}));
  Write("val.bin", "odd");
  EXPECT_NE(ReadTokens(dir_.string(), 2).status().message().find("is odd"), std::string::npos);
}

}  // namespace
}  // namespace psring
