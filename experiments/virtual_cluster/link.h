// What a virtual cluster's links are asked to be, and what they turned out to be. Pure.
//
// A *node* stands for a machine: a worker, or a server on a machine of its own. Each has one *link* to one
// switch, with the same rate in both directions (full duplex). A shaped link is a token bucket: after a pause
// its first `burst` bytes pass at full speed.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "experiments/texts/phrase.h"

namespace psring {

enum class Shaping {
  kNone,       // processes share this machine's loopback
  kNetns,      // a network namespace a node, its link shaped by the kernel
  kUserspace,  // psring's own transports hold themselves back
};
const char* ShapingName(Shaping shaping);  // "none", "netns", "userspace"

struct LinkOptions {
  double bits_per_s = 0;  // 0: as fast as this machine goes
  double latency_s = 0;   // added to every message, one way
  std::string shaping = "auto";

  bool wanted() const { return bits_per_s > 0 || latency_s > 0; }
};

// InvalidArgument: shaping that contradicts the rest.
absl::Status CheckLink(const LinkOptions& options);

// "none" is 0. "1gbit": see ParseBitRate.
absl::StatusOr<double> ParseLink(const std::string& text);
// "0.5ms", "100us", "0"; at most 10 s. Without a unit it is refused.
absl::StatusOr<double> ParseLatency(const std::string& text);

// About 1 ms of the rate: 128 KiB at 1 Gbit/s; never less than what a sender hands to the kernel in one go at
// slow rates (16 KiB).
int64_t BurstBytes(double bits_per_s);
// What a switch's port holds before it drops: 16 ms of the rate, 256 KiB at least.
int64_t QueueBytes(double bits_per_s);

// What is known of a cluster once it stands and was measured.
struct LinkReport {
  Shaping shaping = Shaping::kNone;
  double bits_per_s = 0;  // 0: unshaped
  double latency_s = 0;   // asked for
  int64_t burst_bytes = 0;
  std::string congestion_control;
  bool in_turn = false;  // who share a link are served in turn, not in order of arrival
  // Payload, in bits/s, *measured* before the experiment.
  double capacity = 0;  // the slowest of all links without a limit, while every node sends; 0: not known
  std::vector<double> links;  // each node's, sending to the next one while all others are silent
  double ring = 0;            // the slowest of all links, while every node sends to the next one
  double incast = 0;          // into one node, from all others

  double mbps() const { return bits_per_s / 1e6; }
};

// A link whose payload is less than this share of its rate is not limited by its rate, but by this host. At
// most 1448 of 1538 bytes (0.941) to 1448 of 1514 (0.956) of a frame are payload.
inline constexpr double kLeastShare = 0.85;

// Rates to choose from when none was asked for, in bits/s, fastest first.
inline constexpr double kDefaultRates[] = {1e9, 500e6, 250e6, 100e6};

// A host has headroom for a rate if its links, without a limit and while every node sends, carry this many
// times as much: processes also need processor time to compute, to add and to serialize.
inline constexpr double kHeadroom = 1.5;

// Names the first measurement in `report` that falls short of the rate; empty: none does.
std::string WhyNotCarried(const LinkReport& report);

// "1 Gbit/s links (netns, cubic)", "this machine's loopback".
std::string DescribeLink(const LinkReport& report, Language language = Language::kEnglish);

}  // namespace psring
