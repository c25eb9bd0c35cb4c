// What an exchange of gradients should cost: the theory every run is held against. Pure.
//
// Words and letters: M bytes of gradient, N workers, B bytes/s of a link in one direction, a seconds of
// latency of a message, g seconds to add a byte. Ranks that stand on one machine share one *medium*, its
// loopback: whatever the links could do, the bytes of all ranks together cannot pass faster than the medium
// carries them. Sources: ring, Patarasuk & Yuan 2009;
// halving-doubling, Thakur, Rabenseifner & Gropp 2005; two trees, Sanders, Speck & Traeff 2009; server, Li et
// al. 2014.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "experiments/catalog.h"

namespace psring {

struct Wires {
  double latency_s = 0;           // a
  double bytes_per_s = 0;         // B
  double add_s_per_byte = 0;      // g
  double medium_bytes_per_s = 0;  // of all ranks together; 0: every link is its own
  double burst_bytes = 0;         // that a link passes at full speed after a pause: a shaper's token bucket
};

enum class Scheme {
  kNone,    // no communication
  kRing,    // 2(N-1)a + 2(N-1)/N M/B + (N-1)/N M g
  kStar,    // 2a + 2(N-1)M/B + (N-1)M g: rank 0 gathers, adds, hands back
  kDirect,  // every rank owns a shard, as S = N colocated servers: 2a + 2(N-1)/N M/B + (N-1)/N M g
  // 2 lg N a + 2(N-1)/N M/B + (N-1)/N M g where N is a power of two; else the ranks beyond the largest power
  // fold into others first: 2a + 2M/B + M g more, with that power for N
  kHalvingDoubling,
  kDoubleBinaryTree,  // pipelined: about 2 lg N a + 2M/B
  kServerSync,        // one server; see ServerPlace
  kServerAsync,       // one worker's push and pull, nobody else on the wire: 2a + 2M/B + M g
};

enum class ServerPlace {
  kRank0,      // N-1 workers are remote: serial 2a + 2(N-1)M/B + N M g, pipelined 2a + max((N-1)M/B, N M g)
  kDedicated,  // N workers are remote: serial 2a + 2NM/B + N M g, pipelined 2a + max(NM/B, N M g)
};

struct CommPattern {
  Scheme scheme = Scheme::kNone;
  int workers = 1;
  ServerPlace place = ServerPlace::kRank0;
  bool pipelined = true;
};

// Of a row of the catalog. Empty for an algorithm this model does not know.
std::optional<Scheme> SchemeOf(const StrategyInfo& strategy);

// Seconds for one exchange of `bytes`.
double ExchangeSeconds(const CommPattern& pattern, double bytes, const Wires& wires);

// Buckets go one after the other, so their exchanges add up.
double ExchangeSeconds(const CommPattern& pattern, const std::vector<double>& bucket_bytes,
                       const Wires& wires);

// What a shaper's burst saves of an exchange that begins after a pause: up to `burst_bytes` of every phase in
// which one direction of the busiest link is in use (a serial push and pull are two). At most all of it.
double BurstSeconds(const CommPattern& pattern, double bytes, const Wires& wires);

// Payload that one worker sends in one exchange, on average over the workers: every all-reduce
// 2(N-1)/N M, server M.
double PayloadBytesPerWorker(const CommPattern& pattern, double bytes);

}  // namespace psring
