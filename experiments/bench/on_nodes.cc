#include "experiments/bench/on_nodes.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/net/tls.h"
#include "common/rendezvous/launched_as.h"

namespace psring {

absl::StatusOr<NodeTask> BenchTaskOf(const NodeOrder& order, const BenchRequest& request,
                                     const BenchPlan& plan, const BenchBinaries& binaries, BenchHost host) {
  if (order.bench_launch < 0) {
    return absl::InvalidArgumentError("the order is for a training, and this node was started with bench");
  }
  const auto index = static_cast<size_t>(order.bench_launch);
  if (index >= plan.launches.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("launch ", index, " is not in this node's plan of ", plan.launches.size()));
  }
  host.store_port = order.store_port;
  NodeTask task;
  PSRING_ASSIGN_OR_RETURN(task.children, BenchChildren(request, plan, plan.launches[index], binaries, host,
                                                       /*folder=*/""));
  return task;
}

absl::Status RunBenchOnNodes(const BenchFlags& flags, const BenchPlan& plan, const BenchBinaries& binaries,
                             const Interrupt& interrupt, Display& display,
                             const std::function<absl::Status(Nodes& nodes)>& lead) {
  NodesOptions options = flags.nodes;
  PSRING_ASSIGN_OR_RETURN(options.secret, LoadJobSecret(ProcessEnvironment(), flags.request.tls));
  PSRING_ASSIGN_OR_RETURN(const std::unique_ptr<Nodes> nodes,
                          Nodes::Join(options, SharedBenchFlags(flags.request, plan)));
  if (nodes->leads()) {
    absl::Status status = lead(*nodes);
    nodes->End(status);
    return status;
  }
  const BenchHost host{.node = options.node,
                       .address = nodes->address(options.node),
                       .store_host = nodes->address(0),
                       .secret = options.secret};
  return nodes->Follow(
      [&](const NodeOrder& order, const std::string& /*folder*/) {
        return BenchTaskOf(order, flags.request, plan, binaries, host);
      },
      interrupt, display);
}

}  // namespace psring
