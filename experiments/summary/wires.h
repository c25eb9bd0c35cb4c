// What carried payload, as texts for users. Pure. Wires have the names of common/measure/wires.h.
#pragma once

#include <string>
#include <vector>

#include "experiments/texts/phrase.h"

namespace psring {

// Adds the wires that `all` lacks, and sorts it in the order of texts/wires.h.
void AddWires(const std::vector<std::string>& wires, std::vector<std::string>& all);

// Whether payload went over TCP, with any library.
bool UsesTcp(const std::vector<std::string>& wires);

// `wires` without memory of one machine if others remain: what connects the machines.
std::vector<std::string> BetweenMachines(const std::vector<std::string>& wires);

// "shared memory, TCP".
std::string WireText(const std::vector<std::string>& wires, Language language);

// For sentences, without the library: gRPC over TCP is "TCP". "shared memory and TCP".
std::string MediumText(const std::vector<std::string>& wires, Language language);

}  // namespace psring
