// Generated images: a pattern per class plus strong noise. A linear model classifies many but not all of
// them, so that accuracy is informative. An image is generated when it is read, because most processes read
// few of them.
#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/random.h"
#include "common/io/hash.h"
#include "trainer/data/sources.h"

namespace psring {
namespace {

constexpr int kClasses = 10;
constexpr float kMean = 128;
constexpr float kPattern = 11;  // amplitude of a class's uniform pattern, in gray levels
constexpr int kNoise = 192;     // width of the uniform noise: kMean + kPattern + kNoise / 2 < 256

class SyntheticSource : public SampleSource {
 public:
  SyntheticSource(int64_t count, size_t size, std::shared_ptr<const std::vector<float>> patterns,
                  const Random& random)
      : count_(count), size_(size), patterns_(std::move(patterns)), random_(random) {}

  int64_t count() const override { return count_; }
  void Read(int64_t index, absl::Span<void* const> inputs, int32_t* labels) const override {
    std::vector<uint8_t> image(size_);
    *labels = MakeImage(index, image.data());
    std::ranges::transform(image, static_cast<float*>(inputs[0]),
                           [this](uint8_t byte) { return normalized_[byte]; });
  }
  std::string Hash() const override {
    Hasher images, labels;
    std::vector<uint8_t> image(size_);
    for (int64_t i = 0; i < count_; ++i) {
      const uint8_t label = MakeImage(i, image.data());
      images.Add(image.data(), size_);
      labels.Add(&label, 1);
    }
    return absl::StrCat(images.Hex(), labels.Hex());
  }

 private:
  // Writes the bytes of image `index` and returns its label.
  uint8_t MakeImage(int64_t index, uint8_t* image) const {
    constexpr size_t kPart = 8;  // pixels whose noise is of one number
    Random random = random_;
    random.Skip(static_cast<uint64_t>(index) * (1 + (size_ + kPart - 1) / kPart));
    const auto label = static_cast<uint8_t>(random.Below(kClasses));
    const float* const pattern = patterns_->data() + label * size_;
    std::array<uint8_t, 32 * kPart> noise;  // added to many pixels at once
    for (size_t begin = 0; begin < size_; begin += noise.size()) {
      const size_t pixels = std::min(size_ - begin, noise.size());
      for (size_t p = 0; p < pixels; p += kPart) {
        const uint64_t bits = random.Next();
        for (size_t i = 0; i < kPart; ++i) noise[p + i] = static_cast<uint8_t>(bits >> (8 * i));
      }
      for (size_t p = 0; p < pixels; ++p) {
        image[begin + p] = static_cast<uint8_t>(
            static_cast<int>(pattern[begin + p] + static_cast<float>((noise[p] * kNoise) >> 8)));
      }
    }
    return label;
  }

  const int64_t count_;
  const size_t size_;
  const std::shared_ptr<const std::vector<float>> patterns_;  // by class
  const Random random_;                                       // as before the first image
  // The deviation of uniform noise is its width divided by sqrt(12).
  const std::array<float, 256> normalized_ = NormalizedBytes(kMean / 255, kNoise / 255.0f / 3.46f);
};

}  // namespace

DataSplits MakeSyntheticData(const SyntheticShape& shape, uint64_t seed) {
  const size_t size = size_t{1} * shape.height * shape.width;
  const auto patterns = std::make_shared<std::vector<float>>(kClasses * size);  // of both splits
  Random random(seed, 1);
  for (float& value : *patterns) value = kMean - kNoise / 2 + random.Uniform(-kPattern, kPattern);
  const auto make = [&](int64_t count, uint64_t stream) {
    return Dataset(PictureSpec(shape.height, shape.width, /*channels=*/1, kClasses),
                   std::make_shared<const SyntheticSource>(count, size, patterns, Random(seed, stream)));
  };
  return {.name = "synthetic", .train = make(shape.train, 2), .test = make(shape.test, 3)};
}

}  // namespace psring
