// The order in which an asynchronous server applied its workers' pushes: the only nondeterminism of such a
// run. With it the run can be reproduced bit for bit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace psring {

struct Arrivals {
  // Of all buckets together, so that a long run needs at most 32 MiB.
  static constexpr size_t kMaxUpdates = 1 << 24;

  std::string consistency;  // "async", "ssp:2"
  int workers = 0;
  // By bucket: the worker whose push caused each update. A worker's pushes belong to its steps 0, 1, 2 and so
  // on.
  std::vector<std::vector<uint16_t>> updates;

  // Whether no more updates of the bucket are recorded.
  bool IsFull(size_t bucket) const { return updates[bucket].size() >= kMaxUpdates / updates.size(); }
};

// Compact: a line of JSON, then one byte per update (two with more than 256 workers), bucket by bucket.
std::string ToBytes(const Arrivals& arrivals);
// InvalidArgument: not such a record, a field of another type, truncated, or naming workers that do not
// exist.
absl::StatusOr<Arrivals> ArrivalsFromBytes(const std::string& bytes);

}  // namespace psring
