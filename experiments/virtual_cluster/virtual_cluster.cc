#include "experiments/virtual_cluster/virtual_cluster.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <numeric>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/check.h"
#include "experiments/connections.h"

namespace psring {
namespace {

constexpr double kWarmup = 0.06;        // windows open, buckets empty
constexpr double kMeasured = 0.2;       // of a phase
constexpr double kAllLinksApart = 1.5;  // of measuring them one after the other
constexpr double kDrain = 0.03;         // what queues still hold of the phase before

absl::StatusOr<Connection> Connect(const Namespaces& namespaces, int from, int to) {
  PSRING_ASSIGN_OR_RETURN(const int near, OpenSocketIn(namespaces.node(from)));
  Socket near_socket(near);
  PSRING_ASSIGN_OR_RETURN(const int far, OpenSocketIn(namespaces.node(to)));
  return ConnectSockets(std::move(near_socket), Socket(far), Namespaces::Address(to).c_str());
}

// Bytes/s of each pair, all at once.
absl::StatusOr<std::vector<double>> Rates(const Namespaces& namespaces,
                                          const std::vector<std::pair<int, int>>& pairs, double seconds) {
  std::vector<Connection> connections;
  for (const auto& [from, to] : pairs) {
    PSRING_ASSIGN_OR_RETURN(connections.emplace_back(), Connect(namespaces, from, to));
  }
  PSRING_ASSIGN_OR_RETURN(std::vector<double> rates, MeasureRates(std::move(connections), kWarmup, seconds));
  absl::SleepFor(absl::Seconds(kDrain));
  return rates;
}

double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<ptrdiff_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

}  // namespace

int NodeOfServer(const Configuration& configuration, int server) {
  const std::string& placement = configuration.training.server_placement;
  if (placement == "dedicated") return configuration.workers + server;
  return server % configuration.workers;
}

int NodesOf(const Configuration& configuration) {
  int nodes = configuration.workers;
  for (int server = 0; server < configuration.servers(); ++server) {
    nodes = std::max(nodes, NodeOfServer(configuration, server) + 1);
  }
  return nodes;
}

absl::StatusOr<Shaping> VirtualCluster::Choose(const LinkOptions& options, const Interrupt& interrupt) {
  if (!options.wanted()) return Shaping::kNone;
  if (options.latency_s > 0 || options.shaping == "userspace") {
    return absl::FailedPreconditionError(
        "--latency and --shaping userspace are not built yet; leave them out");
  }
  const std::string why_not = WhyNoNamespaces(interrupt);
  if (why_not.empty()) return Shaping::kNetns;
  PSRING_RETURN_IF_ERROR(interrupt.Check());
  return absl::FailedPreconditionError(absl::StrCat("--link: ", why_not));
}

absl::StatusOr<std::unique_ptr<VirtualCluster>> VirtualCluster::Create(const LinkOptions& options,
                                                                       Shaping shaping, int nodes,
                                                                       const Interrupt& interrupt) {
  PSRING_ASSIGN_OR_RETURN(auto namespaces, Namespaces::Create(nodes, options.bits_per_s, interrupt));
  auto cluster = std::unique_ptr<VirtualCluster>(new VirtualCluster(std::move(namespaces)));
  LinkReport& report = cluster->report_;
  report.shaping = shaping;
  report.bits_per_s = options.bits_per_s;
  report.latency_s = options.latency_s;
  report.burst_bytes = options.bits_per_s > 0 ? BurstBytes(options.bits_per_s) : 0;
  report.congestion_control = cluster->namespaces_->congestion_control();
  report.in_turn = cluster->namespaces_->in_turn();
  return cluster;
}

absl::StatusOr<Wires> VirtualCluster::Measure() {
  const Namespaces& namespaces = *namespaces_;
  const int nodes = namespaces.nodes();
  Wires wires{.add_s_per_byte = MeasureAdd(0.1)};
  if (nodes == 1) return wires;  // nothing is sent
  std::vector<std::pair<int, int>> ring, incast;
  for (int node = 0; node < nodes; ++node) {
    ring.push_back({node, (node + 1) % nodes});
    if (node > 0) incast.push_back({node, 0});
  }
  PSRING_ASSIGN_OR_RETURN(Connection connection, Connect(namespaces, 0, 1));
  PSRING_ASSIGN_OR_RETURN(wires.latency_s, MeasureLatency(std::move(connection), 0.1));
  wires.latency_s += report_.latency_s;
  const double each = std::clamp(kAllLinksApart / nodes, 0.05, kMeasured);
  for (const auto& pair : ring) {
    PSRING_ASSIGN_OR_RETURN(const std::vector<double> rate, Rates(namespaces, {pair}, each));
    report_.links.push_back(8 * rate.front());
  }
  PSRING_ASSIGN_OR_RETURN(const std::vector<double> together, Rates(namespaces, ring, kMeasured));
  report_.ring = 8 * *std::min_element(together.begin(), together.end());
  PSRING_ASSIGN_OR_RETURN(const std::vector<double> into_one, Rates(namespaces, incast, kMeasured));
  report_.incast = 8 * std::accumulate(into_one.begin(), into_one.end(), 0.0);
  report_.invalid = WhyInvalid(report_);
  wires.bytes_per_s = Median(report_.links) / 8;
  wires.burst_bytes = static_cast<double>(report_.burst_bytes);
  return wires;
}

void VirtualCluster::Place(int node, ChildSpec& child) const { child.place = namespaces_->node(node); }

absl::StatusOr<std::unique_ptr<RendezvousServer>> VirtualCluster::HostStore(std::string& host) const {
  host = Namespaces::SwitchAddress();
  PSRING_ASSIGN_OR_RETURN(const int fd, OpenSocketIn(namespaces_->the_switch()));
  Socket listener(fd);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  inet_pton(AF_INET, host.c_str(), &address.sin_addr);
  if (bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0 || listen(fd, SOMAXCONN) != 0) {
    return absl::InternalError(absl::StrCat("cannot listen at the switch, ", host, ": ", strerror(errno)));
  }
  return RendezvousServer::StartOn(listener.release());
}

}  // namespace psring
