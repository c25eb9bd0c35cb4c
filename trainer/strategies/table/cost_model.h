// The theoretical cost of an exchange of gradients. Pure.
//
// Symbols: M bytes of gradient, N workers, B bytes/s of a link in one direction, latency of a seconds per
// message, g seconds to add a byte. Ranks on one machine share one *medium*, its loopback, which limits the
// bytes of all ranks together. The costs of all-reduces are in ring_worker/schedules. Source for servers: Li
// et al. 2014.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "ring_worker/schedules/schedule.h"
#include "trainer/strategies/table/strategy_table.h"

namespace psring {

struct Wires {
  double latency_s = 0;           // a
  double bytes_per_s = 0;         // B
  double add_s_per_byte = 0;      // g
  double update_s_per_byte = 0;   // of an optimizer with momentum
  double medium_bytes_per_s = 0;  // of all ranks together; 0: links are independent
  double burst_bytes = 0;         // sent at full speed after a pause: the shaper's token bucket
  // What a machine's processors move of servers' payload, pushes and pulls of all workers together.
  double grpc_bytes_per_s = 0, stream_bytes_per_s = 0;  // by --server_wire, within this machine; 0: unknown
  double server_bytes_per_s = 0;  // that of the exchange, on the host of each server; 0: no limit
};

struct CommPattern;

// Seconds from the first byte; all gradients are ready at the start, and all workers start together.
struct ExchangeTime {
  double last = 0;  // until every worker has the weights of the last bucket
  double mean = 0;  // mean over workers; a worker on the host of all servers needs no link to pull
};

// How gradients are exchanged: functions of the pattern, with `schedule` and `per_step` of the strategy. Null
// functions: nothing is exchanged.
struct Scheme {
  static const Scheme kNone;
  static const Scheme kAllReduce;  // SchemeOf adds the schedule
  // One server or several; see ServerPlace.
  static const Scheme kServerSync;
  // A worker's push and pull while no other worker uses the links. For large gradients and S servers: serial
  // 2a + 2M/B + M g/S, pipelined 2a + M/B + M g/S. With servers on the workers' hosts, the mean over workers
  // has (N-1)/N of a and 1/B.
  static const Scheme kServerAsync;
  // The schedule has a cost.
  static Scheme AllReduce(const ScheduleRow& schedule);
  static Scheme AllReduce(const std::string& algorithm);

  // See TermsOf, PayloadBytesPerWorker, ExchangeSeconds and MeanExchangeSeconds. Of one exchange.
  CommTerms (*terms)(const CommPattern& pattern, double bytes) = nullptr;
  double (*payload_bytes)(const CommPattern& pattern, double bytes) = nullptr;
  ExchangeTime (*time)(const CommPattern& pattern, const std::vector<double>& bucket_bytes,
                       const Wires& wires) = nullptr;
  const ScheduleRow* schedule = nullptr;  // of an all-reduce; has a cost
  double per_step = 1;                    // StrategyRow::exchanges_per_step
  bool operator==(const Scheme&) const = default;
};

// The placement of S servers, each with M/S bytes. The formulas are the law for large gradients: M in
// infinitely many buckets. Serial pushes everything, then pulls; pipelined does both at the same time on a
// full-duplex link. Every server adds N M/S while gradients arrive. For an actual list of buckets, see
// server_exchange.cc.
enum class ServerPlace {
  kRank0,      // all on rank 0's host, N-1 workers are remote: with x = (N-1)M/B and y = N M g/S,
               // serial 2a + max(x, y) + x, pipelined 2a + max(x, y)
  kDedicated,  // on S further hosts, N workers are remote: the same with x = max(M, NM/S)/B
  kColocated,  // on the hosts of S <= N workers. A host with both receives (N-1)M/S of pushes and
               // (S-1)M/S of weights: serial as above with x = max((N-1)M/S, [S < N] M)/B, pipelined
               // 2a + max((N+S-2)M/S/B, [S < N] M/B, y); with S = N the direct all-reduce
};

struct CommPattern {
  Scheme scheme;
  int workers = 1;      // with local aggregation: machines
  int per_machine = 1;  // servers: workers that add their gradients before one of them pushes
  ServerPlace place = ServerPlace::kRank0;
  bool pipelined = true;
  int servers = 1;
  double pushed = 1;  // size of a pushed gradient relative to float32
};

// Without the rows of tables (row_exchange.h): for `hybrid` that of its all-reduce. Empty if the theory has
// no formula for the strategy's algorithm.
std::optional<Scheme> SchemeOf(const StrategyRow& strategy, const ScheduleTable& rows = ScheduleRows());

// The coefficients of a, 1/B and g in the time of one exchange of `bytes`. machine_profile.h fits a, B and g
// to measurements.
CommTerms TermsOf(const CommPattern& pattern, double bytes);

// Seconds for one exchange of `bytes`, without bursts and updates. Servers: by the law for large gradients,
// and LocalSeconds. Here and below, times and bytes are those of a step, on average: Scheme::per_step.
double ExchangeSeconds(const CommPattern& pattern, double bytes, const Wires& wires);

// Seconds until the last worker is done, and the mean over workers, for an actual list of buckets, all ready
// at the start. All-reduces run one after another. Servers: TimeOfServerExchange (server_exchange.cc),
// including their updates, and LocalSeconds. Bursts of the shaper pass at full speed.
double ExchangeSeconds(const CommPattern& pattern, const std::vector<double>& bucket_bytes,
                       const Wires& wires);
double MeanExchangeSeconds(const CommPattern& pattern, const std::vector<double>& bucket_bytes,
                           const Wires& wires);

// The time of one exchange with servers, without what is within the machines (server_exchange.cc).
// `pattern`: kServerSync or kServerAsync. kServerSync: the servers add while gradients arrive. kServerAsync:
// one worker with otherwise idle servers, which add and update after each bucket; mean over workers. Bursts
// of `wires.burst_bytes` pass at once after a pause.
ExchangeTime TimeOfServerExchange(const CommPattern& pattern, const std::vector<double>& bucket_bytes,
                                  const Wires& wires);

// The part of an exchange within the machines, before all pushes and after all pulls: an all-reduce of the
// gradients and a broadcast of the weights (trainer/strategies/local_aggregation.h), which copy a byte in the
// time of adding one. 0 without local aggregation.
double LocalSeconds(const CommPattern& pattern, double bytes, const Wires& wires);

// Local aggregation: the workers of a machine add their gradients, push only the sum, and share the pulled
// weights. A machine is then one worker on the network (BytePS, Jiang et al. 2020, 4.2; MXNet's `device`
// key-value store; TensorFlow's mirrored towers).
//
// Within a machine of g workers a reduce-scatter precedes the push and an all-gather follows the pull, each
// (g-1)/g of the bytes over the link of a worker.
struct MachineInside {
  int workers = 1;
  double bytes_per_s = 0;  // between one worker and the rest of the machine
  double latency_s = 0;
  double add_s_per_byte = 0;
};

// Seconds to add `bytes` of each worker, and to share as many.
double ReduceSeconds(const MachineInside& inside, double bytes);
double GatherSeconds(const MachineInside& inside, double bytes);

// Gradients that cross the network to the host of one server, and as many sets of weights back: of all
// workers, or with kServerAsync of one.
double GradientsAtServer(const CommPattern& pattern);

// Payload bytes that a worker sends in one exchange, mean over workers. With servers: the pushed bytes,
// including those for a server on the same host, and those within a machine.
double PayloadBytesPerWorker(const CommPattern& pattern, double bytes);

// Overlap of exchanges with the backward pass, one after another: bucket b, ready at r_b, is done at
// e_b = max(r_b, e_(b-1)) + c_b. Any unit of time, the same for all.
struct Overlap {
  std::vector<double> ends;  // e_b
  double busy = 0;           // sum of c_b
  double exposed = 0;        // max(0, last e_b - backward_end)
};
Overlap OverlapBuckets(const std::vector<double>& ready, const std::vector<double>& cost,
                       double backward_end);

}  // namespace psring
