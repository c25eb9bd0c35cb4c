// Tables on every rank.
#pragma once

#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "common/device/device.h"
#include "common/tables/row_storage.h"
#include "trainer/strategies/row_strategy.h"
#include "trainer/strategies/strategies.h"

namespace psring {

// What strategies with tables on every rank have in common: a step reads and saves this rank's tables.
class RowsOfOwnTables : public RowStrategy {
 public:
  absl::Status Start(const RowStart& start) override;
  absl::Status Pull(int64_t /*step*/, TouchedRows& rows) override {
    rows.ReadFrom(storage_.values().floats());
    return absl::OkStatus();
  }
  absl::Status Push(const StepInfo& info, TouchedRows& rows) override {
    info_ = info;
    rows_ = &rows;
    return absl::OkStatus();
  }
  ConstSpan Local() const override { return storage_.values(); }
  absl::Status Read(int64_t step, const RowRange& range, float* to) override;

  // Of a context.
  struct Parts {
    std::unique_ptr<Device> host;
    RowStorage storage;
  };
  static absl::StatusOr<Parts> PartsOf(const StrategyContext& context);

 protected:
  RowsOfOwnTables(const StrategyContext& context, Parts parts)
      : context_(context), host_(std::move(parts.host)), storage_(std::move(parts.storage)) {}

  // Of the last Push, if its gradient has `samples`.
  OptimizerStep StepFor(int64_t samples) const {
    const UpdateRule& rule = context_.update;
    return StepOf(rule.optimizer, samples, LearningRate(rule.schedule, info_.global_samples_before),
                  info_.step + 1);
  }

  const StrategyContext context_;
  const std::unique_ptr<Device> host_;
  RowStorage storage_;
  StepInfo info_;                // of the last Push
  TouchedRows* rows_ = nullptr;  // likewise
};

}  // namespace psring
