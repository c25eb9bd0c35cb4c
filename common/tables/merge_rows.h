// Adds up gradients of rows of a table. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace psring {

// Rows, ascending and distinct, and their gradient [rows][width].
struct RowGradient {
  absl::Span<const int32_t> rows;
  const float* gradient = nullptr;
};

// Writes the rows that any source has to `rows`, ascending, and their sums to `sums` [rows][width]. A row's
// gradients are added in the order of the sources.
void AddUpRows(absl::Span<const RowGradient> sources, size_t width, std::vector<int32_t>& rows,
               std::vector<float>& sums);

}  // namespace psring
