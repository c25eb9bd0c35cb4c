// The theoretical cost of an exchange of gradients. Pure.
//
// Symbols: M bytes of gradient, N workers, B bytes/s of a link in one direction, a seconds of latency per
// message, g seconds to add a byte. Ranks on one machine share one *medium*, its loopback, which limits the
// bytes of all ranks together. All-reduces: the cost functions in ring_worker/schedules. Source for servers:
// Li et al. 2014.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "experiments/theory/catalog.h"
#include "ring_worker/schedules/schedule.h"

namespace psring {

struct Wires {
  double latency_s = 0;           // a
  double bytes_per_s = 0;         // B
  double add_s_per_byte = 0;      // g
  double update_s_per_byte = 0;   // of an optimizer with momentum
  double medium_bytes_per_s = 0;  // of all ranks together; 0: links are independent
  double burst_bytes = 0;         // sent at full speed after a pause: the shaper's token bucket
};

// How gradients are exchanged.
struct Scheme {
  enum class Kind : uint8_t { kNone, kAllReduce, kServerSync, kServerAsync };

  static const Scheme kNone;
  // One server or several; see ServerPlace.
  static const Scheme kServerSync;
  // A worker's push and pull while no other worker uses the links: for large gradients, serial 2a + 2M/B + M
  // g, pipelined 2a + M/B + M g. The mean over workers, so (N-1)/N of it with servers on the workers' hosts.
  static const Scheme kServerAsync;
  // By a row of ScheduleRows() that has a cost.
  static Scheme AllReduce(const std::string& algorithm);

  Kind kind = Kind::kNone;
  const ScheduleRow* schedule = nullptr;  // of kAllReduce; has a cost
  bool operator==(const Scheme&) const = default;
};
inline constexpr Scheme Scheme::kNone{};
inline constexpr Scheme Scheme::kServerSync{Kind::kServerSync};
inline constexpr Scheme Scheme::kServerAsync{Kind::kServerAsync};

// The placement of S servers, each with M/S. The law for large gradients, M in infinitely many buckets:
// serial pushes everything, then pulls; pipelined does both at the same time on a full-duplex link. Every
// server adds N M/S while gradients arrive. server_exchange.h: the time for an actual list of buckets.
enum class ServerPlace {
  kRank0,      // all on rank 0's host, N-1 workers are remote: with x = (N-1)M/B and y = N M g/S,
               // serial 2a + max(x, y) + x, pipelined 2a + max(x, y)
  kDedicated,  // a machine each, N workers are remote: the same with x = max(M, NM/S)/B
  kColocated,  // one next to each of S <= N workers. A host with both receives (N-1)M/S of pushes and
               // (S-1)M/S of weights: serial as above with x = max((N-1)M/S, [S < N] M)/B, pipelined
               // 2a + max((N+S-2)M/S/B, [S < N] M/B, y); with S = N the direct all-reduce
};

struct CommPattern {
  Scheme scheme;
  int workers = 1;
  ServerPlace place = ServerPlace::kRank0;
  bool pipelined = true;
  int servers = 1;
  double pushed = 1;  // size of a pushed gradient relative to float32
};

// Empty if the theory has no formula for the strategy's algorithm.
std::optional<Scheme> SchemeOf(const StrategyInfo& strategy, const ScheduleTable& rows = ScheduleRows());

// What one exchange needs from the links. Linear in a, 1/B and g, so these can be fitted from measurements
// (machine_profile.h).
CommTerms TermsOf(const CommPattern& pattern, double bytes);

// Seconds for one exchange of `bytes`; with servers by the law for large gradients. Without bursts and
// updates.
double ExchangeSeconds(const CommPattern& pattern, double bytes, const Wires& wires);

// For the actual buckets, which are all ready at the start. All-reduces: one after another. Servers:
// TimeOfServerExchange (server_exchange.h), including their updates. Bursts of the shaper pass at full speed.
// Until the last worker is done, and the mean over workers.
double ExchangeSeconds(const CommPattern& pattern, const std::vector<double>& bucket_bytes,
                       const Wires& wires);
double MeanExchangeSeconds(const CommPattern& pattern, const std::vector<double>& bucket_bytes,
                           const Wires& wires);

// Payload that a worker sends in one exchange, on average over workers; with servers M, including what goes
// to a server on the same host.
double PayloadBytesPerWorker(const CommPattern& pattern, double bytes);

// Overlap of exchanges with the backward pass, one after another: bucket b, ready at r_b, is done at
// e_b = max(r_b, e_(b-1)) + c_b. One unit of time throughout.
struct Overlap {
  std::vector<double> ends;  // e_b
  double busy = 0;           // sum of c_b
  double exposed = 0;        // max(0, last e_b - backward_end)
};
Overlap OverlapBuckets(const std::vector<double>& ready, const std::vector<double>& cost,
                       double backward_end);

}  // namespace psring
