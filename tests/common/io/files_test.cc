#include "common/io/files.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/io/checkpoint_folder.h"
#include "common/io/file_content.h"
#include "common/io/hash.h"
#include "common/io/safetensors.h"
#include "tests/decode_safetensors.h"
#include "tests/kept_files.h"
#include "tests/test_folder.h"

namespace psring {
namespace {

namespace fs = std::filesystem;

std::vector<NamedTensor> Some() {
  return {{.name = "fc1.weight", .shape = {2, 3}, .values = {1, 2, 3, 4, 5, 6}},
          {.name = "fc1.bias", .shape = {2}, .values = {-1, .5}},
          {.name = "nothing", .shape = {0, 7}, .values = {}},
          {.name = "scalar", .shape = {}, .values = {42}}};
}

// A file with this header and so many bytes of data.
std::string File(const std::string& header, size_t data_bytes) {
  std::string bytes(8, 0);
  for (size_t i = 0; i < 8; ++i) bytes[i] = static_cast<char>(header.size() >> (8 * i));
  return bytes + header + std::string(data_bytes, 0);
}

std::string ErrorOf(const std::string& bytes) {
  return std::string(DecodeSafetensors(bytes).status().message());
}

TEST(Safetensors, RoundTrips) {
  const auto back = DecodeSafetensors(EncodeSafetensors(Some(), {{"format", "pt"}})).value();
  ASSERT_EQ(back.size(), Some().size());
  for (const NamedTensor& tensor : Some()) {
    const auto same = [&](const NamedTensor& other) { return other.name == tensor.name; };
    const auto found = std::find_if(back.begin(), back.end(), same);
    ASSERT_NE(found, back.end()) << tensor.name;
    EXPECT_EQ(found->shape, tensor.shape);
    EXPECT_EQ(found->values, tensor.values);
  }
}

TEST(Safetensors, AnEmptyListIsValid) {
  EXPECT_TRUE(DecodeSafetensors(EncodeSafetensors({}, {})).value().empty());
}

// As the format is specified, so that other readers find the values.
TEST(Safetensors, HasTheLayoutOfTheFormat) {
  const std::string bytes =
      EncodeSafetensors({{.name = "a", .shape = {1}, .values = {1.5}}}, {{"step", "3"}});
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), 8);
  EXPECT_EQ(length % 8, 0);
  std::string header = bytes.substr(8, length);
  header.erase(header.find_last_not_of(' ') + 1);
  EXPECT_EQ(header, R"({"__metadata__":{"step":"3"},"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})");
  float value = 0;
  ASSERT_EQ(bytes.size(), 8 + length + 4);
  std::memcpy(&value, bytes.data() + 8 + length, 4);
  EXPECT_EQ(value, 1.5);
}

TEST(Safetensors, ErrorsNameTheProblem) {
  EXPECT_EQ(ErrorOf(""), "it ends early");
  EXPECT_EQ(ErrorOf("no such thing at all"), "it is truncated, or not a safetensors file");
  EXPECT_EQ(ErrorOf(File("[]", 0)), "its header is not a JSON object");
  EXPECT_EQ(ErrorOf(File("{", 0)), "its header is not a JSON object");
  EXPECT_EQ(ErrorOf(File(R"({"a":1})", 0)), "its tensor \"a\" has no dtype, shape and data_offsets");
  const auto tensor = [](const std::string& type, const std::string& shape, const std::string& place) {
    return absl::StrCat(R"({"a":{"dtype":")", type, R"(","shape":)", shape, R"(,"data_offsets":)", place,
                        "}}");
  };
  EXPECT_EQ(ErrorOf(File(tensor("BF16", "[2]", "[0,4]"), 4)),
            "its tensor \"a\" is of type \"BF16\"; psring reads F32");
  EXPECT_EQ(ErrorOf(File(tensor("F32", "[-1]", "[0,4]"), 4)),
            "its tensor \"a\" has an invalid shape or offsets");
  EXPECT_EQ(ErrorOf(File(tensor("F32", "[1]", "[0,4,8]"), 4)),
            "its tensor \"a\" has an invalid shape or offsets");
  EXPECT_EQ(ErrorOf(File(tensor("F32", "[1]", "[0,8]"), 4)), "its tensor \"a\" is outside the file");
  EXPECT_EQ(ErrorOf(File(tensor("F32", "[1]", "[4,0]"), 4)), "its tensor \"a\" is outside the file");
  for (const char* shape : {"[2]", "[4294967296,4294967296]", "[9223372036854775807,2]"})
    EXPECT_EQ(ErrorOf(File(tensor("F32", shape, "[0,4]"), 4)),
              "its tensor \"a\" does not have as many values as its shape")
        << shape;
  EXPECT_EQ(ErrorOf(File(tensor("F32", "[1]", "[4,8]"), 8)), "its tensors overlap or have gaps");
  EXPECT_EQ(ErrorOf(File(tensor("F32", "[1]", "[0,4]"), 8)), "it has bytes that belong to no tensor");
}

TEST(Safetensors, LeavesOutPyTorchsCountersOfBatches) {
  const std::string counter = R"({"n.num_batches_tracked":{"dtype":"I64","shape":[],"data_offsets":[0,8]},)"
                              R"("a":{"dtype":"F32","shape":[1],"data_offsets":[8,12]}})";
  const auto tensors = DecodeSafetensors(File(counter, 12)).value();
  ASSERT_EQ(tensors.size(), 1);
  EXPECT_EQ(tensors[0].name, "a");
  EXPECT_EQ(ErrorOf(File(counter, 11)), "its tensor \"a\" is outside the file");
  EXPECT_EQ(ErrorOf(File(R"({"steps":{"dtype":"I64","shape":[],"data_offsets":[0,8]}})", 8)),
            "its tensor \"steps\" is of type \"I64\"; psring reads F32");
}

TEST(Safetensors, OverlappingTensorsAreRejected) {
  const std::string one = R"("dtype":"F32","shape":[1],"data_offsets":[0,4]})";
  EXPECT_EQ(ErrorOf(File(absl::StrCat("{\"a\":{", one, ",\"b\":{", one, "}"), 4)),
            "its tensors overlap or have gaps");
}

TEST(Safetensors, TruncationIsAnError) {
  const std::string whole = EncodeSafetensors(Some(), {{"format", "pt"}});
  for (size_t length = 0; length < whole.size(); ++length)
    EXPECT_FALSE(DecodeSafetensors(whole.substr(0, length)).ok()) << length;
}

// With a flipped bit, the result is an error or a consistent file.
TEST(Safetensors, AFlippedBitIsAnErrorOrAConsistentFile) {
  const std::string whole = EncodeSafetensors(Some(), {{"format", "pt"}});
  for (size_t bit = 0; bit < 8 * whole.size(); ++bit) {
    std::string flipped = whole;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << (bit % 8)));
    const auto tensors = DecodeSafetensors(flipped);
    if (!tensors.ok()) {
      EXPECT_EQ(tensors.status().message().find('\n'), std::string::npos) << tensors.status();
      continue;
    }
    for (const NamedTensor& tensor : *tensors) {
      int64_t count = 1;
      for (const int64_t extent : tensor.shape) count *= extent;
      EXPECT_EQ(count, tensor.values.size());
    }
  }
}

class CheckpointFolder : public testing::Test {
 protected:
  absl::Status Save(int64_t step, int64_t sequence, int keep = 2, const std::string& text = "w") {
    return SaveCheckpoint(
        folder_.string(), step,
        ContentOf({{kModelFile, text}, {kPositionFile, absl::StrCat("{\"sequence\":", sequence, "}")}}),
        keep);
  }
  std::vector<int64_t> Steps() const {
    std::vector<int64_t> steps;
    for (const CheckpointPath& one : ListCheckpoints(folder_.string())) steps.push_back(one.step);
    return steps;
  }
  size_t Entries() const {
    return static_cast<size_t>(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()));
  }

  const TestFolder temporary_;
  const fs::path folder_ = temporary_.path();
};

TEST_F(CheckpointFolder, KeepsTheNewest) {
  for (int64_t i = 1; i <= 5; ++i) {
    ASSERT_TRUE(Save(10 * i, i, 3).ok());
    EXPECT_EQ(Steps().front(), 10 * i);
    EXPECT_EQ(Steps().size(), std::min<int64_t>(i, 3));
  }
  EXPECT_EQ(Steps(), (std::vector<int64_t>{50, 40, 30}));
  EXPECT_EQ(Entries(), 3);
  ASSERT_TRUE(Save(60, 6, 1).ok());
  EXPECT_EQ(Entries(), 1);
}

// A run with more workers makes fewer steps of the same samples.
TEST_F(CheckpointFolder, TheNewestIsTheLastWritten) {
  ASSERT_TRUE(Save(100, 1).ok());
  ASSERT_TRUE(Save(60, 2).ok());
  EXPECT_EQ(Steps(), (std::vector<int64_t>{60, 100}));
  ASSERT_TRUE(Save(70, 3).ok());
  EXPECT_EQ(Steps(), (std::vector<int64_t>{70, 60}));
}

TEST_F(CheckpointFolder, ACheckpointOfTheSameStepIsReplaced) {
  ASSERT_TRUE(Save(10, 1, 2, "old").ok());
  ASSERT_TRUE(Save(10, 2, 2, "new").ok());
  EXPECT_EQ(*ReadFile((folder_ / "step10" / kModelFile).string()), "new");
  EXPECT_EQ(Entries(), 1);
}

TEST_F(CheckpointFolder, UnfinishedCheckpointsAreIgnoredAndRemoved) {
  fs::create_directories(folder_ / "step30.part");
  std::ofstream(folder_ / "step30.part" / kPositionFile) << "{\"sequence\":3}";
  fs::create_directories(folder_ / "step20");  // not whole: another writer's, or a removal cut short
  std::ofstream(folder_ / "step20" / kModelFile) << "w";
  EXPECT_TRUE(Steps().empty());
  ASSERT_TRUE(Save(10, 1).ok());
  EXPECT_EQ(Steps(), std::vector<int64_t>{10});
  EXPECT_FALSE(fs::exists(folder_ / "step30.part"));
}

TEST_F(CheckpointFolder, OtherFilesAreKept) {
  for (const char* name : {"notes.txt", "stepwise", "step-1", "model"}) {
    fs::create_directories(folder_ / name);
    std::ofstream(folder_ / name / kPositionFile) << "{\"sequence\":1}";
  }
  for (int64_t i = 1; i <= 3; ++i) ASSERT_TRUE(Save(i, i, 1).ok());
  EXPECT_EQ(Entries(), 5);
}

TEST_F(CheckpointFolder, AnUnreadableOneIsTheOldest) {
  ASSERT_TRUE(Save(10, 1).ok());
  fs::create_directories(folder_ / "step99");
  std::ofstream(folder_ / "step99" / kPositionFile) << "{\"seq";
  EXPECT_EQ(Steps(), (std::vector<int64_t>{10, 99}));
}

TEST_F(CheckpointFolder, AnotherRunsCheckpointsAreAnError) {
  ASSERT_TRUE(OpenCheckpoints((folder_ / "new" / "one").string(), 0).ok());
  ASSERT_TRUE(OpenCheckpoints(folder_.string(), 0).ok());
  ASSERT_TRUE(Save(10, 4).ok());
  EXPECT_TRUE(OpenCheckpoints(folder_.string(), 4).ok());
  const absl::Status refused = OpenCheckpoints(folder_.string(), 3);
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(refused.message().find("--resume latest"), std::string::npos) << refused;
  EXPECT_EQ(refused.message().find('\n'), std::string::npos);
}

TEST_F(CheckpointFolder, AFolderThatIsNotWritableIsAnError) {
  std::ofstream(folder_ / "file") << "x";
  const absl::Status opened = OpenCheckpoints((folder_ / "file").string(), 0);
  EXPECT_NE(opened.message().find((folder_ / "file").string()), std::string::npos) << opened;
  EXPECT_FALSE(SaveCheckpoint((folder_ / "file").string(), 1, ContentOf({{kPositionFile, "{}"}}), 2).ok());
}

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
