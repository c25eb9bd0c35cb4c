#include "experiments/theory/cost_model_waiting.h"

#include <algorithm>

#include "common/base/check.h"

namespace psring {

double AsyncThroughputBound(const std::vector<double>& compute_s, double service_s) {
  double sum = 0;
  for (const double compute : compute_s) sum += 1 / (compute + service_s);
  return service_s > 0 ? std::min(sum, 1 / service_s) : sum;
}

ClosedQueue MeanValueAnalysis(int workers, double compute_s, double service_s) {
  ClosedQueue queue;
  for (int n = 1; n <= workers; ++n) {
    queue.response_s = service_s * (1 + queue.at_server);
    queue.pushes_per_s = n / (compute_s + queue.response_s);
    queue.at_server = queue.pushes_per_s * queue.response_s;
  }
  return queue;
}

double MeanStaleness(int workers) { return workers - 1; }

double StalenessOfWorker(const std::vector<double>& rates, int worker) {
  double sum = 0;
  for (size_t other = 0; other < rates.size(); ++other) {
    if (other != static_cast<size_t>(worker)) sum += rates[other] / rates[static_cast<size_t>(worker)];
  }
  return sum;
}

double MostStaleness(int workers, int bound) { return (2.0 * bound + 1) * (workers - 1); }

double FastestOf(std::vector<double> compute_s, int needed) {
  PSRING_CHECK(needed >= 1 && static_cast<size_t>(needed) <= compute_s.size());
  std::nth_element(compute_s.begin(), compute_s.begin() + (needed - 1), compute_s.end());
  return compute_s[static_cast<size_t>(needed - 1)];
}

}  // namespace psring
