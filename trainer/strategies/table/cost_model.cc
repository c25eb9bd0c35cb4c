#include "trainer/strategies/table/cost_model.h"

#include <algorithm>
#include <numeric>

#include "common/base/check.h"

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

// The share of a worker's exchange that leaves its host, on average over workers.
double RemoteShare(const CommPattern& pattern) {
  const double n = pattern.workers;
  return pattern.place == ServerPlace::kDedicated ? 1 : (n - 1) / n;
}

CommTerms AsyncTerms(const CommPattern& pattern, double bytes) {
  const double remote = RemoteShare(pattern);
  return {
      .messages = 2 * remote,
      .link_bytes = remote * bytes * (pattern.pipelined ? std::max(pattern.pushed, 1.0) : pattern.pushed + 1),
      .medium_bytes = (pattern.pushed + 1) * bytes,
      .added_bytes = bytes / pattern.servers};
}

double ServerPayload(const CommPattern& pattern, double bytes) {
  const double each = pattern.per_machine;
  // Every rank's part of the sum to its owner and back, and the weights to the others.
  return (pattern.pushed + 3 * (each - 1)) / each * bytes;
}

ExchangeTime ServerTime(const CommPattern& pattern, const std::vector<double>& bucket_bytes,
                        const Wires& wires) {
  ExchangeTime time = TimeOfServerExchange(pattern, bucket_bytes, wires);
  const double local =
      LocalSeconds(pattern, std::accumulate(bucket_bytes.begin(), bucket_bytes.end(), 0.0), wires);
  time.last += local;
  time.mean += local;
  return time;
}

CommTerms AllReduceTerms(const CommPattern& pattern, double bytes) {
  return pattern.workers == 1 ? CommTerms() : pattern.scheme.schedule->cost(pattern.workers, bytes).terms;
}

double AllReducePayload(const CommPattern& pattern, double bytes) {
  return pattern.workers == 1 ? 0 : pattern.scheme.schedule->cost(pattern.workers, bytes).payload_bytes;
}

double SecondsOfOne(const CommPattern& pattern, double bytes, const Wires& wires) {
  const CommTerms terms = TermsOf(pattern, bytes);
  const double link = wires.bytes_per_s > 0 ? terms.link_bytes / wires.bytes_per_s : 0;
  const double medium = wires.medium_bytes_per_s > 0 ? terms.medium_bytes / wires.medium_bytes_per_s : 0;
  const double server = wires.server_bytes_per_s > 0 ? (pattern.pushed + 1) * GradientsAtServer(pattern) *
                                                           bytes / wires.server_bytes_per_s
                                                     : 0;
  const double move = std::max({link, medium, server}), add = terms.added_bytes * wires.add_s_per_byte;
  if (!terms.adds_while_moving) return terms.messages * wires.latency_s + move + add;
  // A serial server adds only while gradients arrive, not during the pull.
  const double pull = pattern.pipelined ? 0 : move / (1 + pattern.pushed);
  return terms.messages * wires.latency_s + std::max(move, pull + add) + LocalSeconds(pattern, bytes, wires);
}

ExchangeTime AllReduceTime(const CommPattern& pattern, const std::vector<double>& bucket_bytes,
                           const Wires& wires) {
  double all = 0, seconds = 0;
  for (const double bytes : bucket_bytes) {
    all += bytes;
    seconds += SecondsOfOne(pattern, bytes, wires);
  }
  if (pattern.workers > 1 && wires.bytes_per_s > 0) {
    // A burst passes at full speed once for every phase that uses one direction of the busiest link.
    const int phases = pattern.scheme.schedule->cost(pattern.workers, all).one_direction ? 2 : 1;
    seconds -= std::min(seconds, phases * wires.burst_bytes / wires.bytes_per_s);
  }
  return {.last = seconds, .mean = seconds};
}

ExchangeTime TimeOf(const CommPattern& pattern, const std::vector<double>& bucket_bytes, const Wires& wires) {
  return pattern.scheme.time == nullptr ? ExchangeTime() : pattern.scheme.time(pattern, bucket_bytes, wires);
}

}  // namespace

const Scheme Scheme::kNone = {};
const Scheme Scheme::kAllReduce = {AllReduceTerms, AllReducePayload, AllReduceTime};
const Scheme Scheme::kServerSync = {ServerTerms, ServerPayload, ServerTime};
const Scheme Scheme::kServerAsync = {AsyncTerms, ServerPayload, ServerTime};

Scheme Scheme::AllReduce(const ScheduleRow& schedule) {
  PSRING_CHECK(schedule.cost != nullptr);
  Scheme scheme = kAllReduce;
  scheme.schedule = &schedule;
  return scheme;
}

Scheme Scheme::AllReduce(const std::string& algorithm) {
  const ScheduleRow* row = FindSchedule(algorithm);
  PSRING_CHECK(row != nullptr);
  return AllReduce(*row);
}

std::optional<Scheme> SchemeOf(const StrategyRow& strategy, const ScheduleTable& rows) {
  if (strategy.scheme == nullptr) return std::nullopt;
  Scheme scheme = *strategy.scheme;
  scheme.per_step = strategy.exchanges_per_step();
  if (strategy.uses_group) {
    scheme.schedule = FindSchedule(strategy.algorithm, rows);
    if (scheme.schedule == nullptr || scheme.schedule->cost == nullptr) return std::nullopt;
  }
  return scheme;
}

CommTerms TermsOf(const CommPattern& pattern, double bytes) {
  return pattern.scheme.terms == nullptr ? CommTerms() : pattern.scheme.terms(pattern, bytes);
}

double ExchangeSeconds(const CommPattern& pattern, double bytes, const Wires& wires) {
  return pattern.scheme.per_step * SecondsOfOne(pattern, bytes, wires);
}

double ExchangeSeconds(const CommPattern& pattern, const std::vector<double>& bucket_bytes,
                       const Wires& wires) {
  return pattern.scheme.per_step * TimeOf(pattern, bucket_bytes, wires).last;
}

double MeanExchangeSeconds(const CommPattern& pattern, const std::vector<double>& bucket_bytes,
                           const Wires& wires) {
  return pattern.scheme.per_step * TimeOf(pattern, bucket_bytes, wires).mean;
}

double GradientsAtServer(const CommPattern& pattern) {
  const double n = pattern.workers, pushing = pattern.scheme == Scheme::kServerAsync ? 1 : n;
  const double remote = RemoteShare(pattern) * pushing;
  return pattern.place == ServerPlace::kRank0 ? remote : remote / pattern.servers;
}

double GatherSeconds(const MachineInside& inside, double bytes) {
  if (inside.workers <= 1) return 0;
  return (inside.workers - 1) * (bytes / inside.workers / inside.bytes_per_s + inside.latency_s);
}

double ReduceSeconds(const MachineInside& inside, double bytes) {
  if (inside.workers <= 1) return 0;
  return GatherSeconds(inside, bytes) + (inside.workers - 1) * bytes / inside.workers * inside.add_s_per_byte;
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
  const Scheme& scheme = pattern.scheme;
  return scheme.payload_bytes == nullptr ? 0 : scheme.per_step * scheme.payload_bytes(pattern, bytes);
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
