#include <algorithm>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

#include "common/measure/arrivals.h"
#include "experiments/report/digests.h"
#include "experiments/runs/untrusted_json.h"
#include "ps_server/consistency/consistency.h"

namespace psring {

std::string DigestArrivals(const std::string& name, const std::string& bytes) {
  const absl::StatusOr<Arrivals> arrivals = ArrivalsFromBytes(bytes);
  if (!arrivals.ok() || arrivals->updates.empty() || arrivals->workers < 1) return "";
  const auto consistency = MakeConsistency(arrivals->consistency, arrivals->workers);
  if (!consistency.ok()) return "";

  std::vector<int64_t> reads(arrivals->workers, 0), step(arrivals->workers, 0);  // by worker
  UntrustedJson pushes = UntrustedJson::array();
  int64_t updates = 0, most = 0;
  double sum = 0;
  for (const uint16_t worker : arrivals->updates.front()) {
    const int64_t before = (*consistency)->version(), stale = before - reads[worker];
    const Consistency::Decision decision = (*consistency)->OnPush(worker, step[worker]++);
    if (!decision.accept || decision.apply_count != 1) return "";
    if (pushes.size() < kMostPushes) pushes.push_back({worker, reads[worker], before + 1});
    for (const int reader : decision.may_read) reads[reader] = (*consistency)->version();
    ++updates;
    sum += static_cast<double>(stale);
    most = std::max(most, stale);
  }
  if (updates == 0) return "";
  return DumpUntrusted({{"name", name},
                        {"workers", arrivals->workers},
                        {"rule", arrivals->consistency},
                        {"updates", updates},
                        {"staleness_mean", sum / static_cast<double>(updates)},
                        {"staleness_max", most},
                        {"pushes", pushes}});
}

}  // namespace psring
