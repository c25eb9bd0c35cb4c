#include "experiments/theory/cost_model.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "common/base/check.h"
#include "experiments/theory/local_exchange.h"
#include "experiments/theory/server_exchange.h"

namespace psring {
namespace {

// A host's link carries the bytes of its worker and its server.
CommTerms ServerTerms(const CommPattern& pattern, double bytes) {
  const double n = pattern.workers, s = pattern.servers;
  const double p = pattern.pushed;
  // Bytes in one direction of the busiest link: of a push, of a pull, of both at once.
  double push = 0, pull = 0, both = 0;
  switch (pattern.place) {
    case ServerPlace::kRank0:
      pull = (n - 1) * bytes;
      push = p * pull;
      both = std::max(push, pull);
      break;
    case ServerPlace::kDedicated:
      pull = std::max(bytes, n * bytes / s);
      push = p * pull;
      both = std::max(push, pull);
      break;
    case ServerPlace::kColocated:
      // If S < N, hosts without a server push and pull all bytes over their link.
      pull = std::max((n - 1) / s, s < n ? 1.0 : 0.0) * bytes;
      push = p * pull;
      both = std::max((std::max(p, 1.0) * (n - 1) + std::min(p, 1.0) * (s - 1)) / s,
                      s < n ? std::max(p, 1.0) : 0.0) *
             bytes;
      break;
  }
  return {.messages = 2,
          .link_bytes = pattern.pipelined ? both : push + pull,
          // On one machine rank 0's payload also crosses the loopback to its server.
          .medium_bytes = (p + 1) * n * bytes,
          .added_bytes = n * bytes / s,
          .adds_while_moving = true};
}

bool UsesServers(const CommPattern& pattern) {
  return pattern.scheme == Scheme::kServerSync || pattern.scheme == Scheme::kServerAsync;
}

double Sum(const std::vector<double>& bytes) { return std::accumulate(bytes.begin(), bytes.end(), 0.0); }

// The share of a worker's exchange that leaves its host, on average over workers.
double RemoteShare(const CommPattern& pattern) {
  const double n = pattern.workers;
  return pattern.place == ServerPlace::kDedicated ? 1 : (n - 1) / n;
}

}  // namespace

Scheme Scheme::AllReduce(const std::string& algorithm) {
  const ScheduleRow* row = FindSchedule(algorithm);
  PSRING_CHECK(row != nullptr && row->cost != nullptr);
  return {Kind::kAllReduce, row};
}

std::optional<Scheme> SchemeOf(const StrategyInfo& strategy, const ScheduleTable& rows) {
  if (!strategy.communicates()) return Scheme::kNone;
  if (strategy.uses_group) {
    const ScheduleRow* row = FindSchedule(strategy.algorithm, rows);
    if (row == nullptr || row->cost == nullptr) return std::nullopt;
    return Scheme{Scheme::Kind::kAllReduce, row};
  }
  if (strategy.drops_gradients) return std::nullopt;
  return strategy.synchronous ? Scheme::kServerSync : Scheme::kServerAsync;
}

CommTerms TermsOf(const CommPattern& pattern, double bytes) {
  switch (pattern.scheme.kind) {
    case Scheme::Kind::kNone:
      return {};
    case Scheme::Kind::kAllReduce:
      return pattern.workers == 1 ? CommTerms() : pattern.scheme.schedule->cost(pattern.workers, bytes).terms;
    case Scheme::Kind::kServerSync:
      return ServerTerms(pattern, bytes);
    case Scheme::Kind::kServerAsync:
      return {.messages = 2 * RemoteShare(pattern),
              .link_bytes = RemoteShare(pattern) * bytes *
                            (pattern.pipelined ? std::max(pattern.pushed, 1.0) : pattern.pushed + 1),
              .medium_bytes = (pattern.pushed + 1) * bytes,
              .added_bytes = bytes / pattern.servers};
  }
  return {};
}

double ExchangeSeconds(const CommPattern& pattern, double bytes, const Wires& wires) {
  const CommTerms terms = TermsOf(pattern, bytes);
  const double link = wires.bytes_per_s > 0 ? terms.link_bytes / wires.bytes_per_s : 0;
  const double medium = wires.medium_bytes_per_s > 0 ? terms.medium_bytes / wires.medium_bytes_per_s : 0;
  const double move = std::max(link, medium), add = terms.added_bytes * wires.add_s_per_byte;
  if (!terms.adds_while_moving) return terms.messages * wires.latency_s + move + add;
  // A serial server adds only while gradients arrive, not during the pull.
  const double pull = pattern.pipelined ? 0 : move / (1 + pattern.pushed);
  return terms.messages * wires.latency_s + std::max(move, pull + add) + LocalSeconds(pattern, bytes, wires);
}

double ExchangeSeconds(const CommPattern& pattern, const std::vector<double>& bucket_bytes,
                       const Wires& wires) {
  if (UsesServers(pattern)) {
    return TimeOfServerExchange(pattern, bucket_bytes, wires).last +
           LocalSeconds(pattern, Sum(bucket_bytes), wires);
  }
  double all = 0, seconds = 0;
  for (const double bytes : bucket_bytes) {
    all += bytes;
    seconds += ExchangeSeconds(pattern, bytes, wires);
  }
  if (pattern.workers == 1 || pattern.scheme == Scheme::kNone || wires.bytes_per_s <= 0) return seconds;
  // A burst passes at full speed once for every phase that uses one direction of the busiest link.
  const int phases = pattern.scheme.schedule->cost(pattern.workers, all).one_direction ? 2 : 1;
  return seconds - std::min(seconds, phases * wires.burst_bytes / wires.bytes_per_s);
}

double MeanExchangeSeconds(const CommPattern& pattern, const std::vector<double>& bucket_bytes,
                           const Wires& wires) {
  if (!UsesServers(pattern)) return ExchangeSeconds(pattern, bucket_bytes, wires);
  return TimeOfServerExchange(pattern, bucket_bytes, wires).mean +
         LocalSeconds(pattern, Sum(bucket_bytes), wires);
}

double LocalSeconds(const CommPattern& pattern, double bytes, const Wires& wires) {
  if (pattern.per_machine <= 1 || wires.add_s_per_byte <= 0) return 0;
  const MachineInside inside{.workers = pattern.per_machine,
                             .bytes_per_s = 1 / wires.add_s_per_byte,
                             .add_s_per_byte = wires.add_s_per_byte};
  // An all-reduce is a reduce-scatter and an all-gather.
  return ReduceSeconds(inside, bytes) + 2 * GatherSeconds(inside, bytes);
}

double PayloadBytesPerWorker(const CommPattern& pattern, double bytes) {
  switch (pattern.scheme.kind) {
    case Scheme::Kind::kNone:
      return 0;
    case Scheme::Kind::kAllReduce:
      return pattern.workers == 1 ? 0 : pattern.scheme.schedule->cost(pattern.workers, bytes).payload_bytes;
    case Scheme::Kind::kServerSync:
    case Scheme::Kind::kServerAsync: {
      const double each = pattern.per_machine;
      // Every rank's part of the sum to its owner and back, and the weights to the others.
      return (pattern.pushed + 3 * (each - 1)) / each * bytes;
    }
  }
  return 0;
}

Overlap OverlapBuckets(const std::vector<double>& ready, const std::vector<double>& cost,
                       double backward_end) {
  PSRING_CHECK(ready.size() == cost.size());
  Overlap overlap;
  double end = 0;
  for (size_t b = 0; b < ready.size(); ++b) {
    end = std::max(ready[b], end) + cost[b];
    overlap.ends.push_back(end);
    overlap.busy += cost[b];
  }
  overlap.exposed = std::max(0.0, end - backward_end);
  return overlap;
}

}  // namespace psring
