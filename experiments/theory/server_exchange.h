// The time of one exchange with parameter servers for the actual list of buckets. Pure.
//
// The law for large gradients (cost_model.h) lets pushes and pulls overlap completely, which a finite number
// of buckets does not: no weights of a bucket can leave before its last gradient has arrived. An exchange is
// therefore a flow shop with two machines (Johnson 1954, "Optimal two- and three-stage production
// schedules"): every bucket is pushed, then pulled; each direction carries one bucket at a time, in order.
// With pushes of p_b and pulls of q_b seconds on independent links, bucket b is pushed at P_b = P_(b-1) + p_b
// and pulled at
//
//   pipelined  Q_b = max(P_b, Q_(b-1)) + q_b     K equal buckets: (K+1)/K times one direction
//   serial     Q_b = max(P_K, Q_(b-1)) + q_b     twice one direction, for any buckets
//
// plus a latency for each of push and pull, and the server's update between them. If pushes and pulls share
// links (servers beside workers, or one loopback), both share them with max-min fairness.
#pragma once

#include <vector>

#include "experiments/theory/cost_model.h"

namespace psring {

// Seconds from the first byte pushed; all gradients are ready at the start, and all workers start together.
struct ExchangeTime {
  double last = 0;  // until every worker has the weights of the last bucket
  double mean =
      0;  // until a worker has them, mean over workers: one beside all servers needs no link to pull
};

// The servers add while gradients arrive. kServerAsync: one worker with idle servers, which add and update
// afterwards; the mean over workers. Of `wires`, `burst_bytes` pass at once after a pause. `pattern`:
// kServerSync or kServerAsync.
ExchangeTime TimeOfServerExchange(const CommPattern& pattern, const std::vector<double>& bucket_bytes,
                                  const Wires& wires);

}  // namespace psring
