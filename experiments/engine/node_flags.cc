#include "experiments/engine/node_flags.h"

#include "CLI/CLI.hpp"
#include "common/cli/command_line.h"
#include "experiments/design/plan.h"

namespace psring {
namespace {

constexpr char kMachines[] =
    "Several machines (as torchrun: the same command on each, with its own --node_rank or under a launcher)";

template <typename T>
CLI::Option* AddNodeFlag(CLI::App& verb, const std::string& group, const char* names, T& to,
                         const char* value, const char* help, const ValueCheck& check) {
  return verb.add_option(names, to, help)->group(group)->option_text(value)->check(check);
}

}  // namespace

std::string CheckName(const std::string& text) { return text.empty() ? "a name is missing" : ""; }

void AddNodeFlags(CLI::App& verb, NodesOptions& nodes) {
  AddNodeFlag(verb, kMachines, "--nnodes", nodes.nodes, "N", "Number of machines",
              WholeNumber(1, kMaxWorkers))
      ->capture_default_str();
  AddNodeFlag(verb, kMachines, "--nproc_per_node", nodes.per_node, "N",
              "Processes on each machine, instead of --workers; workers are this times --ranks_per_process",
              WholeNumber(1, kMaxWorkers));
  AddNodeFlag(verb, InHelpAll(kMachines), "--node_rank", nodes.node, "I",
              "Index of this machine; machine 0 coordinates and prints the result [the number that srun, "
              "mpirun or a Kubernetes Indexed Job gave this process, else 0]",
              WholeNumber(0, kMaxWorkers - 1));
  AddNodeFlag(verb, InHelpAll(kMachines), "--master_addr", nodes.master_addr, "HOST",
              "Node 0's name or address [MASTER_ADDR, else under srun the first host of the step]",
              CheckName);
  AddNodeFlag(verb, InHelpAll(kMachines), "--master_port", nodes.master_port, "PORT",
              "Port on which node 0 listens for the others [MASTER_PORT, else under srun one derived from "
              "the job, else 29500]",
              WholeNumber(1, 65535));
  AddNodeFlag(verb, InHelpAll(kMachines), "--bind", nodes.network.bind, "ADDRESS",
              "Address of this machine on which its processes listen; default: the loopback, or with several "
              "machines the address of the route to node 0",
              CheckName);
  AddNodeFlag(verb, InHelpAll(kMachines), "--interface", nodes.network.interface, "NAME",
              "As --bind, by the name of the network interface", CheckName);
}

void AddPlacementFlag(CLI::App& verb, NodesOptions& nodes) {
  AddNodeFlag(verb, InHelpAll(kMachines), "--placement", nodes.placement, "HOW",
              "Machines to use for fewer workers than --nnodes times --nproc_per_node: compact fills one "
              "machine after another, spread uses all equally",
              OneOf({"compact", "spread"}))
      ->capture_default_str();
}

}  // namespace psring
