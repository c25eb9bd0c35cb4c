// Tables on every rank.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/device/device.h"
#include "common/measure/trace.h"
#include "common/tables/row_storage.h"
#include "trainer/strategies/row_strategy.h"
#include "trainer/strategies/strategies.h"

namespace psring {

// A rank's tables and their update. Used by one thread.
class LocalTables {
 public:
  static absl::StatusOr<LocalTables> Create(const StrategyContext& context, Device& host);

  const std::vector<Table>& tables() const { return tables_; }
  RowStorage& storage() { return storage_; }
  const RowStorage& storage() const { return storage_; }

  // Of this rank; see RowStart.
  absl::Status Start(const RowStart& start);
  // `samples`: in the gradient of the step.
  OptimizerStep StepOf(const StepInfo& info, int64_t samples) const;
  void Read(const RowRange& range, float* to) const;

 private:
  LocalTables(const StrategyContext& context, RowStorage storage)
      : tables_(context.tables), rule_(context.update), storage_(std::move(storage)) {}

  std::vector<Table> tables_;
  UpdateRule rule_;
  RowStorage storage_;
};

// What strategies with tables on every rank have in common: a step reads and saves this rank's tables.
class RowsOfOwnTables : public RowStrategy {
 public:
  RowsOfOwnTables(std::unique_ptr<Device> host, LocalTables tables, Trace& trace)
      : host_(std::move(host)), tables_(std::move(tables)), trace_(trace) {}

  absl::Status Pull(int64_t /*step*/, TouchedRows& rows) override {
    rows.ReadFrom(tables_.storage().values().floats());
    return absl::OkStatus();
  }
  absl::Status Push(const StepInfo& info, TouchedRows& rows) override {
    info_ = info;
    rows_ = &rows;
    return absl::OkStatus();
  }
  ConstSpan Local() const override { return tables_.storage().values(); }
  absl::Status Read(int64_t /*step*/, const RowRange& range, float* to) override {
    tables_.Read(range, to);
    return absl::OkStatus();
  }

 protected:
  const std::unique_ptr<Device> host_;
  LocalTables tables_;
  Trace& trace_;
  StepInfo info_;                // of the last Push
  TouchedRows* rows_ = nullptr;  // likewise
};

}  // namespace psring
