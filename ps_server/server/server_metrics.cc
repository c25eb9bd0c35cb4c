#include "ps_server/server/server_metrics.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/measure/open_metrics.h"

namespace psring {

std::string ServerMetricsText(int server, const ServerStats& stats) {
  OpenMetrics metrics({{"server", absl::StrCat(server)}});
  metrics.Counter("psring_server_pushes", "", "Gradients of a bucket that workers have pushed.",
                  static_cast<double>(stats.pushes));
  metrics.Counter("psring_server_received", "bytes", "Payload that the server has received.",
                  static_cast<double>(stats.payload.payload_rx_bytes));
  metrics.Counter("psring_server_sent", "bytes", "Payload that the server has sent.",
                  static_cast<double>(stats.payload.payload_tx_bytes));
  metrics.Counter("psring_server_dropped_gradients", "", "Gradients that arrived too late for any update.",
                  static_cast<double>(stats.dropped_gradients));
  metrics.Counter("psring_server_restarts", "",
                  "How often this job has continued after a restart of the server.",
                  static_cast<double>(stats.restarts));
  metrics.Gauge("psring_server_lost_workers", "", "Workers that were lost.",
                static_cast<double>(stats.lost_workers.size()));
  const std::vector<double> bounds = {0, 1, 2, 3, 4, 6, 8, 12, 16, 32, 64, 128};
  std::vector<uint64_t> counts(bounds.size() + 1);
  double sum = 0;
  for (size_t stale = 0; stale < stats.staleness_histogram.size(); ++stale) {
    const double value = static_cast<double>(stale);
    const auto count = static_cast<uint64_t>(stats.staleness_histogram[stale]);
    counts[static_cast<size_t>(std::lower_bound(bounds.begin(), bounds.end(), value) - bounds.begin())] +=
        count;
    sum += value * static_cast<double>(count);
  }
  metrics.Histogram("psring_server_staleness", "",
                    "Updates between sending weights and applying the gradient computed on them.", bounds,
                    counts, sum);
  return metrics.Text();
}

ServerResult ResultOf(int server, const ServerStats& stats) {
  return {.server = server,
          .pushes = stats.pushes,
          .payload_rx_bytes = stats.payload.payload_rx_bytes,
          .payload_tx_bytes = stats.payload.payload_tx_bytes,
          .staleness_histogram = stats.staleness_histogram,
          .dropped_gradients = stats.dropped_gradients,
          .restarts = stats.restarts,
          .lost_workers = stats.lost_workers,
          .lost_at_step = stats.lost_at_step,
          .peak_memory_mb = PeakMemoryMb()};
}

}  // namespace psring
