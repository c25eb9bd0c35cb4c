// The tables of a model in one rank's training: the rows of its steps, of the evaluation and of checkpoints.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "common/base/parameters.h"
#include "common/measure/records.h"
#include "common/measure/trace.h"
#include "common/tables/row_range.h"
#include "trainer/data/dataset.h"
#include "trainer/data/sampler.h"
#include "trainer/step/plan/training_plan.h"
#include "trainer/strategies/row_strategy.h"
#include "trainer/tables/touched_rows.h"

namespace psring {

// Of a model without tables: all calls return at once. Used by the training thread, in the order of
// RowStrategy. Errors are those of the strategy.
class TableRows {
 public:
  // Borrowed.
  struct Parts {
    const ParameterLayout& layout;
    const DataSplits& data;
    const StrategyRow& strategy;
    const StepPlan& plan;
    Trace& trace;
    int span_bucket;  // in spans of exchanges with servers, which have the numbers after the buckets'
  };
  // `strategy`: null: the model has no tables.
  TableRows(const Parts& parts, std::unique_ptr<RowStrategy> strategy);

  absl::Status Start(const RowStart& start);

  // Those that the batches of a step touch.
  absl::Status Pull(int64_t step, const SampledStep& drawn);
  absl::Status Push(const StepInfo& info);
  // Adds what the exchange took to `report`.
  absl::Status Finish(const StepInfo& info, StepReport& report);

  // After the last step, before Leave: the rows of the test data, of which a batch has `batch` samples.
  absl::Status PullForEvaluation(int64_t step, int batch);
  absl::Status Leave();
  void Abort(const absl::Status& why);
  // Ends the strategy's work. The rows stay in memory, which the device may still use.
  void Close() { strategy_.reset(); }

  // Before rank 0 reads a checkpoint: this rank's updates are in the tables.
  absl::Status Settle();
  // The tables after the updates of all steps before `step`; null: there are none.
  ReadRows ReaderAt(int64_t step);
  ConstSpan Local() const { return strategy_ != nullptr ? strategy_->Local() : ConstSpan(); }

  // Of a step, and of the evaluation; null: the model has no tables, or they were not pulled.
  TouchedRows* touched() { return touched_.has_value() ? &*touched_ : nullptr; }
  TouchedRows* evaluated() { return evaluated_.has_value() ? &*evaluated_ : nullptr; }
  // The mean over the measured steps.
  const RowFigures& mean() const { return mean_; }

 private:
  const Parts parts_;
  std::unique_ptr<RowStrategy> strategy_;
  std::optional<TouchedRows> touched_, evaluated_;
  RowFigures mean_;
};

}  // namespace psring
