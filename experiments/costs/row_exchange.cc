#include "experiments/costs/row_exchange.h"

#include <algorithm>

namespace psring {
namespace {

// Bytes over the busiest link if every worker exchanges `bytes` with the servers.
double OverLink(const CommPattern& pattern, double bytes) {
  const double n = pattern.workers, s = pattern.servers;
  switch (pattern.place) {
    case ServerPlace::kRank0:
      return (n - 1) * bytes;
    case ServerPlace::kDedicated:
      return std::max(bytes, n * bytes / s);
    case ServerPlace::kColocated:
      return std::max((n - 1) / s, s < n ? 1.0 : 0.0) * bytes;
  }
  return 0;
}

double Seconds(double bytes, const Wires& wires, double medium_bytes) {
  const auto at = [](double bytes_per_s, double moved) { return bytes_per_s > 0 ? moved / bytes_per_s : 0; };
  return std::max({at(wires.bytes_per_s, bytes), at(wires.server_bytes_per_s, bytes),
                   at(wires.medium_bytes_per_s, medium_bytes)});
}

}  // namespace

std::optional<RowExchange> RowExchangeOf(const CommPattern& pattern, const RowFigures& rows,
                                         const Wires& wires) {
  const double n = pattern.workers;
  if (pattern.scheme == Scheme::kNone) return RowExchange();
  const double up = rows.asked_bytes + rows.pushed_bytes;
  if (up + rows.pulled_bytes > 0) {
    return RowExchange{
        .payload_bytes = up,
        .seconds = 2 * wires.latency_s +
                   Seconds(OverLink(pattern, rows.pulled_bytes), wires, n * rows.pulled_bytes) +
                   Seconds(OverLink(pattern, up), wires, n * up)};
  }
  const ScheduleRow* schedule = pattern.scheme.schedule;
  if (schedule == nullptr || n == 1) return RowExchange();
  if (schedule->traits.gather_messages == nullptr) return std::nullopt;
  const double sent = (n - 1) * rows.gathered_bytes;
  RowExchange exchange{.payload_bytes = sent,
                       .seconds = 2 * schedule->traits.gather_messages(pattern.workers) * wires.latency_s +
                                  Seconds(sent, wires, n * sent)};
  if (rows.reduced_bytes > 0) {
    exchange.payload_bytes += PayloadBytesPerWorker(pattern, rows.reduced_bytes);
    exchange.seconds += ExchangeSeconds(pattern, rows.reduced_bytes, wires);
  }
  return exchange;
}

}  // namespace psring
