// This process: its program, its environment, its cores, its signals and its memory.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace psring {

// The path of this program, whose folder also has psring's other programs. In a package
// (experiments/deploy/bundle), it is the script that has started this process and set PSRING_PROGRAM.
absl::StatusOr<std::string> OwnProgram();
// The path of the program `name` in that folder. NotFound: it is missing.
absl::StatusOr<std::string> FindProgram(const std::string& name);

// The value of an environment variable; tests pass their own.
using GetEnv = std::function<std::optional<std::string>(const char* name)>;
GetEnv ProcessEnvironment();

// The cores on which this process may run: the kernel's numbers, ascending; never empty.
std::vector<int> AllowedCores();

// Whether the process ignores a signal because its parent started it so: SIGHUP under nohup, SIGINT in a
// script's background job. Such a signal must stay ignored, so check before installing a handler.
bool IgnoresSignal(int signal);

// Makes malloc keep freed memory, for the entire process: returning it to the kernel after every message
// costs more in page faults than the network does.
void KeepFreedMemory();

}  // namespace psring
