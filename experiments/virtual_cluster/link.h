// The links of a virtual cluster, as requested and as measured. Pure.
//
// A *node* represents a machine: a worker, or a dedicated server. Each node has one full-duplex *link* to one
// switch. A shaped link is a token bucket: after a pause, its first `burst_bytes` pass at full speed.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace psring {

enum class Shaping {
  kNone,       // processes share this machine's loopback
  kNetns,      // each node is a network namespace whose link the kernel shapes
  kUserspace,  // psring's own transports limit their rate
};
const char* ShapingName(Shaping shaping);  // "none", "netns", "userspace"

struct LinkOptions {
  double bits_per_s = 0;  // 0: unlimited
  double latency_s = 0;   // added to every message, one way
  std::string shaping = "auto";
  double scale = 1;  // --scale: the links are this many times slower than these rates and latencies

  bool wanted() const { return bits_per_s > 0 || latency_s > 0; }
};

// InvalidArgument if --shaping contradicts the other flags.
absl::Status CheckLink(const LinkOptions& options);

// Bits/s, of "1gbit" (see ParseBitRate); 0 for "none".
absl::StatusOr<double> ParseLink(const std::string& text);
// Seconds, of "0.5ms", "100us", "0"; at most 10 s. Values other than 0 need a unit.
absl::StatusOr<double> ParseLatency(const std::string& text);

// 1 ms of the rate (128 KiB at 1 Gbit/s), and at least 16 KiB, which a sender writes at once.
int64_t BurstBytes(double bits_per_s);
// The largest packet that TCP hands to the link, at most 64 KiB. The token bucket splits larger packets than
// its burst; links of 200 to 500 Mbit/s then carried only 30 to 80% of their rate, while 4 nodes sent
// (measured, Linux 6.18).
int64_t LargestPacketBytes(double bits_per_s);
// The queue of a switch port: 16 ms of the rate, and at least 256 KiB.
int64_t QueueBytes(double bits_per_s);

// A cluster's links, as built and measured.
struct LinkReport {
  Shaping shaping = Shaping::kNone;
  double bits_per_s = 0;  // 0: unshaped
  double latency_s = 0;   // requested
  double scale = 1;       // of a report by Nominal: the links as built are this many times slower
  int64_t burst_bytes = 0;
  std::string congestion_control;
  bool in_turn = false;  // senders that share a link are served round robin, not in order of arrival
  // Payload in bits/s, *measured* before the experiment.
  double capacity = 0;        // of the slowest link without a limit, while every node sends; 0: unknown
  std::vector<double> links;  // of each node to the next one, while all others are idle
  double ring = 0;            // of the slowest link, while every node sends to the next one
  double incast = 0;          // into one node, from all others

  double mbps() const { return bits_per_s / 1e6; }
};

// Converts links built `scale` times slower to the rate and latency that they represent (--scale).
// Measurements stay unchanged.
LinkReport Nominal(LinkReport built, double scale);

// A link whose payload is below this share of its rate is limited by this host, not by its rate. Of a full
// frame, 1448 of 1538 bytes (0.941) to 1448 of 1514 bytes (0.956) are payload.
inline constexpr double kLeastShare = 0.85;

// Rates to choose from without --link, in bits/s, fastest first.
inline constexpr double kDefaultRates[] = {1e9, 500e6, 250e6, 100e6, 50e6, 25e6};

// A host has headroom for a rate if its unlimited links carry this many times as much while every node sends:
// computing, adding and serializing also need processor time.
inline constexpr double kHeadroom = 1.5;

// Describes the first measurement in `report` below kLeastShare of the rate; empty: none.
std::string WhyNotCarried(const LinkReport& report);

// The smallest of the measurements in `report`, in bits/s.
double LeastCarried(const LinkReport& report);

// "1 Gbit/s links with 0.5 ms of latency", "this machine's loopback".
std::string NameLink(const LinkReport& report);
// NameLink and how the links are built: "1 Gbit/s links between network namespaces of this machine (TCP
// cubic)".
std::string DescribeLink(const LinkReport& report);

// Counts since the node's network was created.
struct NodeCounters {
  int64_t retransmitted_segments = 0;  // TCP, all connections of the node
  int64_t timeouts = 0;                // TCP retransmission time-outs
  int64_t queue_drops = 0;             // packets dropped by the switch's port to the node
};

// The field `name` of `protocol` in the text of /proc/net/snmp or /proc/net/netstat: a line of names, then
// one of numbers. NotFound names the missing field.
absl::StatusOr<int64_t> NetworkCounterOf(const std::string& text, const std::string& protocol,
                                         const std::string& name);

// Packets that the root queue of `interface` dropped, from the text of `tc -s qdisc show`.
absl::StatusOr<int64_t> QueueDropsOf(const std::string& text, const std::string& interface);

// `after` minus `before`, node by node.
std::vector<NodeCounters> Difference(const std::vector<NodeCounters>& after,
                                     const std::vector<NodeCounters>& before);

// Milliseconds that retransmissions take on the node where they take longest: full segments at the link's
// rate, and Linux's minimum of 200 ms per time-out. *Derived*, an upper bound: not every retransmission
// delays a step.
double RetransmissionMs(const std::vector<NodeCounters>& nodes, double bits_per_s);

}  // namespace psring
