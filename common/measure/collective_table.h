// The table that nccl-tests prints, column for column, so that the same scripts can read both. Lines without
// data begin with #. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace psring {

// One half of a row: a call whose result goes into a separate buffer, or in place into its input.
struct PlacementFigures {
  bool measured = true;          // false: there is no such call; its columns show N/A
  double time_us = 0;            // of one call
  double algbw = 0, busbw = 0;   // 10^9 bytes/s
  int64_t wrong = -1;            // elements over all ranks; -1: not checked
  double percent_of_limit = -1;  // of the machine's limit; below 0: not measured
};

struct CollectiveRow {
  uint64_t bytes = 0;  // of the larger of a rank's input and output
  uint64_t count = 0;  // elements, as passed to the call
  std::string type, op = "none";
  int root = -1;
  PlacementFigures out_of_place, in_place;
};

// Converts bytes/time into the speed of the busiest link, independent of the number of ranks (derived in
// nccl-tests' doc/PERFORMANCE.md): all_reduce 2(N-1)/N, reduce_scatter, all_gather and
// all_to_all (N-1)/N, others 1.
double BusFactor(const std::string& collective, int ranks);

// Sets algbw and busbw from the time.
void SetBandwidths(const std::string& collective, int ranks, uint64_t bytes, PlacementFigures& figures);

// `limits`: adds two columns at the end of each line, percent of the limit out of place and in place.
std::string CollectiveTableHeader(bool limits);
std::string CollectiveTableLine(const CollectiveRow& row, bool limits);

// "# Out of bounds values : 0 OK" and "# Avg bus bandwidth    : 4.2".
std::string CollectiveTableFooter(int64_t out_of_bounds, double average_busbw);

// The middle value, or the mean of the two middle values. 0 if there are none.
double Median(std::vector<double> values);

// nccl-tests' name of one of our types: "float" for "float32", "half" for "float16".
std::string NcclTypeName(const std::string& type);
// And of our reductions: "avg" for "mean".
std::string NcclOpName(const std::string& op);

}  // namespace psring
