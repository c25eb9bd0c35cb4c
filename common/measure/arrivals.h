// The order in which an asynchronous server applied its workers' pushes: all that chance decides in such a
// run. With it the run can be made again, bit for bit.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace psring {

struct Arrivals {
  std::string consistency;  // "async", "ssp:2"
  int workers = 0;
  // By bucket: whose push each update was made of. A worker's pushes are of its steps 0, 1, 2 and so on.
  std::vector<std::vector<uint16_t>> updates;
};

// Compact: a line of JSON, then a byte an update (two where there are more than 256 workers), bucket by
// bucket.
std::string ToBytes(const Arrivals& arrivals);
// InvalidArgument: what is no such record, is cut short, or names workers that are not there.
absl::StatusOr<Arrivals> ArrivalsFromBytes(const std::string& bytes);

}  // namespace psring
