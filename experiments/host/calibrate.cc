#include "experiments/host/calibrate.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "common/base/check.h"
#include "experiments/host/connections.h"

namespace psring {
namespace {

absl::StatusOr<double> LoopbackBytesPerSecond(int count, double seconds) {
  std::vector<SocketPair> connections;
  for (int i = 0; i < count; ++i) {
    PSRING_ASSIGN_OR_RETURN(connections.emplace_back(), ConnectOverLoopback());
  }
  PSRING_ASSIGN_OR_RETURN(const std::vector<double> rates,
                          MeasureRates(std::move(connections), 0.1 * seconds, 0.9 * seconds));
  return std::accumulate(rates.begin(), rates.end(), 0.0);
}

}  // namespace

absl::StatusOr<Wires> CalibrateLoopback(int cores, absl::Duration time) {
  const double part = absl::ToDoubleSeconds(time) / 4;
  Wires wires;
  PSRING_ASSIGN_OR_RETURN(SocketPair connection, ConnectOverLoopback());
  PSRING_ASSIGN_OR_RETURN(wires.latency_s, MeasureLatency(std::move(connection), part));
  PSRING_ASSIGN_OR_RETURN(wires.bytes_per_s, LoopbackBytesPerSecond(1, part));
  const int pairs = std::clamp(cores / 2, 1, 8);
  wires.medium_bytes_per_s = wires.bytes_per_s;
  if (pairs > 1) {
    PSRING_ASSIGN_OR_RETURN(wires.medium_bytes_per_s, LoopbackBytesPerSecond(pairs, part));
  }
  wires.add_s_per_byte = MeasureAdd(part);
  return wires;
}

}  // namespace psring
