#include "experiments/summary/time_scale.h"

#include <cmath>

#include "experiments/texts/findings.h"

namespace psring {

void DivideTimes(double scale, RunRecords& records) {
  const auto ns = [scale](int64_t& time) { time = std::llround(static_cast<double>(time) / scale); };
  for (std::vector<StepRecord>& steps : records.steps) {
    for (StepRecord& step : steps) {
      ns(step.begin_ns);
      for (double* ms :
           {&step.step_ms, &step.compute_ms, &step.delay_ms, &step.comm_busy_ms, &step.exposed_comm_ms}) {
        *ms /= scale;
      }
      for (BucketRecord& bucket : step.buckets) {
        ns(bucket.ready_ns);
        ns(bucket.begin_ns);
        ns(bucket.end_ns);
      }
    }
  }
  for (RankResult& rank : records.ranks) {
    DataParallelFigures& replicas = rank.data_parallel;
    for (double* time :
         {&rank.wall_s, &rank.computed_ms, &rank.update_ms, &rank.run_delay_ms, &rank.probe_ms,
          &rank.ddp.forward_ms, &rank.ddp.backward_ms, &rank.ddp.comm_ms, &rank.ddp.overlap_ms,
          &replicas.inputs_ms, &replicas.weights_ms, &replicas.output_gradients_ms, &replicas.outputs_ms,
          &replicas.gradients_ms, &replicas.loss_ms, &replicas.update_ms, &replicas.compute_ms}) {
      *time /= scale;
    }
    for (CurvePoint& point : rank.curve) point.wall_s /= scale;
  }
  if (records.network) records.network->again_ms /= scale;
}

Wires DivideTimes(double scale, Wires wires) {
  wires.latency_s /= scale;
  wires.bytes_per_s *= scale;
  wires.medium_bytes_per_s *= scale;
  wires.add_s_per_byte /= scale;
  wires.update_s_per_byte /= scale;
  return wires;
}

std::vector<std::string> ScaleFindings(const std::vector<SummaryRow>& rows, Language language) {
  if (rows.empty() || !rows.front().configuration.scaled()) return {};
  return {Say(language, kScaled, rows.front().configuration.training.time_scale)};
}

}  // namespace psring
