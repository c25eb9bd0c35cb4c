// The records of a training: figures of each step, copies of the weights with their scores, the result.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "trainer/step/training.h"

namespace psring {
namespace {

// Measured ones, of which the trace has every unit of the model, or every message and bubble.
constexpr int64_t kStepsInFull = 20;

double Milliseconds(int64_t nanos) { return nanos * 1e-6; }

int64_t Length(const NodeTime& time) { return time.end_ns - time.begin_ns; }

int64_t SumOf(const std::vector<NodeTime>& times) {
  int64_t ns = 0;
  for (const NodeTime& time : times) ns += Length(time);
  return ns;
}

// In MiB, for `parameters` of float32.
double StateMb(const OptimizerConfig& optimizer, size_t parameters) {
  return static_cast<double>(OptimizerSlots(optimizer.kind).size() * parameters * sizeof(float)) / (1 << 20);
}

// Of a step of one rank.
PipelineExecutor::StepTimes TimesOf(const Executor& executor) {
  PipelineExecutor::StepTimes times;
  for (size_t batch = 0; batch < executor.batches(); ++batch) {
    const auto [forward_ns, backward_ns, end_ns] = executor.TimesOf(batch);
    times.passes.push_back({{StepKind::kForward}, {forward_ns, backward_ns}});
    times.passes.push_back({{StepKind::kBackward}, {backward_ns, end_ns}});
    times.compute_ns += end_ns - forward_ns;
  }
  return times;
}

}  // namespace

// After the streams were synchronized and the clock was advanced. `record.samples`: see Finish.
StepRecord Training::RecordOf(const StepInfo& info, StepReport report, int64_t begin_ns, int64_t end_ns) {
  PipelineExecutor::StepTimes times = pipeline_ != nullptr ? pipeline_->Times() : TimesOf(*executor_);
  TensorAxis::Times sums = axis_.has_value() ? axis_->Take() : TensorAxis::Times();
  if (sequence_axis_.has_value()) sums.Add(sequence_axis_->Take());
  for (const auto& [begin, end] : sums.waits) {
    times.exposed.push_back({begin, end});
    times.compute_ns -= end - begin;
  }
  times.bubbles.insert(times.bubbles.end(), waits_.begin(), waits_.end());
  for (const auto& [from, to] : report.waits) {
    times.exposed.push_back({from, to});
    times.compute_ns -= to - from;
  }
  const bool is_warmup = info.step < plan_.warmup_steps;
  AddSpans(times, info.step, /*in_full=*/!is_warmup && ddp_steps_ < kStepsInFull);
  int64_t forward_ns = 0, backward_ns = 0;
  std::pair<int64_t, int64_t> last_backward;  // during which buckets are sent
  for (const auto& [action, time] : times.passes) {
    const bool backward = action.kind != StepKind::kForward;
    (backward ? backward_ns : forward_ns) += Length(time);
    if (backward) last_backward = {time.begin_ns, time.end_ns};
  }
  const int64_t computed_ns = last_backward.second;
  const auto [rows_begin_ns, rows_end_ns] = report.rows;
  int64_t exposed_after_ns = report.exposed_ns;
  if (rows_end_ns > rows_begin_ns && rows_end_ns <= computed_ns) {  // pulled before computing
    AddSpan(SpanKind::kExposed, info.step, {rows_begin_ns, rows_end_ns});
    exposed_after_ns -= rows_end_ns - rows_begin_ns;
  }
  if (exposed_after_ns > 0) {
    AddSpan(SpanKind::kExposed, info.step, {computed_ns, computed_ns + exposed_after_ns});
  }
  std::vector<std::pair<int64_t, int64_t>> in_flight = sums.busy;
  for (const auto& [action, time] : times.messages) in_flight.emplace_back(time.begin_ns, time.end_ns);
  for (const BucketRecord& bucket : report.buckets) in_flight.emplace_back(bucket.begin_ns, bucket.end_ns);
  in_flight.insert(in_flight.end(), report.transfers.begin(), report.transfers.end());
  if (rows_end_ns > rows_begin_ns) in_flight.push_back(report.rows);
  StepRecord record{.rank = job_rank(), .step = info.step, .warmup = is_warmup};
  record.samples = info.samples;
  record.dropped = report.dropped;
  record.begin_ns = begin_ns;
  record.step_ms = Milliseconds(end_ns - begin_ns);
  record.compute_ms = Milliseconds(times.compute_ns);
  record.bubble_ms = Milliseconds(SumOf(times.bubbles));
  record.delay_ms = Milliseconds(delay_->slept_ns());
  record.comm_busy_ms = Milliseconds(BusyNanos(in_flight));
  record.exposed_comm_ms = Milliseconds(report.exposed_ns + SumOf(times.exposed));
  record.payload_tx_bytes = report.traffic.payload_tx_bytes;
  record.payload_rx_bytes = report.traffic.payload_rx_bytes;
  if (info.samples > 0) record.loss = score_.loss_sum / info.samples;
  if (!record.warmup) {
    ++ddp_steps_;
    result_.ddp.forward_ms += Milliseconds(forward_ns);
    result_.ddp.backward_ms += Milliseconds(backward_ns);
    result_.ddp.comm_ms += record.comm_busy_ms;
    for (auto& [begin, end] : in_flight) {
      begin = std::clamp(begin, last_backward.first, last_backward.second);
      end = std::clamp(end, last_backward.first, last_backward.second);
    }
    result_.ddp.overlap_ms += Milliseconds(BusyNanos(std::move(in_flight)));
  }
  if (replicas_ != nullptr) {
    DataParallelFigures figures = replicas_->Take();
    figures.update_ms = Milliseconds(end_ns - computed_ns);
    AddReplicas(figures, record);
  }
  record.buckets = std::move(report.buckets);
  return record;
}

// `figures`: of this step, with the strategy data-parallel.
void Training::AddReplicas(const DataParallelFigures& figures, StepRecord& record) {
  // The rest of forward and backward is computing by all replicas at once, and the loss.
  record.compute_ms -= figures.moved_ms();
  record.comm_busy_ms = record.exposed_comm_ms = figures.moved_ms();
  record.payload_tx_bytes = static_cast<uint64_t>(figures.from_device0_bytes());
  record.payload_rx_bytes = static_cast<uint64_t>(figures.to_device0_bytes());
  if (record.warmup) return;
  const double share = 1 / static_cast<double>(plan_.steps);
  DataParallelFigures& mean = result_.data_parallel;
  mean.replicas = figures.replicas;
  for (double DataParallelFigures::*field :
       {&DataParallelFigures::inputs_bytes, &DataParallelFigures::inputs_ms,
        &DataParallelFigures::weights_bytes, &DataParallelFigures::weights_ms,
        &DataParallelFigures::output_gradients_bytes, &DataParallelFigures::output_gradients_ms,
        &DataParallelFigures::outputs_bytes, &DataParallelFigures::outputs_ms,
        &DataParallelFigures::gradients_bytes, &DataParallelFigures::gradients_ms,
        &DataParallelFigures::loss_ms, &DataParallelFigures::update_ms, &DataParallelFigures::compute_ms}) {
    mean.*field += share * figures.*field;
  }
  mean.device0_extra_mb = figures.device0_extra_mb + StateMb(updates_.optimizer, weights_.span().count);
}

// Only a pipeline's passes are named after their actions, and only they have messages and bubbles; of other
// steps, units are shown.
void Training::AddSpans(const PipelineExecutor::StepTimes& times, int64_t step, bool in_full) {
  for (const auto& [action, time] : times.passes) {
    AddSpan(action.kind == StepKind::kForward ? SpanKind::kForward : SpanKind::kBackward, step, time,
            pipeline_ != nullptr ? ToText(action) : "");
  }
  if (!in_full) return;
  for (const auto& [action, time] : times.messages) {
    AddSpan(SpanKind::kMessage, step, time, ToText(action));
  }
  for (const NodeTime& time : times.bubbles) AddSpan(SpanKind::kBubble, step, time);
  for (const NodeTime& time : times.exposed) AddSpan(SpanKind::kExposed, step, time);
  for (size_t i = 0; executor_ != nullptr && i < executor_->nodes().size(); ++i) {
    const StepAction& action = executor_->nodes()[i].action;
    const NodeTime& time = executor_->times()[i];
    const bool is_known = time.begin_ns > 0 && time.end_ns > 0;
    if (LaneOf(action.kind) == StepLane::kCompute && is_known) {
      AddSpan(SpanKind::kUnit, step, time, ToText(action));
    }
  }
}

void Training::AddSpan(SpanKind kind, int64_t step, const NodeTime& time, const std::string& action) {
  worker_.trace.Add(
      {.kind = kind, .step = step, .begin_ns = time.begin_ns, .end_ns = time.end_ns, .action = action});
}

void Training::Count(const StepRecord& record) {
  if (record.dropped) ++result_.dropped_gradients;
  losses_.Add({.step = record.step,
               .samples = record.samples,
               .counted = record.warmup || record.dropped ? 0 : record.samples,
               .loss = record.loss});
  trained_s_ += record.step_ms / 1000;
  if (!record.warmup) {
    if (!record.dropped && begins_replica()) result_.samples += record.samples;
    result_.wall_s += record.step_ms / 1000;
  }
  for (const BucketRecord& bucket : record.buckets) {
    if (bucket.staleness < 0) continue;
    result_.pushes += bucket.pushes;
    result_.staleness_sum += bucket.staleness_sum;
    result_.staleness_max = std::max(result_.staleness_max, bucket.staleness);
  }
}

// Of this rank, with no work in progress.
absl::StatusOr<ConstSpan> Training::WeightsOnHost() {
  const HostView view = OwnWeights();
  view.Download(*compute_);
  PSRING_RETURN_IF_ERROR(compute_->Synchronize());
  return ConstSpan(view.host);
}

absl::Status Training::KeepSnapshot() {
  PSRING_ASSIGN_OR_RETURN(const ConstSpan weights, WeightsOnHost());
  PSRING_ASSIGN_OR_RETURN(std::vector<float> buffers, BuffersOnHost());
  snapshots_.push_back({.point = {.samples = clock_->samples(),
                                  .updates = clock_->updates(),
                                  .wall_s = trained_s_,
                                  .train_loss = losses_.TakeMean()},
                        .weights = {weights.floats(), weights.floats() + weights.count},
                        .buffers = std::move(buffers)});
  return absl::OkStatus();
}

absl::Status Training::ScoreCurve() {
  const Dataset& test = worker_.data.test;
  const int64_t planned = static_cast<int64_t>(snapshots_.size()) * test.predictions();
  int64_t done = 0;
  const bool reports = worker_.rank == 0;
  if (reports) worker_.on_evaluating(done, planned);
  for (WeightsCopy& snapshot : snapshots_) {
    // Not needed for gradients any more, or the last snapshot is what there is now.
    const Span weights = shards_.shards_gradient() ? OwnWeights().device : gradient_.device;
    compute_->Copy(weights.data, snapshot.weights.data(), weights.bytes());
    PSRING_RETURN_IF_ERROR(LoadBuffers(snapshot.buffers));
    const auto on_batch = [&](int64_t predictions) {
      if (reports) worker_.on_evaluating(done + predictions * segment_.ranks, planned);
    };
    PSRING_ASSIGN_OR_RETURN(const BatchScore score, Score(weights, on_batch));
    done += test.predictions();
    if (!reports) continue;
    snapshot.point.test_loss = score.loss_sum / test.predictions();
    snapshot.point.test_accuracy = static_cast<double>(score.correct) / test.predictions();
    result_.curve.push_back(snapshot.point);
    worker_.on_evaluation(snapshot.point);
  }
  return absl::OkStatus();
}

// What was allocated.
MemoryFigures Training::Memory() const {
  if (replicas_ != nullptr || row_strategy_ != nullptr) return {};
  const auto mb = [](size_t bytes) { return static_cast<double>(bytes) / (1 << 20); };
  const bool is_cut = pipeline_ != nullptr;
  return {.params_mb = mb(weights_.bytes() + buffers_.bytes()),
          .grads_mb = mb(gradient_.device.bytes() +
                         (is_cut ? pipeline_->gradient_bytes() : executor_->gradient_bytes())),
          .optimizer_mb = mb(strategy_.sync->state_bytes()),
          .activations_mb = mb((is_cut ? pipeline_->slot_bytes() : activations_.bytes() + batches_->bytes()) +
                               (sequence_axis_.has_value() ? sequence_axis_->reserved_bytes() : 0))};
}

// All of the result except the curve.
absl::Status Training::Describe() {
  result_.rank = job_rank();
  result_.world_size = worker_.pipeline != nullptr ? worker_.pipeline->ranks : worker_.world_size;
  result_.strategy = options_.strategy;
  result_.device = worker_.device.name();
  result_.ops = ops_->name();
  result_.algorithm = strategy_row_.algorithm;
  if (worker_.group != nullptr) {  // not for a single worker
    result_.backend = worker_.group->info().backend;
    if (!strategy_row_.has_parameters_on_servers()) result_.algorithm = worker_.group->info().algorithm;
    result_.transport = worker_.group->info().transport;
    result_.wires = worker_.group->info().wires;
    const bool pinned = worker_.device.gpu() >= 0 && !worker_.group->info().on_gpu;
    result_.payload = absl::StrCat(worker_.group->info().transport, pinned ? " through pinned memory" : "");
  }
  if (worker_.client != nullptr) {
    if (worker_.group == nullptr || strategy_row_.has_parameters_on_servers()) {
      result_.backend = "native";
      result_.transport = worker_.client->status().payload;
      result_.payload = worker_.client->status().payload;
    }
    result_.placement = options_.server_placement;
    for (const std::string_view wire : worker_.client->status().wires) {
      if (std::ranges::find(result_.wires, wire) == result_.wires.end()) result_.wires.emplace_back(wire);
    }
  }
  result_.parameters = static_cast<int64_t>(whole().parameters());
  result_.global_batch = plan_.global_batch;
  if (is_first_rank()) result_.flags = TrainingArguments(options_);
  result_.optimizer = OptimizerName(updates_.optimizer.kind);
  result_.lr = updates_.schedule.base;
  result_.steps = plan_.steps;
  DdpFigures& ddp = result_.ddp;
  for (double* const ms : {&ddp.forward_ms, &ddp.backward_ms, &ddp.comm_ms, &ddp.overlap_ms}) {
    *ms /= static_cast<double>(std::max<int64_t>(1, ddp_steps_));
  }
  for (const Bucket& bucket : pushed_buckets()) result_.bucket_elements.push_back(bucket.count);
  if (shards_weights()) result_.gathered_elements = executor_->GatheredElements(shards_.weights.keeps);
  result_.memory = Memory();
  result_.final_loss = losses_.MeanOfLastTenth();
  PSRING_ASSIGN_OR_RETURN(result_.weights_hash, HashOfWeights());
  return absl::OkStatus();
}

}  // namespace psring
