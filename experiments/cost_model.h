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
  kServerSync,        // S servers, each with an equal share of M; see ServerPlace
  kServerAsync,       // one worker's push and pull, nobody else on the wire: 2a + 2M/B + M/S g
};

// Each server adds for itself: A = N M/S g. With L the time that the busiest link needs in one direction,
// serial is 2a + 2L + A and pipelined 2a + max(L, A).
enum class ServerPlace {
  kRank0,      // all on rank 0's host, N-1 workers are remote: L = (N-1)M/B
  kDedicated,  // N workers are remote, a server has a link to itself: L = max(M, NM/S)/B
  // One beside each of N workers: a host sends (N-1)/N M as a worker and as much as a server, so that serial
  // and pipelined are 2a + 2(N-1)/N M/B and then + A, or the larger of the two
  kColocated,
};

struct CommPattern {
  Scheme scheme = Scheme::kNone;
  int workers = 1;
  int servers = 1;
  ServerPlace place = ServerPlace::kRank0;
  bool pipelined = true;
  double pushed = 1;  // bytes that a gradient has on its way to a server, over those it has in float32
};

// Of a row of the catalog. Empty for an algorithm this model does not know.
std::optional<Scheme> SchemeOf(const StrategyInfo& strategy);

// Seconds for one exchange of `bytes`.
double ExchangeSeconds(const CommPattern& pattern, double bytes, const Wires& wires);

// Buckets go one after the other, so their exchanges add up.
double ExchangeSeconds(const CommPattern& pattern, const std::vector<double>& bucket_bytes,
                       const Wires& wires);

// Payload that one worker sends in one exchange, on average over the workers: every all-reduce
// 2(N-1)/N M, server M (what it sends to a server beside it counts too).
double PayloadBytesPerWorker(const CommPattern& pattern, double bytes);

}  // namespace psring
