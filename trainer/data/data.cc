#include "trainer/data/data.h"

#include <sys/stat.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <numeric>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/random.h"
#include "common/base/read_file.h"
#include "trainer/data/names.h"

namespace psring {
namespace {

namespace fs = std::filesystem;

constexpr char kDebianFashionMnist[] = "/usr/share/datasets/fashion-mnist";

// One idx file (http://yann.lecun.com/exdb/mnist): 0, 0, 8 for bytes, the number of dimensions, the
// dimensions as big-endian 32-bit numbers, the bytes.
struct IdxFile {
  std::vector<int64_t> dimensions;
  std::vector<uint8_t> bytes;
};

struct CloseFile {
  void operator()(gzFile file) const { gzclose(file); }
};

// EMNIST, the largest set of this format, has 547 MB; its images have 28 x 28 pixels.
constexpr int64_t kMostBytes = 768 << 20, kMostExtent = 1024;
constexpr int64_t kMostCompression = 1032;  // deflate's largest ratio

// Reads a plain or gzipped file in order; zlib detects which.
class ByteReader {
 public:
  static absl::StatusOr<std::unique_ptr<ByteReader>> Open(const std::string& path) {
    PSRING_ASSIGN_OR_RETURN(FileDescriptor file, OpenRegularFile(path, kMostBytes));
    struct stat info;
    if (fstat(file.get(), &info) != 0) return FileError("read", path);
    std::unique_ptr<gzFile_s, CloseFile> opened(gzdopen(file.get(), "rb"));
    if (opened == nullptr) return absl::ResourceExhaustedError(absl::StrCat(path, ": no memory to read it"));
    file.release();  // closed with `opened`
    gzbuffer(opened.get(), 1 << 18);
    return std::unique_ptr<ByteReader>(new ByteReader(path, info.st_size, std::move(opened)));
  }

  // Bytes that the whole file may contain.
  int64_t most_bytes() const { return gzdirect(file_.get()) != 0 ? size_ : kMostCompression * size_; }

  // Exactly `count` bytes, or an error that names the file.
  absl::Status Read(uint8_t* to, int64_t count) {
    for (int64_t done = 0; done < count;) {
      const unsigned wanted = static_cast<unsigned>(std::min<int64_t>(count - done, 1 << 30));
      const int got = gzread(file_.get(), to + done, wanted);
      if (got < 0) return Corrupt();
      if (got == 0) return Truncated(count - done);  // zlib reports a truncated stream only here
      done += got;
    }
    return absl::OkStatus();
  }

  absl::Status Truncated(int64_t missing) const {
    return absl::DataLossError(absl::StrCat(path_, ": truncated: ends ", missing, " bytes early"));
  }

  // Also makes zlib verify the checksum at the end of the file.
  absl::Status ExpectEnd() {
    uint8_t byte;
    const int got = gzread(file_.get(), &byte, 1);
    if (got > 0) return absl::DataLossError(absl::StrCat(path_, ": longer than its header says"));
    int error = Z_OK;
    gzerror(file_.get(), &error);
    return got == 0 && error == Z_OK ? absl::OkStatus() : Corrupt();
  }

 private:
  ByteReader(const std::string& path, int64_t size, std::unique_ptr<gzFile_s, CloseFile> file)
      : path_(path), size_(size), file_(std::move(file)) {}

  absl::Status Corrupt() const {
    int error = Z_OK;
    const char* what = gzerror(file_.get(), &error);
    return absl::DataLossError(absl::StrCat(path_, ": corrupt: ", what));
  }

  const std::string path_;
  const int64_t size_;  // of the file
  const std::unique_ptr<gzFile_s, CloseFile> file_;
};

absl::StatusOr<IdxFile> ReadIdx(const std::string& path, int dimensions) {
  PSRING_ASSIGN_OR_RETURN(const std::unique_ptr<ByteReader> reader, ByteReader::Open(path));
  uint8_t header[4];
  PSRING_RETURN_IF_ERROR(reader->Read(header, 4));
  if (header[0] != 0 || header[1] != 0 || header[2] != 8 || header[3] != dimensions) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": not an idx file of bytes with ", dimensions, " dimension(s)"));
  }
  IdxFile file;
  int64_t size = 1;
  for (int i = 0; i < dimensions; ++i) {
    uint8_t d[4];
    PSRING_RETURN_IF_ERROR(reader->Read(d, 4));
    const int64_t extent = int64_t{d[0]} << 24 | d[1] << 16 | d[2] << 8 | d[3];
    file.dimensions.push_back(extent);
    if (extent == 0 || size > kMostBytes / extent || (i > 0 && extent > kMostExtent)) {
      return absl::InvalidArgumentError(absl::StrCat(path, ": not an idx file that psring reads: dimension ",
                                                     i, " is ", extent, "; images have at most ", kMostExtent,
                                                     " x ", kMostExtent, " pixels, and a file at most ",
                                                     kMostBytes, " bytes"));
    }
    size *= extent;
  }
  // Checked before allocating.
  const int64_t whole = size + 4 + int64_t{4} * dimensions;
  if (whole > reader->most_bytes()) return reader->Truncated(whole - reader->most_bytes());
  file.bytes.resize(static_cast<size_t>(size));
  PSRING_RETURN_IF_ERROR(reader->Read(file.bytes.data(), size));
  PSRING_RETURN_IF_ERROR(reader->ExpectEnd());
  return file;
}

// `name` or `name`.gz in `dir`.
absl::StatusOr<std::string> FindFile(const std::string& dir, const std::string& name) {
  std::error_code error;
  for (const char* suffix : {"", ".gz"}) {
    const fs::path path = fs::path(dir) / (name + suffix);
    if (fs::exists(path, error)) return path.string();
  }
  return absl::NotFoundError(absl::StrCat((fs::path(dir) / name).string(), "[.gz]: no such file"));
}

absl::StatusOr<Dataset> ReadSplit(const std::string& dir, const std::string& prefix) {
  PSRING_ASSIGN_OR_RETURN(const std::string images_path, FindFile(dir, prefix + "-images-idx3-ubyte"));
  PSRING_ASSIGN_OR_RETURN(const std::string labels_path, FindFile(dir, prefix + "-labels-idx1-ubyte"));
  PSRING_ASSIGN_OR_RETURN(IdxFile images, ReadIdx(images_path, 3));
  PSRING_ASSIGN_OR_RETURN(IdxFile labels, ReadIdx(labels_path, 1));
  if (images.dimensions[0] != labels.dimensions[0]) {
    return absl::InvalidArgumentError(absl::StrCat(images_path, " contains ", images.dimensions[0],
                                                   " images, but ", labels_path, " ", labels.dimensions[0],
                                                   " labels"));
  }
  Dataset data{.height = static_cast<int>(images.dimensions[1]),
               .width = static_cast<int>(images.dimensions[2]),
               .images = std::move(images.bytes),
               .labels = std::move(labels.bytes)};
  for (int64_t i = 0; i < data.count(); ++i) {
    if (data.labels[i] >= data.classes) {
      return absl::InvalidArgumentError(absl::StrCat(labels_path, ": label ", data.labels[i], " of image ", i,
                                                     " is above ", data.classes - 1));
    }
  }
  return data;
}

absl::StatusOr<DataSplits> ReadSplits(const std::string& name, const std::string& dir, float mean,
                                      float deviation) {
  DataSplits splits{.name = name};
  PSRING_ASSIGN_OR_RETURN(splits.train, ReadSplit(dir, "train"));
  PSRING_ASSIGN_OR_RETURN(splits.test, ReadSplit(dir, "t10k"));
  if (splits.train.height != splits.test.height || splits.train.width != splits.test.width) {
    return absl::InvalidArgumentError(absl::StrCat(dir, ": training images are ", splits.train.height, "x",
                                                   splits.train.width, ", test images ", splits.test.height,
                                                   "x", splits.test.width));
  }
  for (Dataset* data : {&splits.train, &splits.test}) {
    data->mean = mean;
    data->deviation = deviation;
  }
  return splits;
}

}  // namespace

const std::vector<DataRow>& DataRows() {
  static const std::vector<DataRow> rows = {
      {"fashion-mnist", "60,000 images of clothes; Debian's dataset-fashion-mnist, or from --data_dir"},
      {"mnist", "handwritten digits, or any other four idx files, from --data_dir"},
      {"synthetic", "a noisy pattern per class; needs no files"},
  };
  return rows;
}

absl::StatusOr<DataSplits> LoadData(const std::string& name, const std::string& dir, uint64_t seed) {
  if (name == "synthetic") return MakeSyntheticData({}, seed);
  if (name == "fashion-mnist") {
    // The mean and standard deviation over the training pixels, as is usual for the two sets.
    const std::string from = dir.empty() ? kDebianFashionMnist : dir;
    auto splits = ReadSplits(name, from, .2860f, .3530f);
    if (dir.empty() && absl::IsNotFound(splits.status())) {
      return absl::NotFoundError(absl::StrCat(splits.status().message(),
                                              " (install it: apt-get install dataset-fashion-mnist; or name "
                                              "its folder: --data_dir)"));
    }
    return splits;
  }
  if (name == "mnist") {
    if (dir.empty()) {
      return absl::InvalidArgumentError("--data mnist needs --data_dir, the folder of its four idx files");
    }
    return ReadSplits(name, dir, .1307f, .3081f);
  }
  std::vector<std::string> names;
  for (const DataRow& row : DataRows()) names.push_back(row.name);
  return UnknownName("data", name, names);
}

absl::Status HoldOut(int64_t count, bool score_them, DataSplits& data) {
  if (count == 0) return absl::OkStatus();
  Dataset& train = data.train;
  if (count >= train.count()) {
    return absl::InvalidArgumentError(absl::StrCat("--validation ", count, " would leave none of the ",
                                                   train.count(), " training samples; hold out fewer"));
  }
  constexpr uint64_t kSplitSeed = 0x76616c6964;  // one split for all runs: learning rates are chosen on it
  std::vector<int64_t> order(static_cast<size_t>(train.count()));
  std::iota(order.begin(), order.end(), 0);
  Random(kSplitSeed).Shuffle(order);
  const auto middle = order.end() - count;
  std::sort(order.begin(), middle);
  std::sort(middle, order.end());
  const auto pick = [&](auto begin, auto end) {
    Dataset part = train;
    part.images.clear();
    part.labels.clear();
    for (auto index = begin; index != end; ++index) {
      const auto image = train.images.begin() + *index * train.image_size();
      part.images.insert(part.images.end(), image, image + train.image_size());
      part.labels.push_back(train.labels[static_cast<size_t>(*index)]);
    }
    return part;
  };
  if (score_them) data.test = pick(middle, order.end());
  data.train = pick(order.begin(), middle);
  return absl::OkStatus();
}

void GatherBatch(const Dataset& data, const std::vector<int64_t>& indices, float* inputs, int32_t* labels) {
  std::array<float, 256> normalized;
  for (int byte = 0; byte < 256; ++byte) normalized[byte] = (byte / 255.0f - data.mean) / data.deviation;

  const int64_t size = data.image_size();
  for (size_t i = 0; i < indices.size(); ++i) {
    PSRING_CHECK(indices[i] >= 0 && indices[i] < data.count());
    const uint8_t* image = data.images.data() + indices[i] * size;
    float* to = inputs + i * size;
    for (int64_t p = 0; p < size; ++p) to[p] = normalized[image[p]];
    labels[i] = data.labels[indices[i]];
  }
}

}  // namespace psring
