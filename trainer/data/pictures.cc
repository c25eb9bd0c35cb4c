#include <sys/stat.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/errors.h"
#include "common/base/read_file.h"
#include "common/io/hash.h"
#include "common/text/translate.h"
#include "trainer/data/sources.h"

namespace psring {
namespace {

namespace fs = std::filesystem;

struct CloseFile {
  void operator()(gzFile file) const { gzclose(file); }
};

// EMNIST, the largest set of this format, has 547 MB; its images have 28 x 28 pixels.
constexpr int64_t kMaxBytes = 768 << 20, kMaxExtent = 1024;
constexpr int64_t kMaxCompression = 1032;  // deflate's largest ratio

// Reads a plain or gzipped file in order; zlib detects which.
class ByteReader {
 public:
  static absl::StatusOr<std::unique_ptr<ByteReader>> Open(const std::string& path) {
    PSRING_ASSIGN_OR_RETURN(FileDescriptor file, OpenRegularFile(path, kMaxBytes));
    struct stat info;
    if (fstat(file.get(), &info) != 0) return FileError("read", path);
    std::unique_ptr<gzFile_s, CloseFile> opened(gzdopen(file.get(), "rb"));
    if (opened == nullptr) return ResourceExhausted(path, ": no memory to read it");
    file.release();  // closed with `opened`
    gzbuffer(opened.get(), 1 << 18);
    return std::unique_ptr<ByteReader>(new ByteReader(path, info.st_size, std::move(opened)));
  }

  // Bytes that the whole file may contain.
  int64_t most_bytes() const { return gzdirect(file_.get()) != 0 ? size_ : kMaxCompression * size_; }

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
    return DataLoss(path_, ": truncated: ends ", missing, " bytes early");
  }

  // Also makes zlib verify the checksum at the end of the file.
  absl::Status ExpectEnd() {
    uint8_t byte;
    const int got = gzread(file_.get(), &byte, 1);
    if (got > 0) return DataLoss(path_, ": longer than its header says");
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
    return DataLoss(path_, ": corrupt: ", what);
  }

  const std::string path_;
  const int64_t size_;  // of the file
  const std::unique_ptr<gzFile_s, CloseFile> file_;
};

// One idx file (http://yann.lecun.com/exdb/mnist): 0, 0, 8 for bytes, the number of dimensions, the
// dimensions as big-endian 32-bit numbers, the bytes.
struct IdxFile {
  std::vector<int64_t> dimensions;
  int64_t size = 1;  // of the bytes, which have not been read
  std::unique_ptr<ByteReader> reader;
};

// Reads the header, and checks that the file may contain what it announces.
absl::StatusOr<IdxFile> OpenIdx(const std::string& path, int dimensions) {
  IdxFile file;
  PSRING_ASSIGN_OR_RETURN(file.reader, ByteReader::Open(path));
  uint8_t header[4];
  PSRING_RETURN_IF_ERROR(file.reader->Read(header, 4));
  if (header[0] != 0 || header[1] != 0 || header[2] != 8 || header[3] != dimensions) {
    return InvalidArgument(path, ": not an idx file of bytes with ", dimensions, " dimension(s)");
  }
  for (int i = 0; i < dimensions; ++i) {
    uint8_t d[4];
    PSRING_RETURN_IF_ERROR(file.reader->Read(d, 4));
    const int64_t extent = int64_t{d[0]} << 24 | d[1] << 16 | d[2] << 8 | d[3];
    file.dimensions.push_back(extent);
    if (extent == 0 || file.size > kMaxBytes / extent || (i > 0 && extent > kMaxExtent)) {
      return InvalidArgument(path, ": not an idx file that psring reads: dimension ", i, " is ", extent,
                             "; images have at most ", kMaxExtent, " x ", kMaxExtent,
                             " pixels, and a file at most ", kMaxBytes, " bytes");
    }
    file.size *= extent;
  }
  const int64_t whole = file.size + 4 + int64_t{4} * dimensions, most = file.reader->most_bytes();
  if (whole > most) return file.reader->Truncated(whole - most);
  return file;
}

absl::StatusOr<std::vector<uint8_t>> ReadBytes(const IdxFile& file) {
  std::vector<uint8_t> bytes(static_cast<size_t>(file.size));
  PSRING_RETURN_IF_ERROR(file.reader->Read(bytes.data(), file.size));
  PSRING_RETURN_IF_ERROR(file.reader->ExpectEnd());
  return bytes;
}

// `name` or `name`.gz in `dir`.
absl::StatusOr<std::string> FindFile(const std::string& dir, const std::string& name) {
  std::error_code error;
  for (const char* suffix : {"", ".gz"}) {
    const fs::path path = fs::path(dir) / (name + suffix);
    if (fs::exists(path, error)) return path.string();
  }
  return absl::NotFoundError(Tr("$0[.gz]: no such file", (fs::path(dir) / name).string()));
}

absl::StatusOr<Pictures> ReadSplit(const std::string& dir, const std::string& prefix) {
  PSRING_ASSIGN_OR_RETURN(const std::string images_path, FindFile(dir, prefix + "-images-idx3-ubyte"));
  PSRING_ASSIGN_OR_RETURN(const std::string labels_path, FindFile(dir, prefix + "-labels-idx1-ubyte"));
  PSRING_ASSIGN_OR_RETURN(const IdxFile images, OpenIdx(images_path, 3));
  PSRING_ASSIGN_OR_RETURN(const IdxFile labels, OpenIdx(labels_path, 1));
  // Before either is decompressed: a small file may expand to a thousand times its size.
  if (images.dimensions[0] != labels.dimensions[0]) {
    return InvalidArgument(images_path, " contains ", images.dimensions[0], " images, but ", labels_path, " ",
                           labels.dimensions[0], " labels");
  }
  Pictures data{.height = static_cast<int>(images.dimensions[1]),
                .width = static_cast<int>(images.dimensions[2])};
  PSRING_ASSIGN_OR_RETURN(data.pixels, ReadBytes(images));
  PSRING_ASSIGN_OR_RETURN(data.labels, ReadBytes(labels));
  for (size_t i = 0; i < data.labels.size(); ++i) {
    if (data.labels[i] >= data.classes) {
      return InvalidArgument(labels_path, ": label ", data.labels[i], " of image ", i, " is above ",
                             data.classes - 1);
    }
  }
  return data;
}

class PictureSource : public SampleSource {
 public:
  explicit PictureSource(Pictures pictures)
      : pictures_(std::move(pictures)),
        size_(size_t{1} * pictures_.height * pictures_.width * pictures_.channels) {
    PSRING_CHECK(pictures_.pixels.size() == pictures_.labels.size() * size_);
  }

  int64_t count() const override { return static_cast<int64_t>(pictures_.labels.size()); }
  void Read(int64_t index, absl::Span<void* const> inputs, int32_t* labels) const override {
    const uint8_t* const pixels = pictures_.pixels.data() + static_cast<size_t>(index) * size_;
    float* const to = static_cast<float*>(inputs[0]);
    for (size_t p = 0; p < size_; ++p) to[p] = normalized_[pixels[p]];
    *labels = pictures_.labels[static_cast<size_t>(index)];
  }
  std::string Hash() const override {
    const auto hash = [](const std::vector<uint8_t>& bytes) { return HashBytes(bytes.data(), bytes.size()); };
    return absl::StrCat(hash(pictures_.pixels), hash(pictures_.labels));
  }

 private:
  const Pictures pictures_;
  const size_t size_;
  const std::array<float, 256> normalized_ = NormalizedBytes(pictures_.mean, pictures_.deviation);
};

}  // namespace

std::array<float, 256> NormalizedBytes(float mean, float deviation) {
  std::array<float, 256> normalized;
  for (int byte = 0; byte < 256; ++byte) normalized[byte] = (byte / 255.0f - mean) / deviation;
  return normalized;
}

SampleSpec PictureSpec(int height, int width, int channels, int classes) {
  return {.inputs = {{.name = "pictures", .kind = TensorKind::kPicture, .shape = {height, width, channels}}},
          .classes = classes};
}

Dataset MakePictures(Pictures pictures) {
  SampleSpec spec = PictureSpec(pictures.height, pictures.width, pictures.channels, pictures.classes);
  return Dataset(std::move(spec), std::make_shared<const PictureSource>(std::move(pictures)));
}

absl::StatusOr<DataSplits> ReadPictures(const std::string& name, const std::string& dir, float mean,
                                        float deviation) {
  PSRING_ASSIGN_OR_RETURN(Pictures train, ReadSplit(dir, "train"));
  PSRING_ASSIGN_OR_RETURN(Pictures test, ReadSplit(dir, "t10k"));
  if (train.height != test.height || train.width != test.width) {
    return InvalidArgument(dir, ": training images are ", train.height, "x", train.width, ", test images ",
                           test.height, "x", test.width);
  }
  for (Pictures* pictures : {&train, &test}) {
    pictures->mean = mean;
    pictures->deviation = deviation;
  }
  return DataSplits{
      .name = name, .train = MakePictures(std::move(train)), .test = MakePictures(std::move(test))};
}

}  // namespace psring
