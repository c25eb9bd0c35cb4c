#include "experiments/virtual_cluster/virtual_cluster.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "common/base/check.h"
#include "common/base/errors.h"
#include "common/text/units.h"
#include "experiments/stats/statistics.h"

namespace psring {
namespace {

constexpr double kNoLimit = 100e9;  // bits/s, more than any host carries
constexpr int kTries = 3;           // other programs may disturb a measurement

// Duration of the preflight's phases, in s.
constexpr double kWarmup = 0.06;      // at least: TCP's windows open and token buckets empty
constexpr double kWarmupBytes = 6e6;  // windows grow per byte carried, so slow links take longer
constexpr double kMaxWarmup = 0.5;
constexpr double kMeasured = 0.2;
constexpr double kRingMeasured = 0.4;
constexpr double kAllLinksApart = 1.5;  // all links, one after the other
// When several senders share a link, TCP's slow start overfills the switch's queue: at 1 Gbit/s with 4 nodes,
// 3,500 segments are lost in the first 0.1 s and are sent again over round trips of up to 50 ms. Measuring
// begins after that.
constexpr double kIncastWarmup = 0.5;
constexpr double kIncastMeasured = 1;
constexpr double kDrain = 0.03;  // queues empty

}  // namespace

int NodeOfServer(const Configuration& configuration, int server) {
  const std::string& placement = configuration.training.server_placement;
  const int each = configuration.training.ranks_per_process, nodes = configuration.workers / each;
  if (placement == "dedicated") return nodes + server;
  return placement == "colocated" ? server % configuration.workers / each : 0;
}

int NodesOf(const Configuration& configuration) {
  const TrainingOptions& training = configuration.training;
  return configuration.workers / training.ranks_per_process +
         (training.server_placement == "dedicated" ? configuration.servers() : 0);
}

absl::StatusOr<Shaping> VirtualCluster::Choose(const LinkOptions& options, const Interrupt& interrupt,
                                               std::string& why) {
  if (!options.wanted()) return Shaping::kNone;
  if (options.shaping == "userspace") return Shaping::kUserspace;
  why = WhyNoNamespaces(interrupt);
  PSRING_RETURN_IF_ERROR(interrupt.Check());
  if (why.empty()) return Shaping::kNetns;
  if (options.shaping == "auto") return Shaping::kUserspace;
  return FailedPrecondition("--shaping netns: ", why);
}

absl::StatusOr<std::unique_ptr<VirtualCluster>> VirtualCluster::Create(const LinkOptions& options,
                                                                       Shaping shaping, int nodes,
                                                                       const Interrupt& interrupt) {
  auto cluster = std::unique_ptr<VirtualCluster>(new VirtualCluster());
  cluster->nodes_ = nodes;
  LinkReport& report = cluster->report_;
  report.shaping = shaping;
  report.bits_per_s = options.bits_per_s;
  report.latency_s = options.latency_s;
  report.burst_bytes = options.bits_per_s > 0 ? BurstBytes(options.bits_per_s) : 0;
  report.in_turn = true;
  if (shaping == Shaping::kNetns) {
    PSRING_ASSIGN_OR_RETURN(cluster->namespaces_, Namespaces::Create(nodes, options.bits_per_s, interrupt));
    report.congestion_control = cluster->namespaces_->congestion_control();
    report.in_turn = cluster->namespaces_->in_turn();
  }
  for (int node = 0; node < nodes && nodes > 1; ++node) {
    cluster->ring_.push_back({node, (node + 1) % nodes});
    if (shaping == Shaping::kUserspace) {
      cluster->shapers_.push_back(std::make_unique<LinkShaper>(cluster->OwnShare()));
    }
  }
  return cluster;
}

LinkShape VirtualCluster::OwnShare() const {
  LinkShape share{.latency_s = report_.latency_s};
  if (namespaces_ == nullptr) {
    share.bits_per_s = report_.bits_per_s;
    share.burst_bytes = report_.burst_bytes;
  }
  return share;
}

// Connects two nodes as their processes would.
absl::StatusOr<SocketPair> VirtualCluster::Connect(int from, int to) const {
  if (namespaces_ != nullptr) {
    PSRING_ASSIGN_OR_RETURN(FileDescriptor near, OpenSocketIn(namespaces_->node(from)));
    PSRING_ASSIGN_OR_RETURN(FileDescriptor far, OpenSocketIn(namespaces_->node(to)));
    return ConnectSockets(std::move(near), std::move(far), Address(to).c_str());
  }
  PSRING_ASSIGN_OR_RETURN(SocketPair connection, ConnectOverLoopback());
  for (auto& [socket, node] : {std::pair(&connection.near, from), {&connection.far, to}}) {
    PSRING_ASSIGN_OR_RETURN(*socket, shapers_[node]->Wrap(std::move(*socket)));
    PrepareForMeasuring(*socket);
  }
  return connection;
}

// Bytes/s of each pair, while all send at once.
absl::StatusOr<std::vector<double>> VirtualCluster::Rates(const Pairs& pairs, double warmup,
                                                          double seconds) const {
  std::vector<SocketPair> connections;
  for (const auto& [from, to] : pairs) {
    PSRING_ASSIGN_OR_RETURN(connections.emplace_back(), Connect(from, to));
  }
  PSRING_ASSIGN_OR_RETURN(std::vector<double> rates, MeasureRates(std::move(connections), warmup, seconds));
  absl::SleepFor(absl::Seconds(kDrain));
  return rates;
}

// The highest of up to kTries measurements of the slowest pair, or of all together, in bits/s; stops at the
// first that reaches kLeastShare of the rate. Only the first may be short: TCP's retransmission timeout is at
// least 0.2 s.
absl::StatusOr<double> VirtualCluster::BestRate(const Pairs& pairs, double warmup, double seconds,
                                                bool of_all) const {
  double best = 0;
  for (int i = 0; i < kTries; ++i) {
    if (i > 0) {
      warmup = std::max(warmup, kIncastWarmup);
      seconds = std::max(seconds, kIncastMeasured);
    }
    PSRING_ASSIGN_OR_RETURN(const std::vector<double> rates, Rates(pairs, warmup, seconds));
    best = std::max(best, 8 * (of_all ? std::accumulate(rates.begin(), rates.end(), 0.0)
                                      : *std::ranges::min_element(rates)));
    if (best >= kLeastShare * report_.bits_per_s) break;
  }
  return best;
}

absl::StatusOr<double> VirtualCluster::MeasureCapacity(const LinkOptions& options, Shaping shaping, int nodes,
                                                       const Interrupt& interrupt) {
  LinkOptions open = options;
  open.bits_per_s = kNoLimit;
  open.latency_s = 0;
  PSRING_ASSIGN_OR_RETURN(const std::unique_ptr<VirtualCluster> cluster,
                          Create(open, shaping, nodes, interrupt));
  PSRING_ASSIGN_OR_RETURN(const std::vector<double> rates,
                          cluster->Rates(cluster->ring_, kWarmup, kRingMeasured));
  return 8 * *std::ranges::min_element(rates);
}

absl::StatusOr<Wires> VirtualCluster::Measure(double capacity) {
  Wires wires{.add_s_per_byte = MeasureAdd(0.1), .update_s_per_byte = MeasureUpdate(0.1)};
  if (nodes_ == 1) return wires;  // nothing is sent
  report_.capacity = capacity;
  PSRING_ASSIGN_OR_RETURN(SocketPair connection, Connect(0, 1));
  PSRING_ASSIGN_OR_RETURN(wires.latency_s, MeasureLatency(std::move(connection), 0.1));
  if (namespaces_ != nullptr) wires.latency_s += report_.latency_s;  // the processes add it, not the links
  const double warmup = report_.bits_per_s > 0
                            ? std::clamp(8 * kWarmupBytes / report_.bits_per_s, kWarmup, kMaxWarmup)
                            : kWarmup;
  const double each = std::clamp(kAllLinksApart / nodes_, 0.05, kMeasured);
  Pairs incast;
  for (const std::pair<int, int>& pair : ring_) {
    PSRING_ASSIGN_OR_RETURN(report_.links.emplace_back(), BestRate({pair}, warmup, each, /*of_all=*/false));
    if (pair.first > 0) incast.push_back({pair.first, 0});
  }
  PSRING_ASSIGN_OR_RETURN(report_.ring, BestRate(ring_, warmup, kRingMeasured, /*of_all=*/false));
  PSRING_ASSIGN_OR_RETURN(report_.incast, BestRate(incast, kIncastWarmup, kIncastMeasured, /*of_all=*/true));
  shapers_.clear();
  wires.bytes_per_s = Quantile(report_.links, 0.5) / 8;
  wires.burst_bytes = static_cast<double>(report_.burst_bytes);
  return wires;
}

std::vector<NodeCounters> VirtualCluster::Counters(const Interrupt& interrupt) const {
  if (namespaces_ == nullptr || report_.bits_per_s <= 0) return {};
  return namespaces_->Counters(interrupt).value_or(std::vector<NodeCounters>());
}

// Without namespaces each node has its own loopback address, by which processes recognize ranks of their
// node.
std::string VirtualCluster::Address(int node) const {
  if (namespaces_ != nullptr) return Namespaces::Address(node);
  return absl::StrFormat("127.86.%d.%d", node / 254, node % 254 + 1);
}

void VirtualCluster::Place(int node, ChildSpec& child) const {
  if (namespaces_ != nullptr) child.network = namespaces_->node(node);
  const LinkShape share = OwnShare();
  if (share.bits_per_s > 0) {
    child.command.push_back(absl::StrFormat("--link_bits_per_s=%.0f", share.bits_per_s));
    child.command.push_back(absl::StrCat("--link_burst_bytes=", share.burst_bytes));
  }
  if (share.latency_s > 0) child.command.push_back(absl::StrFormat("--link_latency_s=%.9f", share.latency_s));
}

absl::StatusOr<std::unique_ptr<RendezvousServer>> VirtualCluster::HostStore(const JobSecret& secret,
                                                                            std::string& host) const {
  if (namespaces_ == nullptr) {
    host = "127.0.0.1";
    return RendezvousServer::Start(host, 0, secret);
  }
  host = Namespaces::SwitchAddress();
  PSRING_ASSIGN_OR_RETURN(FileDescriptor listener, OpenSocketIn(namespaces_->switch_network()));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  inet_pton(AF_INET, host.c_str(), &address.sin_addr);
  if (bind(listener.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0 ||
      listen(listener.get(), SOMAXCONN) != 0) {
    return absl::InternalError(absl::StrCat("cannot listen on the switch, ", host, ": ", strerror(errno)));
  }
  return RendezvousServer::StartOn(std::move(listener), secret);
}

namespace {

// Fastest first.
constexpr double kSuggestedRates[] = {100e9, 50e9,  25e9,  10e9, 5e9,  2.5e9, 1e9,
                                      500e6, 250e6, 100e6, 50e6, 25e6, 10e6};
constexpr double kSuggestedScales[] = {2, 5, 10, 20, 50, 100, 200, 500, 1000};

constexpr int kRateTries = 3;  // before the rate is lowered, because other programs can disturb a measurement

// The rate as a value of --link.
std::string FlagText(double rate) {
  return rate >= 1e9 ? absl::StrFormat("%ggbit", rate / 1e9) : absl::StrFormat("%gmbit", rate / 1e6);
}

}  // namespace

std::vector<double> RatesToTry(double capacity, double most) {
  std::vector<double> rates;
  for (const double rate : kDefaultRates) {
    if (rate > most || kHeadroom * rate > capacity) continue;
    rates.insert(rates.end(), rates.empty() ? kRateTries : 1, rate);
  }
  return rates;
}

std::string LinkAdvice(const LinkOptions& asked, double capacity, double carried, int nodes) {
  const double limit = std::min(carried, capacity / kHeadroom);
  std::string advice = "use ";
  for (const double rate : kSuggestedRates) {
    if (rate > limit * asked.scale) continue;
    absl::StrAppend(&advice, "--link ", FlagText(rate), ", ");
    break;
  }
  if (nodes > 2) absl::StrAppend(&advice, "fewer workers, ");
  for (const double scale : kSuggestedScales) {
    if (asked.bits_per_s <= 0 || asked.bits_per_s > limit * scale) continue;
    absl::StrAppendFormat(&advice, "--scale %.0f with a replayed --workload (results are simulated), ",
                          scale);
    break;
  }
  return absl::StrCat(advice, "or simulate the network with psring predict");
}

absl::StatusOr<CarriedCluster> BuildCarriedCluster(const LinkOptions& asked, bool may_lower, Shaping shaping,
                                                   int nodes, const Interrupt& interrupt) {
  LinkOptions options = asked;  // as built
  options.bits_per_s /= asked.scale;
  options.latency_s *= asked.scale;
  double capacity = 0;
  std::vector<double> rates = {options.bits_per_s};
  if (options.bits_per_s > 0 && nodes > 1) {
    const double needed = (may_lower ? kHeadroom : kLeastShare) * options.bits_per_s;
    for (int i = 0; i < kRateTries && capacity < needed; ++i) {
      PSRING_ASSIGN_OR_RETURN(const double measured,
                              VirtualCluster::MeasureCapacity(options, shaping, nodes, interrupt));
      capacity = std::max(capacity, measured);
    }
    if (may_lower) {
      rates = RatesToTry(capacity, options.bits_per_s);
    } else if (capacity < needed) {
      rates.clear();
    }
  }
  std::string fell_short;
  double least_carried = options.bits_per_s;  // by links that fell short
  for (const double rate : rates) {
    LinkOptions carried = options;
    carried.bits_per_s = rate;
    PSRING_ASSIGN_OR_RETURN(std::unique_ptr<VirtualCluster> cluster,
                            VirtualCluster::Create(carried, shaping, nodes, interrupt));
    PSRING_ASSIGN_OR_RETURN(const Wires wires, cluster->Measure(capacity));
    PSRING_RETURN_IF_ERROR(interrupt.Check());
    const std::string shortfall = WhyNotCarried(cluster->report());
    if (shortfall.empty()) {
      CarriedCluster built{.wires = wires};
      if (rate < options.bits_per_s) {
        built.why_lower = absl::StrFormat(
            "%s links instead of %s: this machine carries %.0f Mbit/s on each link while %d nodes send",
            BitRateText(rate), BitRateText(options.bits_per_s), capacity / 1e6, nodes);
        if (!fell_short.empty()) absl::StrAppend(&built.why_lower, ", and ", fell_short);
      }
      built.cluster = std::move(cluster);
      return built;
    }
    fell_short = shortfall;
    least_carried = std::min(least_carried, LeastCarried(cluster->report()));
  }
  return absl::FailedPreconditionError(
      absl::StrFormat("this machine cannot carry %s links%s: without a limit each link carries %.0f Mbit/s "
                      "while %d nodes send%s; %s",
                      BitRateText(may_lower ? *std::rbegin(kDefaultRates) : options.bits_per_s),
                      may_lower ? " with headroom" : "", capacity / 1e6, nodes,
                      fell_short.empty() ? "" : absl::StrCat(", and ", fell_short),
                      LinkAdvice(may_lower ? LinkOptions() : asked, capacity, least_carried, nodes)));
}

}  // namespace psring
