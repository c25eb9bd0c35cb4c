#include "common/tables/row_storage.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "common/base/errors.h"
#include "common/ops/cpu_kernels.h"

namespace psring {
namespace {

// Rows are far apart, so a row is requested this many rows before it is written.
constexpr size_t kAhead = 8;
constexpr size_t kCacheLine = 64;

void PrefetchToWrite(const float* row, size_t width) {
  const char* const bytes = reinterpret_cast<const char*>(row);
  for (size_t at = 0; at < width * sizeof(float); at += kCacheLine) __builtin_prefetch(bytes + at, 1);
}

// For each i: updates row rows[i] of `weights` and of the slots of state from row i of `gradient`, with the
// bits of Ops::Apply. `slots` that the step does not have are null.
void ApplyToRows(const OptimizerStep& step, size_t width, absl::Span<const int32_t> rows, float* weights,
                 const float* gradient, float* const slots[2]) {
  const auto in_row = [&](float* all, size_t i) {
    return all == nullptr ? nullptr : all + size_t(rows[i]) * width;
  };
  const auto prefetch = [&](size_t i) {
    for (float* const all : {weights, slots[0], slots[1]}) {
      if (all != nullptr) PrefetchToWrite(in_row(all, i), width);
    }
  };
  for (size_t i = 0; i < std::min(kAhead, rows.size()); ++i) prefetch(i);
  for (size_t i = 0; i < rows.size(); ++i) {
    if (i + kAhead < rows.size()) prefetch(i + kAhead);
    cpu::Apply(step, width, in_row(weights, i), gradient + i * width, in_row(slots[0], i),
               in_row(slots[1], i));
  }
}

}  // namespace

absl::Status CheckRowOptimizer(const OptimizerConfig& optimizer) {
  if (optimizer.kind != OptimizerKind::kMomentum && optimizer.kind != OptimizerKind::kAdamW) {
    return absl::OkStatus();
  }
  return InvalidArgument("--optimizer ", OptimizerName(optimizer.kind),
                         " changes all rows of a table in every step; use sgd, adagrad or adam");
}

absl::StatusOr<RowStorage> RowStorage::Create(const std::vector<Table>& tables,
                                              const OptimizerConfig& optimizer, Device& host, RowPart part) {
  PSRING_RETURN_IF_ERROR(CheckRowOptimizer(optimizer));
  RowStorage storage;
  storage.tables_ = tables;
  storage.part_ = part;
  size_t count = 0;
  for (const Table& table : tables) {
    const size_t width = static_cast<size_t>(table.width);
    const size_t own = static_cast<size_t>(part.RowsOf(table.rows)) * width;
    storage.stored_.push_back({count, own, width});
    count += own;
  }
  PSRING_ASSIGN_OR_RETURN(storage.values_, host.Allocate(count * sizeof(float)));
  for (size_t i = 0; i < OptimizerSlots(optimizer.kind).size(); ++i) {
    PSRING_ASSIGN_OR_RETURN(Buffer slot, host.Allocate(count * sizeof(float)));
    storage.slots_.push_back(std::move(slot));
  }
  return storage;
}

void RowStorage::Initialize(uint64_t seed) {
  for (size_t t = 0; t < tables_.size(); ++t) {
    float* to = table(static_cast<int>(t)).floats();
    for (int row = part_.part; row < tables_[t].rows; row += part_.parts, to += stored_[t].width) {
      InitialRow(tables_[t], static_cast<int>(t), row, seed, to);
    }
  }
  for (const Buffer& slot : slots_) std::fill_n(slot.span().floats(), slot.span().count, 0.0f);
}

void RowStorage::Update(int table, absl::Span<const int32_t> rows, const float* gradient,
                        const OptimizerStep& step) {
  const Stored& own = stored_[static_cast<size_t>(table)];
  float* slots[2] = {nullptr, nullptr};
  PSRING_CHECK(slots_.size() == SlotsOf(step));
  for (size_t i = 0; i < slots_.size(); ++i) slots[i] = slots_[i].span().floats() + own.first;
  ApplyToRows(step, own.width, rows, values_.span().floats() + own.first, gradient, slots);
}

Span RowStorage::table(int number, int array) const {
  const Stored& own = stored_[static_cast<size_t>(number)];
  const Buffer& all = array == 0 ? values_ : slots_[static_cast<size_t>(array - 1)];
  return all.span().Slice(own.first, own.count);
}

std::vector<Span> RowStorage::slots() const {
  std::vector<Span> spans;
  for (const Buffer& slot : slots_) spans.push_back(slot.span());
  return spans;
}

}  // namespace psring
