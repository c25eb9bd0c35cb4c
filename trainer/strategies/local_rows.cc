// No communication: every rank updates its own tables.
#include "trainer/strategies/local_rows.h"

#include <cstring>
#include <utility>

#include "common/base/check.h"

namespace psring {

absl::StatusOr<LocalTables> LocalTables::Create(const StrategyContext& context, Device& host) {
  PSRING_ASSIGN_OR_RETURN(RowStorage storage,
                          RowStorage::Create(context.tables, context.update.optimizer, host));
  return LocalTables(context, std::move(storage));
}

absl::Status LocalTables::Start(const RowStart& start) {
  if (!start.rows) {
    storage_.Initialize(start.seed);
    return absl::OkStatus();
  }
  PSRING_CHECK(start.arrays <= storage_.arrays());
  for (int t = 0; t < static_cast<int>(tables_.size()); ++t) {
    for (int array = 0; array < start.arrays; ++array) {
      PSRING_RETURN_IF_ERROR(
          start.rows({.table = t, .array = array, .count = tables_[static_cast<size_t>(t)].rows},
                     storage_.table(t, array).floats()));
    }
  }
  return absl::OkStatus();
}

OptimizerStep LocalTables::StepOf(const StepInfo& info, int64_t samples) const {
  return psring::StepOf(rule_.optimizer, samples, LearningRate(rule_.schedule, info.global_samples_before),
                        info.step + 1);
}

void LocalTables::Read(const RowRange& range, float* to) const {
  const size_t width = static_cast<size_t>(tables_[static_cast<size_t>(range.table)].width);
  const Span from =
      storage_.table(range.table, range.array)
          .Slice(static_cast<size_t>(range.first) * width, static_cast<size_t>(range.count) * width);
  std::memcpy(to, from.data, from.bytes());
}

namespace {

class LocalRows : public RowsOfOwnTables {
 public:
  using RowsOfOwnTables::RowsOfOwnTables;

  absl::Status Start(const RowStart& start) override { return tables_.Start(start); }
  absl::StatusOr<RowReport> Finish() override {
    if (info_.samples == 0) return RowReport();  // its share of a short last batch may be empty
    const int64_t begin_ns = trace_.Now();
    const OptimizerStep step = tables_.StepOf(info_, info_.samples);
    for (size_t t = 0; t < rows_->of_tables().size(); ++t) {
      const TouchedRows::OfTable& table = rows_->of_tables()[t];
      tables_.storage().Update(static_cast<int>(t), table.rows, table.gradient.data(), step);
    }
    trace_.Add(
        {.kind = SpanKind::kOptimizer, .step = info_.step, .begin_ns = begin_ns, .end_ns = trace_.Now()});
    return RowReport();
  }
  void Abort(absl::Status /*why*/) override {}  // it never waits
};

}  // namespace

absl::StatusOr<std::unique_ptr<RowStrategy>> MakeLocalRows(const StrategyContext& context) {
  std::unique_ptr<Device> host = MakeCpuDevice();
  PSRING_ASSIGN_OR_RETURN(LocalTables tables, LocalTables::Create(context, *host));
  return std::make_unique<LocalRows>(std::move(host), std::move(tables), context.trace);
}

}  // namespace psring
