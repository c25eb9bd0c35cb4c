// Tables in pieces of bounded size, as checkpoints read and write them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>

#include "absl/status/status.h"
#include "common/base/parameters.h"

namespace psring {

// Rows `first` ... `first + count - 1` of a table: their values (array 0), or a slot of their optimizer (from
// 1, OptimizerSlots).
struct RowRange {
  int table = 0, array = 0;
  int first = 0, count = 0;
};

// Writes the range to `to` [count][width].
using ReadRows = std::function<absl::Status(const RowRange& range, float* to)>;

// visit(range) for all rows of `table`, which has number `number`, in order; a range has at most about 4 MiB.
// Ends with the first error.
template <typename Visit>
absl::Status ForEachRange(const Table& table, int number, int array, const Visit& visit) {
  constexpr size_t kMaxBytes = size_t{4} << 20;
  const size_t row_bytes = static_cast<size_t>(table.width) * sizeof(float);
  const int most = static_cast<int>(std::max<size_t>(1, kMaxBytes / row_bytes));
  for (int first = 0; first < table.rows;) {
    const RowRange range{
        .table = number, .array = array, .first = first, .count = std::min(most, table.rows - first)};
    if (absl::Status status = visit(range); !status.ok()) return status;
    first += range.count;
  }
  return absl::OkStatus();
}

}  // namespace psring
