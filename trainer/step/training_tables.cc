// Models with tables: the rows that each step touches.
#include <utility>

#include "common/base/check.h"
#include "trainer/data/sampler.h"
#include "trainer/step/training.h"

namespace psring {

// Of a checkpoint: the tables' values, and the slots of their optimizer if it is continued; 0: initial
// values.
int Training::LoadedArrays() const {
  if (worker_.resume == nullptr || !rows_.has_value()) return 0;
  return 1 + (resume_.with_slots ? static_cast<int>(OptimizerSlots(updates_.optimizer.kind).size()) : 0);
}

absl::Status Training::StartTables() {
  const absl::Status started = row_strategy_->Start({.seed = options_.seed,
                                                     .arrays = LoadedArrays(),
                                                     .rows = loaded_.rows,
                                                     .step = resume_.step,
                                                     .samples = resume_.samples});
  if (!started.ok()) row_strategy_->Abort(started);  // the others wait for rank 0's rows
  return started;
}

absl::Status Training::PullRows(int64_t step, const std::vector<std::vector<int64_t>>& batches) {
  PSRING_RETURN_IF_ERROR(rows_->Plan(worker_.data.train, batches));
  return row_strategy_->Pull(step, *rows_);
}

absl::Status Training::FinishRows(int64_t step, StepReport& report) {
  PSRING_ASSIGN_OR_RETURN(const RowReport rows, row_strategy_->Finish());
  report.traffic = report.traffic + rows.traffic;
  report.exposed_ns += rows.exposed_ns;
  report.rows = {rows.begin_ns, rows.end_ns};
  if (rows.bytes.pulled_bytes > 0) {  // an exchange with the servers, after those of the buckets
    worker_.trace.Add({.kind = SpanKind::kCommunication,
                       .step = step,
                       .bucket = static_cast<int>(pushed_buckets().size()),
                       .begin_ns = rows.begin_ns,
                       .end_ns = rows.end_ns});
  }
  if (step >= plan_.warmup_steps) result_.rows.AddToMean(rows.bytes, static_cast<double>(plan_.steps));
  return absl::OkStatus();
}

// Before the strategy stops: the rows of the test data.
absl::Status Training::PullForEvaluation() {
  if (!options_.evaluate || worker_.rank != 0) return absl::OkStatus();
  const Dataset& test = worker_.data.test;
  evaluated_rows_.emplace(model_->parameters(), test.spec());
  PSRING_RETURN_IF_ERROR(
      evaluated_rows_->Plan(test, EvaluationBatches(test.count(), evaluation_batch_, /*rank=*/0, 1)));
  return row_strategy_->Pull(clock_->next(), *evaluated_rows_);
}

ReadRows Training::RowsOfCheckpoint() {
  if (row_strategy_ == nullptr) return nullptr;
  return [this, step = clock_->next()](const RowRange& range, float* to) {
    return row_strategy_->Read(step, range, to);
  };
}

}  // namespace psring
