#include "trainer/step/recorder.h"

#include <algorithm>

#include "common/base/check.h"

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

double MeanMs(StepKind kind, const std::vector<TimedAction>& messages) {
  int64_t sum_ns = 0, count = 0;
  for (const auto& [action, time] : messages) {
    if (action.kind != kind) continue;
    sum_ns += Length(time);
    ++count;
  }
  return count > 0 ? Milliseconds(sum_ns) / static_cast<double>(count) : 0;
}

}  // namespace

StepRecord Recorder::RecordOf(Step step) {
  const StepInfo& info = step.info;
  StepReport& report = step.report;
  RankTimes& times = step.times;
  for (const auto& [from, to] : report.waits) {
    times.exposed.push_back({from, to});
    times.compute_ns -= to - from;
  }
  const bool is_warmup = info.step < plan_.warmup_steps;
  AddSpans(step, /*in_full=*/!is_warmup && ddp_steps_ < kStepsInFull);
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
  std::vector<std::pair<int64_t, int64_t>> in_flight = std::move(step.busy);
  for (const auto& [action, time] : times.messages) in_flight.emplace_back(time.begin_ns, time.end_ns);
  for (const BucketRecord& bucket : report.buckets) in_flight.emplace_back(bucket.begin_ns, bucket.end_ns);
  in_flight.insert(in_flight.end(), report.transfers.begin(), report.transfers.end());
  if (rows_end_ns > rows_begin_ns) in_flight.push_back(report.rows);
  StepRecord record{.rank = worker_.job_rank(), .step = info.step, .warmup = is_warmup};
  record.samples = info.samples;
  record.dropped = report.dropped;
  record.begin_ns = step.begin_ns;
  record.step_ms = Milliseconds(step.end_ns - step.begin_ns);
  record.compute_ms = Milliseconds(times.compute_ns);
  record.bubble_ms = Milliseconds(SumOf(times.bubbles));
  record.activation_message_ms = MeanMs(StepKind::kReceiveActivation, times.messages);
  record.gradient_message_ms = MeanMs(StepKind::kReceiveGradient, times.messages);
  record.delay_ms = Milliseconds(step.delay_ns);
  record.comm_busy_ms = Milliseconds(BusyNanos(in_flight));
  record.exposed_comm_ms = Milliseconds(report.exposed_ns + SumOf(times.exposed));
  record.payload_tx_bytes = report.traffic.payload_tx_bytes;
  record.payload_rx_bytes = report.traffic.payload_rx_bytes;
  if (info.samples > 0) record.loss = step.loss_sum / info.samples;
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
  if (step.replicas.has_value()) {
    step.replicas->update_ms = Milliseconds(step.end_ns - computed_ns);
    AddReplicas(*step.replicas, record);
  }
  record.buckets = std::move(report.buckets);
  return record;
}

// `figures`: of this step, with the strategy data-parallel.
void Recorder::AddReplicas(const DataParallelFigures& figures, StepRecord& record) {
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
  mean.device0_extra_mb = figures.device0_extra_mb;
}

// Only a pipeline's passes are named after their actions, and only they have messages and bubbles; of other
// steps, units are shown.
void Recorder::AddSpans(const Step& of, bool in_full) {
  const int64_t step = of.info.step;
  for (const auto& [action, time] : of.times.passes) {
    AddSpan(action.kind == StepKind::kForward ? SpanKind::kForward : SpanKind::kBackward, step, time,
            of.names_passes ? ToText(action) : "");
  }
  if (!in_full) return;
  for (const auto& [action, time] : of.times.messages) {
    AddSpan(SpanKind::kMessage, step, time, ToText(action));
  }
  for (const NodeTime& time : of.times.bubbles) AddSpan(SpanKind::kBubble, step, time);
  for (const NodeTime& time : of.times.exposed) AddSpan(SpanKind::kExposed, step, time);
  for (const auto& [action, time] : of.times.units) AddSpan(SpanKind::kUnit, step, time, ToText(action));
}

void Recorder::AddSpan(SpanKind kind, int64_t step, const NodeTime& time, const std::string& action) {
  worker_.trace.Add(
      {.kind = kind, .step = step, .begin_ns = time.begin_ns, .end_ns = time.end_ns, .action = action});
}

void Recorder::Count(const StepRecord& record) {
  if (record.dropped) ++result_.dropped_gradients;
  losses_.Add({.step = record.step,
               .samples = record.samples,
               .counted = record.warmup || record.dropped ? 0 : record.samples,
               .loss = record.loss});
  trained_s_ += record.step_ms / 1000;
  if (!record.warmup) {
    if (!record.dropped && counts_samples_) result_.samples += record.samples;
    result_.wall_s += record.step_ms / 1000;
  }
  for (const BucketRecord& bucket : record.buckets) {
    if (bucket.staleness < 0) continue;
    result_.pushes += bucket.pushes;
    result_.staleness_sum += bucket.staleness_sum;
    result_.staleness_max = std::max(result_.staleness_max, bucket.staleness);
  }
}

void Recorder::RemoveFrom(int64_t step, int64_t samples) {
  result_.samples -= losses_.RemoveFrom(step);
  std::erase_if(snapshots_,
                [samples](const WeightsCopy& snapshot) { return snapshot.point.samples > samples; });
}

void Recorder::Keep(CurvePoint point, ConstSpan weights, std::vector<float> buffers) {
  point.wall_s = trained_s_;
  point.train_loss = losses_.TakeMean();
  snapshots_.push_back({.point = point,
                        .weights = {weights.floats(), weights.floats() + weights.count},
                        .buffers = std::move(buffers)});
}

absl::Status Recorder::ScoreCurve(const Score& score) {
  const Dataset& test = worker_.data.test;
  const int64_t planned = static_cast<int64_t>(snapshots_.size()) * test.predictions();
  int64_t done = 0;
  const bool reports = worker_.rank == 0;
  if (reports) worker_.on_evaluating(done, planned);
  for (WeightsCopy& snapshot : snapshots_) {
    const auto on_batch = [&](int64_t predictions) {
      if (reports) worker_.on_evaluating(done + predictions * worker_.segments(), planned);
    };
    PSRING_ASSIGN_OR_RETURN(const BatchScore scored, score(snapshot, on_batch));
    done += test.predictions();
    if (!reports) continue;
    snapshot.point.test_loss = scored.loss_sum / test.predictions();
    snapshot.point.test_accuracy = static_cast<double>(scored.correct) / test.predictions();
    result_.curve.push_back(snapshot.point);
    worker_.on_evaluation(snapshot.point);
  }
  return absl::OkStatus();
}

void Recorder::End() {
  DdpFigures& ddp = result_.ddp;
  for (double* const ms : {&ddp.forward_ms, &ddp.backward_ms, &ddp.comm_ms, &ddp.overlap_ms}) {
    *ms /= static_cast<double>(std::max<int64_t>(1, ddp_steps_));
  }
  result_.final_loss = losses_.MeanOfLastTenth();
}

}  // namespace psring
