// What a model may have beside its weights: buffers, which are not trained, such as BatchNorm's running
// statistics; and tables, of which a step touches some rows.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "trainer/data/sampler.h"
#include "trainer/step/training.h"

namespace psring {
namespace {

// A server keeps its newest two checkpoints, several servers three.
constexpr size_t kMaxKept = 3;

}  // namespace

absl::Status Training::AllocateBuffers() {
  const ParameterLayout& layout = model_->parameters();
  PSRING_RETURN_IF_ERROR(CheckSyncBatchNorm(options_, layout));
  if (layout.buffers().empty()) return absl::OkStatus();
  if (is_first_rank()) worker_.on_note(StatisticsNote(options_, strategy_row_, worker_.world_size));
  PSRING_ASSIGN_OR_RETURN(buffers_, worker_.device.Allocate(layout.initial_buffers().size() * sizeof(float)));
  PSRING_ASSIGN_OR_RETURN(host_buffers_, AllocateHostSide(worker_.device, buffers_));
  if (worker_.statistics == nullptr) return absl::OkStatus();
  size_t most = 0;  // a buffer has a value for each channel
  for (const Tensor& buffer : layout.buffers()) most = std::max(most, buffer.count);
  statistics_.emplace(*worker_.statistics, most);
  return absl::OkStatus();
}

// Of a checkpoint; empty: the initial ones.
absl::Status Training::LoadBuffers(const std::vector<float>& values) {
  const std::vector<float>& from = values.empty() ? model_->parameters().initial_buffers() : values;
  PSRING_CHECK(from.size() * sizeof(float) == buffers_.bytes());
  if (from.empty()) return absl::OkStatus();
  compute_->Copy(buffers_.data(), from.data(), buffers_.bytes());
  return compute_->Synchronize();
}

HostView Training::BuffersToBroadcast() const {
  return options_.broadcast_buffers == "true" ? HostView::Of(buffers_, host_buffers_) : HostView();
}

// With no work in progress.
absl::StatusOr<std::vector<float>> Training::BuffersOnHost() {
  const HostView view = HostView::Of(buffers_, host_buffers_);
  view.Download(*compute_);
  PSRING_RETURN_IF_ERROR(compute_->Synchronize());
  return std::vector<float>(view.host.floats(), view.host.floats() + view.host.count);
}

// Copies of the steps to which a synchronous server that restarts may go back.
absl::Status Training::KeepBuffers(int64_t step) {
  const bool goes_back = buffers_.bytes() > 0 && strategy_row_.synchronous && strategy_row_.uses_servers &&
                         ServerReturns(options_, ServersOf(options_, worker_.world_size));
  if (!goes_back) return absl::OkStatus();
  const int64_t every = std::max<int64_t>(1, options_.checkpoint_every);
  if (!kept_buffers_.empty() && step % every != 0) return absl::OkStatus();
  PSRING_ASSIGN_OR_RETURN(kept_buffers_[step], BuffersOnHost());
  if (kept_buffers_.size() > kMaxKept) kept_buffers_.erase(kept_buffers_.begin());
  return absl::OkStatus();
}

absl::Status Training::RestoreBuffers(int64_t step) {
  if (buffers_.bytes() == 0) return absl::OkStatus();
  kept_buffers_.erase(kept_buffers_.upper_bound(step), kept_buffers_.end());
  if (const auto kept = kept_buffers_.find(step); kept != kept_buffers_.end())
    return LoadBuffers(kept->second);
  worker_.on_note(absl::StrCat("the running statistics of step ", step,
                               " are not stored any more; they "
                               "continue with the present ones"));
  return absl::OkStatus();
}

// Of this rank, beside its strategy's.
Traffic Training::OtherTraffic() const {
  Traffic other = worker_.statistics == nullptr ? Traffic() : worker_.statistics->traffic();
  if (pipeline_ != nullptr) other = other + pipeline_->traffic();
  if (worker_.sequence != nullptr) other = other + worker_.sequence->traffic();
  if (worker_.pipeline == nullptr) return other;
  const Pipeline& at = *worker_.pipeline;
  if (at.tensors != nullptr && at.tensors != at.replica) other = other + at.tensors->traffic();
  return other + at.replica->traffic();
}

// Of a checkpoint: the tables' values, and the slots of their optimizer if it is continued; 0: initial
// values.
int Training::LoadedArrays() const {
  if (worker_.resume == nullptr || !rows_.has_value()) return 0;
  return 1 + (resume_.with_slots ? static_cast<int>(OptimizerSlots(updates_.optimizer.kind).size()) : 0);
}

absl::Status Training::StartTables() {
  if (!rows_.has_value()) return absl::OkStatus();
  const absl::Status started = row_strategy_->Start({.seed = options_.seed,
                                                     .arrays = LoadedArrays(),
                                                     .rows = loaded_.rows,
                                                     .step = resume_.step,
                                                     .samples = resume_.samples});
  if (!started.ok()) row_strategy_->Abort(started);  // the others wait for rank 0's rows
  return started;
}

absl::Status Training::PullRows(int64_t step, const SampledStep& drawn) {
  if (!rows_.has_value()) return absl::OkStatus();
  PSRING_RETURN_IF_ERROR(rows_->Plan(worker_.data.train, drawn.batches));
  return row_strategy_->Pull(step, *rows_);
}

// If gradients may be dropped, FinishRows pushes instead, because FinishStep says whether this one was.
absl::Status Training::PushRows(const StepInfo& info) {
  if (!rows_.has_value() || strategy_row_.drops_gradients) return absl::OkStatus();
  return row_strategy_->Push(info, *rows_);
}

absl::Status Training::FinishRows(const StepInfo& info, StepReport& report) {
  if (!rows_.has_value()) return absl::OkStatus();
  if (strategy_row_.drops_gradients && !report.dropped) {
    PSRING_RETURN_IF_ERROR(row_strategy_->Push(info, *rows_));
  }
  PSRING_ASSIGN_OR_RETURN(const RowReport rows, row_strategy_->Finish());
  report.traffic = report.traffic + rows.traffic;
  report.exposed_ns += rows.exposed_ns;
  report.rows = {rows.begin_ns, rows.end_ns};
  if (rows.bytes.pulled_bytes > 0) {  // an exchange with the servers, after those of the buckets
    worker_.trace.Add({.kind = SpanKind::kCommunication,
                       .step = info.step,
                       .bucket = static_cast<int>(pushed_buckets().size()),
                       .begin_ns = rows.begin_ns,
                       .end_ns = rows.end_ns});
  }
  if (info.step >= plan_.warmup_steps) result_.rows.AddToMean(rows.bytes, static_cast<double>(plan_.steps));
  return absl::OkStatus();
}

// Before the strategy stops: the rows of the test data.
absl::Status Training::PullForEvaluation() {
  if (!rows_.has_value() || !options_.evaluate || worker_.rank != 0) return absl::OkStatus();
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
