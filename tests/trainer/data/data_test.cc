#include "trainer/data/data.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <zlib.h>

#include <filesystem>
#include <fstream>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tests/has.h"
#include "tests/test_folder.h"
#include "trainer/data/sources.h"

namespace psring {
namespace {

// A batch of pictures.
struct Gathered {
  std::vector<float> inputs;
  std::vector<int32_t> labels;
};
Gathered Gather(const Dataset& data, const std::vector<int64_t>& indices) {
  Gathered gathered{.inputs = std::vector<float>(indices.size() * data.spec().inputs[0].count()),
                    .labels = std::vector<int32_t>(indices.size())};
  void* const inputs[] = {gathered.inputs.data()};
  data.Gather(indices, inputs, gathered.labels.data());
  return gathered;
}

namespace fs = std::filesystem;

std::string BigEndian(uint32_t value) {
  return {static_cast<char>(value >> 24), static_cast<char>(value >> 16), static_cast<char>(value >> 8),
          static_cast<char>(value)};
}

std::string Images(uint32_t count, uint32_t height, uint32_t width) {
  std::string file = std::string("\0\0\x08\x03", 4) + BigEndian(count) + BigEndian(height) + BigEndian(width);
  for (uint32_t i = 0; i < count * height * width; ++i) file.push_back(static_cast<char>(i % 251));
  return file;
}

std::string Labels(const std::string& labels) {
  return std::string("\0\0\x08\x01", 4) + BigEndian(static_cast<uint32_t>(labels.size())) + labels;
}

class DataFiles : public testing::Test {
 protected:
  DataFiles() {
    folder_.Put("train-images-idx3-ubyte", Images(3, 4, 5));
    folder_.Put("train-labels-idx1-ubyte", Labels(std::string("\0\x09\x05", 3)));
    folder_.Put("t10k-images-idx3-ubyte", Images(2, 4, 5));
    folder_.Put("t10k-labels-idx1-ubyte", Labels("\x01\x02"));
  }
  // Replaces `name` with `name`.gz; returns the compressed bytes.
  std::string Compress(const std::string& name, const std::string& bytes) {
    fs::remove(dir_ / name);
    const std::string path = (dir_ / (name + ".gz")).string();
    gzFile file = gzopen(path.c_str(), "wb");
    gzwrite(file, bytes.data(), static_cast<unsigned>(bytes.size()));
    gzclose(file);
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  void ExpectError(const std::string& file, const std::string& what) {
    const auto data = LoadData({.name = "mnist", .dir = dir_.string()});
    ASSERT_FALSE(data.ok());
    const std::string message(data.status().message());
    EXPECT_THAT(message, Has(file.empty() ? dir_.string() : (dir_ / file).string(), what));
    EXPECT_THAT(message, Lacks("\n"));
  }

  const TestFolder folder_;
  const fs::path dir_ = folder_.path();
};

TEST_F(DataFiles, AreReadPlainAndCompressed) {
  Compress("train-images-idx3-ubyte", Images(3, 4, 5));
  for (const std::string name : {"mnist", "fashion-mnist"}) {
    const auto data = LoadData({.name = name, .dir = dir_.string()}).value();
    EXPECT_EQ(data.train.count(), 3);
    EXPECT_EQ(data.test.count(), 2);
    EXPECT_EQ(data.train.spec().inputs[0].shape, (std::vector<int>{4, 5, 1}));
    EXPECT_EQ(data.train.spec().classes, 10);
    const Gathered all = Gather(data.train, {0, 1, 2});
    EXPECT_EQ(all.labels, (std::vector<int32_t>{0, 9, 5}));
    const float mean = name == "mnist" ? .1307f : .2860f, deviation = name == "mnist" ? .3081f : .3530f;
    EXPECT_FLOAT_EQ(all.inputs[59], (59 / 255.0f - mean) / deviation);
  }
}

TEST_F(DataFiles, HeadersAreCheckedBeforeMemoryIsAllocated) {
  const std::string name = "train-images-idx3-ubyte";
  const auto header = [](uint32_t count, uint32_t height, uint32_t width) {
    return std::string("\0\0\x08\x03", 4) + BigEndian(count) + BigEndian(height) + BigEndian(width);
  };
  for (const auto& [bytes, what] :
       {std::pair(header(1 << 13, 1 << 10, 1 << 10),
                  "dimension 2 is 1024; images have at most 1024 x 1024 pixels"),
        {header(1, 1 << 11, 1), "dimension 1 is 2048"},
        {header(0, 28, 28), "dimension 0 is 0"},
        {header(UINT32_MAX, 28, 28), "dimension 0 is 4294967295"},
        {header(1 << 9, 1 << 10, 1 << 10) + "x", "truncated: ends 536870911 bytes early"}}) {
    folder_.Put(name, bytes);
    ExpectError(name, what);
    Compress(name, bytes);
    ExpectError(name + ".gz", bytes.size() == 17 ? "truncated" : what);
    fs::remove(dir_ / (name + ".gz"));
  }
}

TEST_F(DataFiles, DecompressionEndsAtTheLimit) {
  // 3 images of 20 bytes, and 64 MiB after them.
  const std::string name = "train-images-idx3-ubyte";
  fs::remove(dir_ / name);
  gzFile file = gzopen((dir_ / (name + ".gz")).c_str(), "wb1");
  const std::string images = Images(3, 4, 5), zeros(1 << 20, '\0');
  gzwrite(file, images.data(), static_cast<unsigned>(images.size()));
  for (int i = 0; i < 64; ++i) gzwrite(file, zeros.data(), static_cast<unsigned>(zeros.size()));
  gzclose(file);
  ExpectError(name + ".gz", "longer than its header says");
}

TEST_F(DataFiles, CountsAreComparedBeforeDecompression) {
  // A header of 512 Mi labels for 3 images, and then nothing that could be decompressed.
  const std::string name = "train-labels-idx1-ubyte";
  const std::string header = Compress(name, std::string("\0\0\x08\x01", 4) + BigEndian(1 << 29));
  folder_.Put(name + ".gz", header + std::string(600 << 10, 'x'));
  ExpectError(name + ".gz", "contains 3 images, but ");
  ExpectError(name + ".gz", " 536870912 labels");
}

TEST_F(DataFiles, AFifoIsNotWaitedForAndAMissingFileIsNamed) {
  const std::string name = "t10k-labels-idx1-ubyte";
  fs::remove(dir_ / name);
  ExpectError(name, "no such file");
  ASSERT_EQ(mkfifo((dir_ / name).c_str(), 0600), 0);
  ExpectError(name, "it is a FIFO");
}

TEST_F(DataFiles, AFileWithWrongContentIsNamed) {
  const std::string images = "train-images-idx3-ubyte", labels = "train-labels-idx1-ubyte";
  const std::string sound_images = Images(3, 4, 5), sound_labels = Labels(std::string("\0\x09\x05", 3));
  // Three dimensions whose product no memory holds.
  const std::string huge = std::string("\0\0\x08\x03", 4) + std::string(12, '\xff');
  for (const auto& [name, bytes, what] :
       {std::tuple(images, sound_images.substr(0, 70), "truncated: ends 6 bytes early"),
        {images, std::string(), "truncated"},
        {images, std::string("<html>404 Not Found</html>"), "not an idx file"},
        {images, Labels("\x01\x02\x03"), "not an idx file"},
        {images, huge, "not an idx file"},
        {images, sound_images + "x", "longer"},
        {labels, Labels("\x01\x0a\x05"), "label 10 of image 1"},
        {labels, Labels("\x01\x02"), "2 labels"}}) {
    folder_.Put(images, sound_images);
    folder_.Put(labels, sound_labels);
    folder_.Put(name, bytes);
    ExpectError(name, what);
  }
}

TEST_F(DataFiles, ATruncatedGzipFileIsNamed) {
  const std::string whole = Compress("train-images-idx3-ubyte", Images(50, 20, 20));
  for (const size_t size : {whole.size() - 20, whole.size() - 4, whole.size() / 2, size_t{3}}) {
    folder_.Put("train-images-idx3-ubyte.gz", whole.substr(0, size));
    ExpectError("train-images-idx3-ubyte.gz", "");
  }
}

TEST_F(DataFiles, ACorruptGzipFileIsNamed) {
  std::string bytes = Compress("train-images-idx3-ubyte", Images(3, 4, 5));
  bytes[bytes.size() - 6] ^= 1;  // in its checksum
  folder_.Put("train-images-idx3-ubyte.gz", bytes);
  ExpectError("train-images-idx3-ubyte.gz", "corrupt");
}

TEST_F(DataFiles, RejectSplitsOfDifferentSizes) {
  folder_.Put("t10k-images-idx3-ubyte", Images(2, 5, 4));
  ExpectError("", "test images 5x4");
}

TEST(Data, AnUnknownNameSuggestsTheNearest) {
  EXPECT_EQ(LoadData({.name = "fashon-mnist"}).status().message(),
            absl::StrCat("unknown data 'fashon-mnist'; did you mean 'fashion-mnist'? Use one of ",
                         absl::StrJoin(DataNames(), ", ")));
  EXPECT_FALSE(LoadData({.name = "mnist"}).ok());
  EXPECT_THAT(std::string(LoadData({.name = "mnist", .dir = "/nowhere"}).status().message()),
              Has("/nowhere/train-images"));
}

TEST(Data, SyntheticImagesAreTheSameForTheSameSeed) {
  const SyntheticShape shape{.height = 6, .width = 5, .train = 500, .test = 20};
  const DataSplits a = MakeSyntheticData(shape, 1), b = MakeSyntheticData(shape, 1),
                   c = MakeSyntheticData(shape, 2);
  EXPECT_EQ(a.train.Hash(), b.train.Hash());
  EXPECT_EQ(a.train.Hash(), "f700eb7cd922e15c676d5f17fc7ec794") << "in every version";
  EXPECT_EQ(a.test.Hash(), b.test.Hash());
  EXPECT_NE(a.train.Hash(), c.train.Hash());
  EXPECT_EQ(a.train.count(), 500);
  EXPECT_EQ(a.test.count(), 20);
}

TEST(Data, NormalisedSyntheticPixelsHaveMean0AndDeviation1) {
  const Dataset data = MakeSyntheticData({.train = 200, .test = 1}, 1).train;
  std::vector<int64_t> all(data.count());
  for (int64_t i = 0; i < data.count(); ++i) all[i] = i;
  const std::vector<float> inputs = Gather(data, all).inputs;
  double sum = 0, squares = 0;
  for (const float x : inputs) {
    sum += x;
    squares += x * x;
  }
  EXPECT_NEAR(sum / inputs.size(), 0, .05);
  EXPECT_NEAR(squares / inputs.size(), 1, .05);
}

TEST(Data, ABatchHasTheRequestedImagesNormalized) {
  const Dataset data = MakePictures({.height = 1,
                                     .width = 2,
                                     .pixels = {0, 255, 51, 102, 7, 8},
                                     .labels = {4, 5, 6},
                                     .mean = .5f,
                                     .deviation = .25f});
  const auto [inputs, labels] = Gather(data, {1, 0});
  EXPECT_FLOAT_EQ(inputs[0], (51 / 255.f - .5f) / .25f);
  EXPECT_FLOAT_EQ(inputs[1], (102 / 255.f - .5f) / .25f);
  EXPECT_FLOAT_EQ(inputs[2], -2);
  EXPECT_FLOAT_EQ(inputs[3], 2);
  EXPECT_EQ(labels[0], 5);
  EXPECT_EQ(labels[1], 4);
}

TEST(Data, APartHasTheChosenSamples) {
  const Dataset data =
      MakePictures({.height = 1, .width = 1, .pixels = {10, 20, 30, 40}, .labels = {1, 2, 3, 4}});
  const Dataset part = data.Part({3, 1, 0}), of_part = part.Part({2, 0});
  EXPECT_EQ(part.count(), 3);
  EXPECT_EQ(Gather(part, {1, 0}).labels, (std::vector<int32_t>{2, 4}));
  EXPECT_EQ(Gather(of_part, {0, 1}).labels, (std::vector<int32_t>{1, 4}));
  EXPECT_NE(part.Hash(), data.Hash());
}

}  // namespace
}  // namespace psring
