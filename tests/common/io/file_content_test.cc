#include "common/io/file_content.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/io/hash.h"

namespace psring {
namespace {

std::string SomeBytes(size_t count) {
  std::string bytes(count, 0);
  for (size_t i = 0; i < count; ++i) bytes[i] = static_cast<char>(i * i / 7 + i);
  return bytes;
}

TEST(Hasher, OfPiecesEqualsThatOfTheWhole) {
  const std::string bytes = SomeBytes(1000);
  for (const size_t length : {0, 1, 63, 64, 65, 128, 1000}) {
    for (const size_t piece : {1, 7, 63, 64, 65, 500}) {
      Hasher hasher;
      for (size_t at = 0; at < length; at += piece)
        hasher.Add(bytes.data() + at, std::min(piece, length - at));
      EXPECT_EQ(hasher.Hex(), HashBytes(bytes.data(), length)) << length << " bytes in pieces of " << piece;
    }
  }
  // It is in files.
  EXPECT_EQ(HashBytes("weights", 7), "cacd512601b56fdb");
}

TEST(FileContent, IsReadFromMemoryAndFromDisk) {
  const std::string path = absl::StrCat(testing::TempDir(), "/content-", getpid());
  for (const size_t size : {0, 1, 100, 3'000'000}) {
    const std::string bytes = SomeBytes(size);
    std::ofstream(path, std::ios::binary) << bytes;
    const auto opened = FileContent::Open(path).value();
    for (const FileContent& content : {FileContent(bytes), opened}) {
      EXPECT_EQ(content.size(), size);
      EXPECT_EQ(content.empty(), size == 0);
      EXPECT_EQ(*content.Hash(), HashBytes(bytes.data(), size));
      std::string back(size / 2, 0);
      ASSERT_TRUE(content.Read(size - size / 2, size / 2, back.data()).ok());
      EXPECT_TRUE(back == bytes.substr(size - size / 2));
      EXPECT_TRUE(content.Read(size, 0, nullptr).ok());
      char byte = 0;
      EXPECT_EQ(content.Read(size, 1, &byte).code(), absl::StatusCode::kDataLoss);
      EXPECT_EQ(content.Read(UINT64_MAX, 2, &byte).code(), absl::StatusCode::kDataLoss);
    }
  }
  const auto opened = FileContent::Open(path).value();
  std::filesystem::resize_file(path, 10);
  std::string back(20, 0);
  EXPECT_TRUE(opened.Read(0, 10, back.data()).ok());
  EXPECT_EQ(opened.Read(0, 20, back.data()).message(), "it ends early");
  std::filesystem::remove(path);
  EXPECT_EQ(FileContent::Open(path).status().code(), absl::StatusCode::kNotFound);
  EXPECT_FALSE(FileContent::Open(testing::TempDir()).ok());
}

}  // namespace
}  // namespace psring
