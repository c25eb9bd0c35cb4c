// Identifiers of this host and of this process's namespaces.
#pragma once

#include <unistd.h>

#include <fstream>
#include <string>

namespace psring {

// "unknown-host" if the system call fails.
inline std::string HostName() {
  char name[256] = {};
  return gethostname(name, sizeof name - 1) == 0 ? name : "unknown-host";
}

// Equal for processes of one running kernel, and for no others; empty without /proc.
inline std::string BootId() {
  std::string id;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), id);
  return id;
}

// Identifies the namespace of this process, `kind` as in /proc/self/ns: "net", "pid", "time". Empty without
// /proc.
inline std::string NamespaceId(const std::string& kind) {
  char id[64] = {};
  return readlink(("/proc/self/ns/" + kind).c_str(), id, sizeof id - 1) > 0 ? id : "";
}

}  // namespace psring
