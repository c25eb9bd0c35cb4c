// The flags of the verbs that run on several machines (--nnodes), in one group of the help, and a check.
#pragma once

#include <string>

#include "experiments/launch/nodes.h"

namespace CLI {
class App;
}

namespace psring {

// --nnodes, --nproc_per_node, --node_rank, --master_addr, --master_port, --bind and --interface.
void AddNodeFlags(CLI::App& verb, NodesOptions& nodes);
// --placement, for verbs that also run fewer workers than the machines hold.
void AddPlacementFlag(CLI::App& verb, NodesOptions& nodes);

// A check of a flag's value (common/cli/command_line.h): it must not be empty.
std::string CheckName(const std::string& text);

}  // namespace psring
