// Generated images: a pattern per class plus strong noise. A linear model classifies many but not all of
// them, so that accuracy is informative.
#include "common/base/random.h"
#include "trainer/data/sources.h"

namespace psring {
namespace {

constexpr float kMean = 128;
constexpr float kPattern = 11;    // amplitude of a class's uniform pattern, in gray levels
constexpr uint64_t kNoise = 192;  // width of the uniform noise: kMean + kPattern + kNoise / 2 < 256

Dataset Make(const SyntheticShape& shape, int64_t count, const std::vector<float>& patterns, uint64_t seed,
             uint64_t stream) {
  Pictures data{.height = shape.height, .width = shape.width};
  const int64_t size = int64_t{shape.height} * shape.width;
  data.pixels.resize(count * size);
  data.labels.resize(count);
  data.mean = kMean / 255;
  data.deviation = kNoise / 255.0f / 3.46f;  // a uniform distribution's width is sqrt(12) deviations

  Random random(seed, stream);
  for (int64_t i = 0; i < count; ++i) {
    const int label = static_cast<int>(random.Below(data.classes));
    data.labels[i] = static_cast<uint8_t>(label);
    const float* pattern = patterns.data() + label * size;
    uint8_t* image = data.pixels.data() + i * size;
    uint64_t bits = 0;  // the noise of eight pixels from one number, which shortens start-up
    for (int64_t p = 0; p < size; ++p, bits >>= 8) {
      if (p % 8 == 0) bits = random.Next();
      image[p] = static_cast<uint8_t>(pattern[p] + static_cast<float>(((bits & 255) * kNoise) >> 8));
    }
  }
  return MakePictures(std::move(data));
}

}  // namespace

DataSplits MakeSyntheticData(const SyntheticShape& shape, uint64_t seed) {
  // Both splits use the same patterns.
  std::vector<float> patterns(size_t{10} * shape.height * shape.width);
  Random random(seed, 1);
  for (float& value : patterns) value = kMean - kNoise / 2 + random.Uniform(-kPattern, kPattern);
  return {.name = "synthetic",
          .train = Make(shape, shape.train, patterns, seed, 2),
          .test = Make(shape, shape.test, patterns, seed, 3)};
}

}  // namespace psring
