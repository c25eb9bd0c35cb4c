// The control groups (versions 1 and 2) of this process, whose limits hold for all processes in them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace psring {

struct ControlGroup {
  std::string folder;  // "/sys/fs/cgroup/job": its files
  bool version_1 = false;
};

// This process's group of `controller` ("cpu", "memory", "pids") and its ancestors, wherever they are
// mounted. A folder may not exist, or may not have the controller's files. In a container whose mount does
// not contain the group, the top of the mount is the group. `root` is prefixed to /proc and /sys.
std::vector<ControlGroup> ControlGroups(const std::string& controller, const std::string& root = "");

// The number that a file begins with; nullopt: the file is missing or begins with something else ("max").
std::optional<uint64_t> NumberIn(const std::string& path);

// Cores in the lowest CPU quota of this process's groups; 0: no quota.
double QuotaCores(const std::string& root = "");

// The cores that this process may use: by its affinity and its quota, of which a part of a core does not
// count; at least 1.
int UsableCores();

}  // namespace psring
