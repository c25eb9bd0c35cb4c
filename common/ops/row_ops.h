// The arithmetic of recommendation models: sums of rows of a table, and products of vectors; see layer_ops.h.
#pragma once

#include <cstdint>

#include "absl/types/span.h"
#include "common/device/device.h"

namespace psring {

// Bags of one table in a batch. `at` [batch][lookups] contains each lookup's row of `values` [rows][width].
// Bag b of a sample sums the rows of its lookups first + b * per_bag ... + per_bag - 1.
struct BagShape {
  int batch, lookups;
  int first, bags, per_bag;
  int rows, width;
  int all_bags, first_bag;  // y [batch][all_bags][width] also has bags of other tables
};

// Rows whose gradient a batch adds to: row slots[i] of the gradient gets the rows bags[begin[i]] ...
// bags[begin[i + 1] - 1] of dy.
struct RowGroups {
  absl::Span<const int32_t> slots, begin, bags;
};

// `values` and gradients are float32.
class BagOps {
 public:
  virtual ~BagOps() = default;
  // Writes these bags of y. A row outside `values` is an error of the stream.
  virtual void Forward(const BagShape& shape, const int32_t* at, ConstSpan values, Span y,
                       Stream& stream) = 0;
  // Adds to `gradient` [][width], for each slot the sum of its rows of dy in their order. The groups are
  // borrowed until the stream has run.
  virtual void Backward(int width, const RowGroups& groups, ConstSpan dy, Span gradient, Stream& stream) = 0;
};

enum class Dots : uint8_t {
  // y [batch][width + n(n+1)/2] = a, then the products of all pairs of the n + 1 vectors a, b_1, ..., b_n
  // (pair (j, i), i < j, in the order of j, then i): DLRM's interaction (Naumov et al. 2019).
  kAllPairs,
  // y [batch][n][2] = 0 and the product a . b_i: the two logits of a binary choice.
  kFirstWithOthers,
};

struct DotShape {
  Dots kind;
  int batch, others, width;  // others: n
  size_t outputs() const {   // per sample
    const size_t n = static_cast<size_t>(others);
    return kind == Dots::kAllPairs ? static_cast<size_t>(width) + n * (n + 1) / 2 : 2 * n;
  }
};

// a [batch][width], b [batch][n][width].
class DotOps {
 public:
  virtual ~DotOps() = default;
  virtual void Forward(const DotShape& shape, ConstSpan a, ConstSpan b, Span y, Stream& stream) = 0;
  // Writes da and db.
  virtual void Backward(const DotShape& shape, ConstSpan a, ConstSpan b, ConstSpan dy, Span da, Span db,
                        Stream& stream) = 0;
};

}  // namespace psring
