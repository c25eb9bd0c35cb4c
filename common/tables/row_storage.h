// Tables in host memory with the state of their optimizer, updated by rows: an update costs as much as the
// rows that it changes, not as the tables.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/base/parameters.h"
#include "common/device/device.h"
#include "common/ops/optimizer.h"

namespace psring {

// InvalidArgument: the optimizer changes rows without a gradient (a velocity, weight decay). SGD and Adagrad
// change none; of Adam's means only those of rows with a gradient change, as in PyTorch's SparseAdam.
absl::Status CheckRowOptimizer(const OptimizerConfig& optimizer);

// Which rows of each table are stored: row r if r % parts == part, as row r / parts of the storage.
struct RowPart {
  int part = 0, parts = 1;
  int RowsOf(int rows) const { return (rows - part + parts - 1) / parts; }
};

// One thread at a time for each table.
class RowStorage {
 public:
  // Zeros. `optimizer`: CheckRowOptimizer.
  static absl::StatusOr<RowStorage> Create(const std::vector<Table>& tables, const OptimizerConfig& optimizer,
                                           Device& host, RowPart part = {});

  // InitialRow of every row; `slots` become 0.
  void Initialize(uint64_t seed);

  // Updates the stored rows `rows` of a table from `gradient` [rows][width].
  void Update(int table, absl::Span<const int32_t> rows, const float* gradient, const OptimizerStep& step);

  // [stored rows][width] of a table's values (array 0), or of a slot of its optimizer (from 1).
  Span table(int number, int array = 0) const;
  int arrays() const { return 1 + static_cast<int>(slots_.size()); }
  // All tables one after the other, and the same of each slot.
  Span values() const { return values_.span(); }
  std::vector<Span> slots() const;

 private:
  struct Stored {
    size_t first, count, width;  // elements
  };

  std::vector<Table> tables_;
  std::vector<Stored> stored_;
  RowPart part_;
  Buffer values_;
  std::vector<Buffer> slots_;
};

}  // namespace psring
