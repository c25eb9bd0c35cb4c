// The processor of this machine, from /proc/cpuinfo. Cloud machines of different generations share a name
// such as "AMD EPYC", so results also state the family, model, stepping and instruction sets.
#pragma once

#include <string>

namespace psring {

struct Processor {
  std::string name;                            // "AMD EPYC"
  int family = -1, model = -1, stepping = -1;  // -1: /proc/cpuinfo does not state it (not x86)
  std::string instruction_sets;                // those that matter for training: "avx2 fma avx512f"
};

// Of the first processor in the text of /proc/cpuinfo. Pure.
Processor ParseProcessor(const std::string& cpuinfo);

// "AMD EPYC (family 25, model 1, stepping 1; avx2 fma)". Empty if nothing is known. Pure.
std::string ProcessorText(const Processor& processor);

}  // namespace psring
