#include "trainer/step/table_rows.h"

#include <utility>

#include "common/base/check.h"

namespace psring {

TableRows::TableRows(const Parts& parts, std::unique_ptr<RowStrategy> strategy)
    : parts_(parts), strategy_(std::move(strategy)) {
  if (strategy_ != nullptr) touched_.emplace(parts_.layout, parts_.data.train.spec());
}

absl::Status TableRows::Start(const RowStart& start) {
  if (strategy_ == nullptr) return absl::OkStatus();
  const absl::Status started = strategy_->Start(start);
  if (!started.ok()) strategy_->Abort(started);  // the others wait for rank 0's rows
  return started;
}

absl::Status TableRows::Pull(int64_t step, const SampledStep& drawn) {
  if (strategy_ == nullptr) return absl::OkStatus();
  PSRING_RETURN_IF_ERROR(touched_->Plan(parts_.data.train, drawn.batches));
  return strategy_->Pull(step, *touched_);
}

// If gradients may be dropped, Finish pushes instead, because FinishStep says whether this one was.
absl::Status TableRows::Push(const StepInfo& info) {
  if (strategy_ == nullptr || parts_.strategy.drops_gradients) return absl::OkStatus();
  return strategy_->Push(info, *touched_);
}

absl::Status TableRows::Finish(const StepInfo& info, StepReport& report) {
  if (strategy_ == nullptr) return absl::OkStatus();
  if (parts_.strategy.drops_gradients && !report.dropped) {
    PSRING_RETURN_IF_ERROR(strategy_->Push(info, *touched_));
  }
  PSRING_ASSIGN_OR_RETURN(const RowReport rows, strategy_->Finish());
  report.traffic = report.traffic + rows.traffic;
  report.exposed_ns += rows.exposed_ns;
  report.rows = {rows.begin_ns, rows.end_ns};
  if (rows.bytes.pulled_bytes > 0) {  // an exchange with the servers, after those of the buckets
    parts_.trace.Add({.kind = SpanKind::kCommunication,
                      .step = info.step,
                      .bucket = parts_.span_bucket,
                      .begin_ns = rows.begin_ns,
                      .end_ns = rows.end_ns});
  }
  if (info.step >= parts_.plan.warmup_steps) {
    mean_.AddToMean(rows.bytes, static_cast<double>(parts_.plan.steps));
  }
  return absl::OkStatus();
}

absl::Status TableRows::PullForEvaluation(int64_t step, int batch) {
  if (strategy_ == nullptr) return absl::OkStatus();
  const Dataset& test = parts_.data.test;
  evaluated_.emplace(parts_.layout, test.spec());
  PSRING_RETURN_IF_ERROR(evaluated_->Plan(test, EvaluationBatches(test.count(), batch, /*rank=*/0, 1)));
  return strategy_->Pull(step, *evaluated_);
}

absl::Status TableRows::Leave() {
  auto* const servers = dynamic_cast<ServerMembership*>(strategy_.get());
  return servers != nullptr ? servers->Leave() : absl::OkStatus();
}

void TableRows::Abort(const absl::Status& why) {
  if (strategy_ != nullptr) strategy_->Abort(why);
}

absl::Status TableRows::Settle() {
  auto* const pending = dynamic_cast<PendingUpdates*>(strategy_.get());
  return pending != nullptr ? pending->Settle() : absl::OkStatus();
}

ReadRows TableRows::ReaderAt(int64_t step) {
  if (strategy_ == nullptr) return nullptr;
  return [this, step](const RowRange& range, float* to) { return strategy_->Read(step, range, to); };
}

}  // namespace psring
