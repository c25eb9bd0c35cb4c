#include "common/net/host_identity.h"

#include <unistd.h>

#include <fstream>

namespace psring {

std::string HostName() {
  char name[256] = {};
  return gethostname(name, sizeof name - 1) == 0 ? name : "unknown-host";
}

std::string BootId() {
  std::string id;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), id);
  return id;
}

std::string NamespaceId(const char* kind) {
  char id[64] = {};
  const std::string path = std::string("/proc/self/ns/") + kind;
  return readlink(path.c_str(), id, sizeof id - 1) > 0 ? id : "";
}

}  // namespace psring
