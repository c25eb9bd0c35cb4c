#include "ring_worker/groups/nccl_environment.h"

#include <stdlib.h>

#include <map>
#include <optional>

#include "absl/strings/str_cat.h"
#include "common/mutex.h"

namespace psring {

Variables NcclVariables(const NcclWishes& wishes) {
  Variables variables;
  if (wishes.ring) variables.emplace_back("NCCL_ALGO", "Ring");
  if (wishes.shares_gpu) variables.emplace_back("NCCL_HOSTID", absl::StrCat("psring-rank-", wishes.rank));
  if (wishes.sockets || wishes.shares_gpu) {
    for (const char* faster : {"NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE", "NCCL_IB_DISABLE"}) {
      variables.emplace_back(faster, "1");
    }
    variables.emplace_back("NCCL_NET", "Socket");
    if (wishes.loopback) variables.emplace_back("NCCL_SOCKET_IFNAME", "=lo");
  }
  return variables;
}

namespace {

// The environment is the process's, and several of its ranks may make their communicators at one time.
struct Held {
  int holders = 0;
  std::optional<std::string> before;
};
Mutex held_mutex;

std::map<std::string, Held>& HeldVariables() ABSL_EXCLUSIVE_LOCKS_REQUIRED(held_mutex) {
  static auto& held = *new std::map<std::string, Held>();
  return held;
}

}  // namespace

ScopedVariables::ScopedVariables(const Variables& variables) {
  MutexLock lock(held_mutex);
  for (const auto& [name, value] : variables) {
    names_.push_back(name);
    Held& held = HeldVariables()[name];
    if (held.holders++ > 0) continue;
    if (const char* const before = getenv(name.c_str()); before != nullptr) held.before = before;
    setenv(name.c_str(), value.c_str(), 1);
  }
}

ScopedVariables::~ScopedVariables() {
  MutexLock lock(held_mutex);
  for (const std::string& name : names_) {
    const auto held = HeldVariables().find(name);
    if (--held->second.holders > 0) continue;
    if (held->second.before.has_value()) {
      setenv(name.c_str(), held->second.before->c_str(), 1);
    } else {
      unsetenv(name.c_str());
    }
    HeldVariables().erase(held);
  }
}

}  // namespace psring
