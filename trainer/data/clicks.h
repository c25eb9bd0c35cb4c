// A generated log of clicks for recommendation models.
#pragma once

#include <cstdint>

#include "trainer/data/dataset.h"

namespace psring {

// A sample has 13 numbers, as Criteo's logs, 26 rows of 8 tables (multi-hot: 3 or 4 rows of each), and a
// label: 1 for a click. Rows of a table follow Zipf's distribution; the most frequent ones are spread over
// the table. Clicks are drawn with a probability that depends on numbers and rows, so that it can be learned.
struct ClickShape {
  static constexpr int kNumbers = 13, kTables = 8, kLookups = 26;
  int rows = 1;  // of each table
  double alpha = 1;
  int64_t train = 65536, test = 8192;
};
// Two inputs, "numbers" and "rows", and one label.
SampleSpec ClickSpec(int rows);
DataSplits MakeClicks(const ClickShape& shape, uint64_t seed);

}  // namespace psring
