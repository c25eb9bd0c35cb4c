// No communication: every rank updates its own tables.
#include "trainer/strategies/local_rows.h"

#include <cstring>
#include <utility>

#include "common/base/check.h"

namespace psring {

absl::StatusOr<RowsOfOwnTables::Parts> RowsOfOwnTables::PartsOf(const StrategyContext& context) {
  std::unique_ptr<Device> host = MakeCpuDevice();
  PSRING_ASSIGN_OR_RETURN(RowStorage storage,
                          RowStorage::Create(context.tables, context.update.optimizer, *host));
  return Parts{std::move(host), std::move(storage)};
}

absl::Status RowsOfOwnTables::Start(const RowStart& start) {
  if (!start.rows) {
    storage_.Initialize(start.seed);
    return absl::OkStatus();
  }
  PSRING_CHECK(start.arrays <= storage_.arrays());
  for (int t = 0; t < static_cast<int>(context_.tables.size()); ++t) {
    for (int array = 0; array < start.arrays; ++array) {
      PSRING_RETURN_IF_ERROR(
          start.rows({.table = t, .array = array, .count = context_.tables[static_cast<size_t>(t)].rows},
                     storage_.table(t, array).floats()));
    }
  }
  return absl::OkStatus();
}

absl::Status RowsOfOwnTables::Read(int64_t /*step*/, const RowRange& range, float* to) {
  const size_t width = static_cast<size_t>(context_.tables[static_cast<size_t>(range.table)].width);
  const Span from =
      storage_.table(range.table, range.array)
          .Slice(static_cast<size_t>(range.first) * width, static_cast<size_t>(range.count) * width);
  std::memcpy(to, from.data, from.bytes());
  return absl::OkStatus();
}

namespace {

class LocalRows : public RowsOfOwnTables {
 public:
  LocalRows(const StrategyContext& context, Parts parts) : RowsOfOwnTables(context, std::move(parts)) {}

  absl::StatusOr<RowReport> Finish() override {
    if (info_.samples == 0) return RowReport();  // its share of a short last batch may be empty
    const int64_t begin_ns = context_.trace.Now();
    const OptimizerStep step = StepFor(info_.samples);
    for (size_t t = 0; t < rows_->of_tables().size(); ++t) {
      const TouchedRows::OfTable& table = rows_->of_tables()[t];
      storage_.Update(static_cast<int>(t), table.rows, table.gradient.data(), step);
    }
    context_.trace.Add({.kind = SpanKind::kOptimizer,
                        .step = info_.step,
                        .begin_ns = begin_ns,
                        .end_ns = context_.trace.Now()});
    return RowReport();
  }
  void Abort(absl::Status /*why*/) override {}  // it never waits
};

}  // namespace

absl::StatusOr<std::unique_ptr<RowStrategy>> MakeLocalRows(const StrategyContext& context) {
  PSRING_ASSIGN_OR_RETURN(RowsOfOwnTables::Parts parts, RowsOfOwnTables::PartsOf(context));
  return std::make_unique<LocalRows>(context, std::move(parts));
}

}  // namespace psring
