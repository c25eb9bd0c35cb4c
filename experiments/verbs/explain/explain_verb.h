// psring explain: parses the flags and prints the text.
#pragma once

#include <string>

namespace CLI {
class App;
}

namespace psring {

struct RawExplainFlags {
  std::string algorithm, collective, size = "4M";
  int workers = 4, root = 0, micro_batches = 8;
};

CLI::App* AddExplain(CLI::App& app, RawExplainFlags& raw);

// Returns the exit code: 0, or 2 for an unknown name or number.
int RunExplain(const RawExplainFlags& raw);

}  // namespace psring
