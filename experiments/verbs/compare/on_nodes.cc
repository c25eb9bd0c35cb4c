#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/check.h"
#include "common/base/errors.h"
#include "common/text/translate.h"
#include "experiments/design/rates.h"
#include "experiments/engine/launch.h"
#include "experiments/engine/programs.h"
#include "experiments/verbs/compare/compare.h"
#include "experiments/verbs/compare/prepare.h"

namespace psring {
namespace {

// The flags that must be the same on every node; paths may differ.
std::vector<std::string> SharedFlags(const ExperimentFlags& flags) {
  const CompareOptions& options = flags.options;
  TrainingOptions training = options.training;
  const TrainingOptions standard;
  training.data_dir = standard.data_dir;
  training.tls = standard.tls;  // paths
  std::vector<std::string> shared = TrainingArguments(training);
  const auto add = [&](const char* flag, const auto& values) {
    shared.push_back(absl::StrCat(flag, "=", absl::StrJoin(values, ",")));
  };
  add("--strategies", options.strategies);
  add("--workers", options.workers);
  add("--servers", options.servers);
  add("--server_wire", options.server_wires);
  std::vector<std::string> layouts;
  for (const Layout& layout : options.layouts) layouts.push_back(layout.name());
  add("--layouts", layouts);
  add("--program", options.programs);
  add("--micro_batches", options.micro_batches);
  add("--copy_streams", options.copy_streams);
  shared.push_back(absl::StrCat("--cuts=", options.cuts, " --rank_order=", options.rank_order));
  if (options.lrs.size() > 1) add("--lr", options.lrs);
  if (!options.lr_factors.empty()) add("--tune lr", options.lr_factors);
  shared.push_back(absl::StrCat("--global_batch=", training.global_batch));
  shared.push_back(absl::StrCat("--repeats=", options.repeats));
  shared.push_back(absl::StrCat("--nproc_per_node=", flags.nodes.per_node));
  shared.push_back(absl::StrCat("--placement=", flags.nodes.placement));
  return shared;
}

NodeSetup SetupOf(const ExperimentFlags& flags, const Binaries& binaries) {
  const CompareOptions& options = flags.options;
  NodeSetup own{.binaries = binaries,
                .training = options.training,
                // With all that node 0 may choose, which knows whether the model has tables.
                .strategies = ComparedStrategies(options, /*has_tables=*/true),
                .servers = options.servers,
                .server_wires = options.server_wires,
                .tries_rates = CountOfRates(options) > 0,
                .cuts_models = !options.layouts.empty(),
                .layout = flags.nodes.layout()};
  for (const char* reference : {"single", "none"}) own.strategies.push_back(reference);
  // Node 0 reports the error; this node may not see the checkpoints.
  (void)ResolveResume(own.training);
  return own;
}

}  // namespace

absl::Status CheckOnNodes(const std::vector<Configuration>& configurations, const ExperimentFlags& flags) {
  if (!flags.nodes.several()) return absl::OkStatus();
  const NodeLayout layout = flags.nodes.layout();
  for (const Configuration& configuration : configurations) {
    if (configuration.backend() == "mpi") {
      return absl::InvalidArgumentError(
          "mpirun starts MPI's ranks, also on several machines: mpirun -n N --host A,B -x "
          "MASTER_ADDR=A -x MASTER_PORT=29500 trainer --strategy mpi");
    }
    if (configuration.ranks() != configuration.workers) {
      return InvalidArgument(configuration.strategy.name,
                             " is one process that has all workers; omit --nnodes");
    }
    if (configuration.processes() > layout.capacity()) {
      const int each = layout.per_node * flags.options.training.ranks_per_process;
      return InvalidArgument(configuration.name(), " on ", layout.nodes - layout.server_nodes,
                             " machines of ", each, ": use at most ",
                             layout.capacity() * flags.options.training.ranks_per_process,
                             " --workers, or a larger --nproc_per_node");
    }
  }
  return absl::OkStatus();
}

std::vector<int> WorkersOnNodes(const NodeLayout& layout, int ranks_per_process) {
  std::vector<int> workers;
  for (int count = 2; count < layout.capacity(); count *= 2) workers.push_back(count * ranks_per_process);
  workers.push_back(layout.capacity() * ranks_per_process);
  return workers;
}

absl::Status UnderstandNodes(const absl::StatusOr<NodeLauncher>& launcher, ExperimentFlags& flags) {
  NodesOptions& nodes = flags.nodes;
  const TrainingOptions& training = flags.options.training;
  PSRING_RETURN_IF_ERROR(UseLauncher(launcher, nodes));
  PSRING_RETURN_IF_ERROR(CheckNodes(nodes));
  nodes.timeout = absl::Seconds(training.timeout_s);
  if (!nodes.several()) return absl::OkStatus();
  if (training.clock == "virtual" || flags.link.wanted()) {
    return absl::InvalidArgumentError(
        "--nnodes needs real machines, but --clock virtual and --link simulate them; omit one of them");
  }
  if (flags.link.shaping != "auto") {
    return InvalidTr("--shaping $0 is for a virtual cluster; omit it, or --nnodes", flags.link.shaping);
  }
  flags.link = {};
  flags.link_is_default = false;
  if (training.server_placement != "dedicated") return absl::OkStatus();
  for (const int servers : flags.options.servers) {
    TrainingOptions one = training;
    one.servers = servers;
    nodes.server_nodes = std::max(nodes.server_nodes, ServerNodes(one));
  }
  if (nodes.server_nodes < nodes.nodes) return absl::OkStatus();
  return InvalidArgument("--server_placement dedicated takes the last --servers machines of --nnodes ",
                         nodes.nodes, ", and leaves none to train; use more machines");
}

absl::Status RunOnNodes(const ExperimentFlags& flags, const Interrupt& interrupt, Display& display,
                        const std::function<absl::Status(Nodes* nodes)>& lead) {
  if (!flags.nodes.several() || flags.dry_run) return lead(nullptr);
  PSRING_ASSIGN_OR_RETURN(const Binaries binaries, FindBinaries());
  return LeadOrFollow(
      flags.nodes, flags.options.training.tls, SharedFlags(flags),
      [own = SetupOf(flags, binaries)](const Nodes& nodes, const NodeOrder& order,
                                       const std::string& folder) {
        return nodes.TrainingTask(order, own, folder);
      },
      interrupt, display, lead);
}

}  // namespace psring
