// The time of one exchange with parameter servers for the actual list of buckets. Pure.
//
// In the law for large gradients (cost_model.h), pushes and pulls overlap completely. With finitely many
// buckets they do not: the weights of a bucket cannot leave before its last gradient has arrived. An exchange
// is therefore a flow shop with two machines (Johnson 1954, "Optimal two- and three-stage production
// schedules"): every bucket is pushed, then pulled; each direction carries one bucket at a time, in order.
// With pushes of p_b and pulls of q_b seconds on independent links, the push of bucket b ends at
// P_b = P_(b-1) + p_b and its pull at
//
//   pipelined  Q_b = max(P_b, Q_(b-1)) + q_b     K equal buckets: (K+1)/K times one direction
//   serial     Q_b = max(P_K, Q_(b-1)) + q_b     twice one direction, for any buckets
//
// plus one latency each for push and pull, and the server's update between them. If pushes and pulls use the
// same links (servers on the workers' hosts, or one loopback), they share them by max-min fairness.
#pragma once

#include <vector>

#include "trainer/strategies/table/cost_model.h"

namespace psring {

// `pattern`: kServerSync or kServerAsync. kServerSync: the servers add while gradients arrive. kServerAsync:
// one worker with otherwise idle servers, which add and update after each bucket; mean over workers. Bursts
// of `wires.burst_bytes` pass at once after a pause.
ExchangeTime TimeOfServerExchange(const CommPattern& pattern, const std::vector<double>& bucket_bytes,
                                  const Wires& wires);

}  // namespace psring
