// Pictures and labels as bytes in memory.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "trainer/data/dataset.h"

namespace psring {

struct Pictures {
  int height = 0, width = 0, channels = 1, classes = 10;
  std::vector<uint8_t> pixels;  // [count][height][width][channels]
  std::vector<uint8_t> labels;  // [count], below `classes`
  // Inputs are (byte / 255 - mean) / deviation.
  float mean = 0, deviation = 1;
};

// One input, "pictures", and one label.
SampleSpec PictureSpec(int height, int width, int channels = 1, int classes = 10);

Dataset MakePictures(Pictures pictures);

// Four idx files in `dir`, plain or .gz. Errors name the file and the problem: missing, truncated, not an idx
// file, a label that is too high, counts that differ. `mean` and `deviation`: of the training pixels.
absl::StatusOr<DataSplits> ReadPictures(const std::string& name, const std::string& dir, float mean,
                                        float deviation);

struct SyntheticShape {
  int height = 28, width = 28;
  int64_t train = 60000, test = 10000;
};
// Learnable, from `seed`.
DataSplits MakeSyntheticData(const SyntheticShape& shape, uint64_t seed);

}  // namespace psring
