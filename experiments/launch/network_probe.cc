#include <algorithm>
#include <climits>
#include <map>
#include <set>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "common/base/check.h"
#include "common/base/deadline.h"
#include "common/base/mutex.h"
#include "common/net/address.h"
#include "common/net/authentication.h"
#include "common/net/tcp_socket.h"
#include "experiments/launch/nodes.h"
#include "experiments/machine/connections.h"

namespace psring {
namespace {

// One connection to each node that this node exchanges data with. Of two nodes, the higher one connects.
class Connections {
 public:
  // Accepts a connection from each of `nodes`, and closes others.
  absl::Status Listen(const std::string& address, const JobSecret& secret, const std::set<int>& nodes) {
    PSRING_ASSIGN_OR_RETURN(TcpListener listener, ListenTcp(address));
    const auto on_member = [this, nodes](PendingConnections::Member member) {
      const auto node = static_cast<int>(std::min<uint64_t>(member.detail, INT_MAX));
      absl::StatusOr<FileDescriptor> socket = member.socket.TakeClearText();
      if (!nodes.contains(node) || !socket.ok()) return;
      const MutexLock lock(mutex_);
      accepted_[node] = *std::move(socket);
    };
    const Credentials credentials = {
        .secret = secret, .purpose = Purpose::kNetworkProbe, .token = NewListenerToken()};
    published_ = PublishedText({address, listener.port, credentials.token});
    PSRING_ASSIGN_OR_RETURN(listener_,
                            AuthenticatedListener::Start(std::move(listener), credentials, on_member));
    return absl::OkStatus();
  }
  const std::string& published() const { return published_; }

  absl::Status Connect(int own, int node, const std::string& address, const std::string& published,
                       const JobSecret& secret, MonotonicTime deadline) {
    const std::string whom = absl::StrCat("node ", node, " at ", address);
    PSRING_ASSIGN_OR_RETURN(const HostPort to, ParseAddress(published));
    PSRING_ASSIGN_OR_RETURN(FileDescriptor tcp, ConnectTcp(address, to.port, deadline));
    const Credentials credentials = {.secret = secret, .purpose = Purpose::kNetworkProbe, .token = to.token};
    PSRING_ASSIGN_OR_RETURN(MemberSocket member, AuthenticateTcp(std::move(tcp), credentials, whom, deadline,
                                                                 static_cast<uint64_t>(own)));
    PSRING_ASSIGN_OR_RETURN(FileDescriptor socket, member.TakeClearText());
    PrepareForMeasuring(socket);
    sockets_[node] = std::move(socket);
    return absl::OkStatus();
  }

  // Waits until the node has connected.
  absl::Status Await(int node, MonotonicTime deadline) {
    while (true) {
      {
        const MutexLock lock(mutex_);
        if (const auto found = accepted_.find(node); found != accepted_.end()) {
          PrepareForMeasuring(found->second);
          sockets_[node] = std::move(found->second);
          accepted_.erase(found);
          return absl::OkStatus();
        }
      }
      if (MonotonicNow() >= deadline) {
        return absl::DeadlineExceededError(absl::StrCat("waited too long for a connection from node ", node));
      }
      absl::SleepFor(absl::Milliseconds(5));
    }
  }

  int to(int node) const { return sockets_.at(node).get(); }

 private:
  Mutex mutex_;
  std::map<int, FileDescriptor> accepted_ ABSL_GUARDED_BY(mutex_);
  std::map<int, FileDescriptor> sockets_;
  std::string published_;
  std::unique_ptr<AuthenticatedListener> listener_;  // its thread uses accepted_
};

std::set<int> PeersOf(int own, const std::vector<ProbePhase>& phases) {
  std::set<int> peers;
  for (const ProbePhase& phase : phases) {
    for (const ProbeFlow& flow : phase.flows) {
      if (flow.from == own) peers.insert(flow.to);
      if (flow.to == own) peers.insert(flow.from);
    }
  }
  return peers;
}

// One end of a flow. `figure` is set at the end that measures: the sender for latencies, else the receiver.
absl::Status RunEnd(const ProbePhase& phase, bool sends, int socket, double& figure) {
  // What is on its way when the time is over may be several MB on slow links.
  const double timeout = phase.warmup_s + phase.seconds + 20;
  if (phase.kind == ProbePhase::Kind::kLatency) {
    if (!sends) return EchoUntilDone(socket, timeout);
    PSRING_ASSIGN_OR_RETURN(figure, MeasureLatencyTo(socket, phase.seconds, timeout));
    return absl::OkStatus();
  }
  if (sends) return SendFor(socket, phase.warmup_s + phase.seconds, timeout);
  PSRING_ASSIGN_OR_RETURN(figure, ReceiveRate(socket, phase.warmup_s, phase.seconds, timeout));
  return absl::OkStatus();
}

// This node's ends of the phase's flows, each in a thread. Returns "FLOW=FIGURE ..." of the measured ones.
absl::StatusOr<std::string> RunPhase(int own, const ProbePhase& phase, const Connections& connections) {
  std::vector<double> figures(phase.flows.size());
  std::vector<absl::Status> statuses(phase.flows.size() * 2);
  std::vector<std::thread> threads;
  for (size_t i = 0; i < phase.flows.size(); ++i) {
    const ProbeFlow& flow = phase.flows[i];
    for (const bool sends : {true, false}) {
      if ((sends ? flow.from : flow.to) != own) continue;
      threads.emplace_back([&, i, sends] {
        const int other = sends ? flow.to : flow.from;
        const absl::Status status = RunEnd(phase, sends, connections.to(other), figures[i]);
        if (!status.ok()) {
          statuses[2 * i + (sends ? 1 : 0)] =
              absl::UnavailableError(absl::StrCat("measuring ", phase.what, " from node ", flow.from,
                                                  " to node ", flow.to, ": ", status.message()));
        }
      });
    }
  }
  for (std::thread& thread : threads) thread.join();
  for (const absl::Status& status : statuses) PSRING_RETURN_IF_ERROR(status);
  std::vector<std::string> words;
  for (size_t i = 0; i < figures.size(); ++i) {
    if (MeasuredBy(phase, phase.flows[i]) == own) words.push_back(absl::StrCat(i, "=", figures[i]));
  }
  return absl::StrJoin(words, " ");
}

}  // namespace

absl::StatusOr<std::vector<std::vector<double>>> RunProbe(Rendezvous& rendezvous,
                                                          const std::vector<std::string>& addresses,
                                                          const std::string& name, const JobSecret& secret,
                                                          const std::vector<ProbePhase>& phases,
                                                          const Interrupt& interrupt) {
  const int own = rendezvous.options().rank;
  const MonotonicTime deadline = MonotonicNow() + rendezvous.options().timeout;
  const std::set<int> peers = PeersOf(own, phases);
  Connections connections;
  PSRING_RETURN_IF_ERROR(connections.Listen(addresses[own], secret, {peers.upper_bound(own), peers.end()}));
  PSRING_ASSIGN_OR_RETURN(const std::vector<std::string> published,
                          rendezvous.Exchange(absl::StrCat(name, "/addresses"), connections.published()));
  for (const int node : peers) {
    if (node > own) continue;
    const auto at = static_cast<size_t>(node);
    PSRING_RETURN_IF_ERROR(connections.Connect(own, node, addresses[at], published[at], secret, deadline));
  }
  for (const int node : peers) {
    if (node > own) PSRING_RETURN_IF_ERROR(connections.Await(node, deadline));
  }
  std::vector<std::vector<double>> results;
  std::string own_figures;
  for (size_t k = 0; k <= phases.size(); ++k) {
    // All begin together, and know the figures of the phase before.
    PSRING_ASSIGN_OR_RETURN(const std::vector<std::string> sent,
                            rendezvous.Exchange(absl::StrCat(name, "/", k), own_figures));
    if (k > 0) {
      PSRING_ASSIGN_OR_RETURN(results.emplace_back(), FiguresOf(phases[k - 1], sent));
    }
    PSRING_RETURN_IF_ERROR(interrupt.Check());
    if (k == phases.size()) break;
    PSRING_ASSIGN_OR_RETURN(own_figures, RunPhase(own, phases[k], connections));
  }
  return results;
}

}  // namespace psring
