#include "trainer/process/worker_metrics.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/measure/open_metrics.h"

namespace psring {
namespace {

// 1-2-5 from a millisecond to 20 s.
constexpr std::array<double, 14> kStepSeconds = {0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1,
                                                 0.2,   0.5,   1,     2,    5,    10,   20};
constexpr std::array<double, 12> kStaleness = {0, 1, 2, 3, 4, 6, 8, 12, 16, 32, 64, 128};

template <size_t n>
size_t PlaceOf(const std::array<double, n>& bounds, double value) {
  return static_cast<size_t>(std::lower_bound(bounds.begin(), bounds.end(), value) - bounds.begin());
}

template <typename Counts>
std::vector<uint64_t> Read(const Counts& counts) {
  std::vector<uint64_t> read;
  for (const auto& count : counts) read.push_back(count.load(std::memory_order_relaxed));
  return read;
}

}  // namespace

void WorkerMetrics::Count(const StepRecord& step) {
  Add<uint64_t>(steps_, 1);
  Add<uint64_t>(samples_, static_cast<uint64_t>(step.samples));
  Add<uint64_t>(dropped_, step.dropped ? 1 : 0);
  Add<uint64_t>(tx_bytes_, step.payload_tx_bytes);
  Add<uint64_t>(rx_bytes_, step.payload_rx_bytes);
  Add<double>(compute_s_, 1e-3 * step.compute_ms);
  Add<double>(wait_s_, 1e-3 * step.exposed_comm_ms);
  Add<double>(comm_s_, 1e-3 * step.comm_busy_ms);
  Add<double>(step_s_, 1e-3 * step.step_ms);
  Add<uint64_t>(step_counts_[PlaceOf(kStepSeconds, 1e-3 * step.step_ms)], 1);
  loss_.store(step.loss, std::memory_order_relaxed);
  for (const BucketRecord& bucket : step.buckets) {
    if (bucket.staleness < 0) continue;
    Add<uint64_t>(staleness_counts_[PlaceOf(kStaleness, static_cast<double>(bucket.staleness))], 1);
    Add<double>(staleness_sum_, static_cast<double>(bucket.staleness));
  }
}

std::string WorkerMetrics::Text() const {
  const auto read = [](const auto& value) {
    return static_cast<double>(value.load(std::memory_order_relaxed));
  };
  OpenMetrics metrics({{"rank", absl::StrCat(rank_)}, {"strategy", strategy_}});
  metrics.Counter("psring_steps", "", "Steps of this worker, warm-up included.", read(steps_));
  metrics.Counter("psring_samples", "", "Samples that this worker has trained on.", read(samples_));
  metrics.Counter("psring_dropped_steps", "", "Steps whose gradient came too late for any update.",
                  read(dropped_));
  metrics.Counter("psring_sent", "bytes", "Payload that this worker has sent.", read(tx_bytes_));
  metrics.Counter("psring_received", "bytes", "Payload that this worker has received.", read(rx_bytes_));
  metrics.Counter("psring_compute", "seconds", "Time in forward and backward.", read(compute_s_));
  metrics.Counter("psring_communication", "seconds", "Time with at least one bucket in flight.",
                  read(comm_s_));
  metrics.Counter("psring_wait", "seconds", "Time in which computing waited for synchronization.",
                  read(wait_s_));
  metrics.Gauge("psring_loss", "", "Mean loss over the samples of the last step.", read(loss_));
  metrics.Histogram("psring_step", "seconds", "Length of a step.", {kStepSeconds.begin(), kStepSeconds.end()},
                    Read(step_counts_), read(step_s_));
  metrics.Histogram(
      "psring_staleness", "",
      "Updates between reading the weights and applying the gradient, of each bucket (servers only).",
      {kStaleness.begin(), kStaleness.end()}, Read(staleness_counts_), read(staleness_sum_));
  return metrics.Text();
}

}  // namespace psring
