#include "experiments/engine/launch.h"

#include <numeric>
#include <utility>

#include "common/base/check.h"
#include "common/net/tls.h"
#include "common/text/translate.h"
#include "experiments/design/plan.h"
#include "experiments/machine/connections.h"
#include "experiments/stats/statistics.h"

namespace psring {

std::string Site::Address(int node) const {
  return cluster != nullptr ? cluster->Address(node) : nodes != nullptr ? nodes->address(node) : address;
}

absl::StatusOr<JobStore> StartStore(const Site& site, const std::string& tls) {
  JobStore store;
  StorePlace& address = store.address;
  if (site.nodes != nullptr) {
    address.secret = site.nodes->options().secret;
  } else {
    PSRING_ASSIGN_OR_RETURN(address.secret, WithTls(JobSecret::Random(), tls));
  }
  if (site.cluster != nullptr) {
    PSRING_ASSIGN_OR_RETURN(store.server, site.cluster->HostStore(address.secret, address.host));
  } else {
    address.host = site.Address(0);
    PSRING_ASSIGN_OR_RETURN(store.server, RendezvousServer::Start(address.host, 0, address.secret));
  }
  address.port = store.server->port();
  return store;
}

absl::Duration DeadlineOf(double expected_s, double timeout_s) {
  return absl::Seconds(2 * timeout_s + 30 + 10 * expected_s);
}

absl::Status RunLaunch(const Site& site, const NodeLaunch& launch, LaunchSpec& spec,
                       const std::string& folder, const Interrupt& interrupt, Display& display) {
  if (site.nodes == nullptr) return RunChildren(spec, interrupt);
  return site.nodes->RunLaunch(launch, spec, folder, interrupt, display);
}

int NoteOtherPsring(const MeasuringNow* measuring, Display& display, bool commented) {
  const std::vector<int> others = measuring != nullptr ? measuring->Others() : std::vector<int>();
  if (others.empty()) return 0;
  const std::string note =
      Tr("another psring (process $0) is running; times will not be valid", others.back());
  commented ? display.SayLines(Tr("# note: $0", note)) : display.NoteOnce(note);
  return others.back();
}

absl::Status LeadOrFollow(const NodesOptions& nodes, const std::string& tls,
                          const std::vector<std::string>& flags, const TaskOnNode& task,
                          const Interrupt& interrupt, Display& display,
                          const std::function<absl::Status(Nodes* nodes)>& lead) {
  if (!nodes.several()) return lead(nullptr);
  NodesOptions options = nodes;
  PSRING_ASSIGN_OR_RETURN(options.secret, LoadJobSecret(ProcessEnvironment(), tls));
  PSRING_ASSIGN_OR_RETURN(const std::unique_ptr<Nodes> joined, Nodes::Join(options, flags));
  if (!joined->leads()) {
    return joined->Follow(
        [&](const NodeOrder& order, const std::string& folder) { return task(*joined, order, folder); },
        interrupt, display);
  }
  absl::Status status = lead(joined.get());
  joined->End(status);
  return status;
}

absl::Status RunRounds(size_t cases, std::optional<uint64_t> seed,
                       const std::function<std::optional<int>()>& next,
                       const std::function<absl::Status(int round, size_t index)>& run,
                       const std::function<absl::Status()>& end) {
  while (const std::optional<int> round = next()) {
    std::vector<int> order(cases);
    std::iota(order.begin(), order.end(), 0);
    if (seed) order = RoundOrder(static_cast<int>(cases), *seed, *round);
    for (const int index : order) PSRING_RETURN_IF_ERROR(run(*round, static_cast<size_t>(index)));
    PSRING_RETURN_IF_ERROR(end());
  }
  return absl::OkStatus();
}

Wires WiresBetween(const NetworkReport& network) {
  std::vector<double> latencies, rates;
  for (const auto& [from, to] : {std::pair{&network.latency_s, &latencies}, {&network.bytes_per_s, &rates}}) {
    for (const double figure : *from) {
      if (figure > 0) to->push_back(figure);
    }
  }
  return {.latency_s = Quantile(latencies, 0.5),
          .bytes_per_s = Quantile(rates, 0.5),
          .add_s_per_byte = MeasureAdd(0.1),
          .update_s_per_byte = MeasureUpdate(0.1)};
}

}  // namespace psring
