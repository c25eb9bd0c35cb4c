#include "experiments/summary/wires.h"

#include <algorithm>
#include <iterator>

#include "experiments/texts/findings.h"
#include "experiments/texts/wires.h"

namespace psring {
namespace {

// std::end(kWireNames): a wire of a later version.
const WireName* Find(const std::string& wire) {
  return std::ranges::find_if(kWireNames, [&](const WireName& name) { return name.wire.english == wire; });
}

std::vector<std::string> Names(const std::vector<std::string>& wires, Phrase WireName::*text,
                               Language language) {
  std::vector<std::string> names;
  for (const std::string& wire : wires) {
    const WireName* const known = Find(wire);
    const std::string name = known != std::end(kWireNames) ? In(language, known->*text) : wire;
    if (std::ranges::find(names, name) == names.end()) names.push_back(name);
  }
  return names;
}

}  // namespace

void AddWires(const std::vector<std::string>& wires, std::vector<std::string>& all) {
  for (const std::string& wire : wires) {
    if (std::ranges::find(all, wire) == all.end()) all.push_back(wire);
  }
  std::ranges::stable_sort(all, {}, &Find);
}

bool UsesTcp(const std::vector<std::string>& wires) {
  return std::ranges::any_of(wires, [](const std::string& wire) {
    const WireName* const known = Find(wire);
    return known != std::end(kWireNames) && std::string_view(known->medium.english) == kTcpWire;
  });
}

std::vector<std::string> BetweenMachines(const std::vector<std::string>& wires) {
  constexpr std::string_view kWithinAMachine[] = {kSharedMemoryWire, kMpiSharedMemoryWire, kOneProcessWire,
                                                  kCudaIpcWire, kCudaPeerWire};
  std::vector<std::string> others;
  std::ranges::copy_if(wires, std::back_inserter(others), [&](const std::string& wire) {
    return std::ranges::find(kWithinAMachine, wire) == std::end(kWithinAMachine);
  });
  return others.empty() ? wires : others;
}

std::string WireText(const std::vector<std::string>& wires, Language language) {
  return Joined(language, Names(wires, &WireName::wire, language));
}

std::string MediumText(const std::vector<std::string>& wires, Language language) {
  return Joined(language, Names(wires, &WireName::medium, language), kAnd);
}

}  // namespace psring
