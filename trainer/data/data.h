// Reads the data sets of the table (table/data_table.h).
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "trainer/data/dataset.h"
#include "trainer/data/table/data_table.h"

namespace psring {

// `name`: "fashion-mnist" (Debian's dataset-fashion-mnist unless `dir` is given), "mnist" (from `dir`: four
// idx files, plain or .gz), "synthetic" (learnable, generated from `seed`, needs no files), "text" and
// "tokens", "words", "zipf:ROWS:ALPHA" (sources.h). Errors name the file and the problem.
struct DataRequest {
  std::string name;
  std::string dir = {};
  std::string text = {};  // the file of "text" and "words"; empty: the default
  int context = 0;        // tokens of a sample of "text" and "tokens"
  uint64_t seed = 1;
};
absl::StatusOr<DataSplits> LoadData(const DataRequest& request, const DataTable& rows = DataRows());
// What the samples of the data consist of, without reading files: pictures of 28 x 28, texts of 256 symbols.
SampleSpec TypicalSpec(const std::string& name, int context);

// Removes the last `count` samples of a fixed order, independent of the run's seed, from the training data.
// `score_them`: they replace the test data. InvalidArgument: too few samples would remain.
absl::Status HoldOut(int64_t count, bool score_them, DataSplits& data);

}  // namespace psring
