// The rows of a model's tables that a step touches, and the gradient of these rows. The work and the memory
// of a step depend on them, not on the size of the tables.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "common/base/parameters.h"
#include "common/ops/layer_ops.h"
#include "trainer/data/dataset.h"

namespace psring {

// What one batch looks up. A *slot* is the position of a row in TouchedRows::OfTable::rows.
struct BatchLookups {
  struct OfTable {
    std::vector<int32_t> slots;  // of the rows that the batch touches, ascending
    std::vector<int32_t> begin;  // for each of them, its first bag in `bags`; one more at the end
    std::vector<int32_t> bags;   // sample * (bags of the input) + bag, in ascending order for each row
    RowGroups groups() const { return {slots, begin, bags}; }
  };
  std::vector<OfTable> tables;
  std::vector<std::vector<int32_t>> slots_at;  // by input: the slot of each lookup, [batch][lookups]
};

// Of one step, whose batches' gradients are added up. Used by one thread; host memory.
class TouchedRows {
 public:
  struct OfTable {
    std::vector<int32_t> rows;  // ascending, distinct
    // Their values: of the entire table, indexed by row, or `pulled`, indexed by slot.
    const float* values = nullptr;
    bool is_entire_table = false;
    std::vector<float> pulled;
    std::vector<float> gradient;  // [rows][width]
    std::vector<float> sum;       // see EndWorker
  };

  // `layout` and `samples` outlive it.
  TouchedRows(const ParameterLayout& layout, const SampleSpec& samples);

  // Collects the lookups of `batches`, samples of `data`, and clears the gradient. Rows outside a table are
  // InvalidArgument.
  absl::Status Plan(const Dataset& data, const std::vector<std::vector<int64_t>>& batches);

  const std::vector<Table>& tables() const { return layout_.tables(); }
  std::vector<OfTable>& of_tables() { return of_tables_; }
  const std::vector<OfTable>& of_tables() const { return of_tables_; }
  const BatchLookups& batch(size_t number) const { return batches_[number]; }
  // The samples of a batch, which Plan has read; valid until the next Plan.
  Batch gathered(size_t number) const;

  // For batches that stand for workers, each with several batches: their gradients are added up first. Called
  // after each worker's last batch.
  void EndWorker(bool is_last);

  // The values are 0.
  void ReadZeros();
  // The values are read in place: `values` are those of all tables.
  void ReadFrom(const float* values);

 private:
  // Bags of input `input` of a sample, over all tables.
  int BagsOfInput(int input) const;

  const ParameterLayout& layout_;
  const SampleSpec& samples_;
  std::vector<OfTable> of_tables_;
  std::vector<BatchLookups> batches_;
  std::vector<size_t> first_samples_;  // of each batch in what follows; one more at the end
  std::vector<std::vector<uint32_t>> inputs_;
  std::vector<int32_t> labels_;
  std::vector<uint64_t> keys_;
};

}  // namespace psring
