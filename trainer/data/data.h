// Images and labels as bytes in memory.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace psring {

struct Dataset {
  int height = 0, width = 0, channels = 1, classes = 10;
  std::vector<uint8_t> images;  // [count][height][width][channels]
  std::vector<uint8_t> labels;  // [count]
  // Inputs are (byte / 255 - mean) / deviation.
  float mean = 0, deviation = 1;

  int64_t count() const { return static_cast<int64_t>(labels.size()); }
  int64_t image_size() const { return int64_t{height} * width * channels; }
};

struct DataRow {
  const char* name;
  const char* summary;
};
const std::vector<DataRow>& DataRows();

struct DataSplits {
  std::string name;
  Dataset train, test;
};

// `name`: "fashion-mnist" (Debian's dataset-fashion-mnist unless `dir` is given), "mnist" (from `dir`: four
// idx files, plain or .gz), "synthetic" (learnable, generated from `seed`, needs no files). Errors name the
// file and the problem: missing, truncated, not an idx file, a label that is too high, counts that differ.
absl::StatusOr<DataSplits> LoadData(const std::string& name, const std::string& dir, uint64_t seed);

// Removes the last `count` samples of a fixed order, independent of the run's seed, from the training data.
// `score_them`: they replace the test data. InvalidArgument: too few samples would remain.
absl::Status HoldOut(int64_t count, bool score_them, DataSplits& data);

struct SyntheticShape {
  int height = 28, width = 28;
  int64_t train = 60000, test = 10000;
};
DataSplits MakeSyntheticData(const SyntheticShape& shape, uint64_t seed);

// Images `indices` as normalized floats [n][image_size], and their labels [n].
void GatherBatch(const Dataset& data, const std::vector<int64_t>& indices, float* inputs, int32_t* labels);

}  // namespace psring
