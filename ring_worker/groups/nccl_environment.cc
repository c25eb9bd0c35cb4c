#include "ring_worker/groups/nccl_environment.h"

#include <stdlib.h>

#include "absl/strings/str_cat.h"

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

ScopedVariables::ScopedVariables(const Variables& variables) {
  for (const auto& [name, value] : variables) {
    const char* const before = getenv(name.c_str());
    before_.emplace_back(name, before != nullptr ? std::optional<std::string>(before) : std::nullopt);
    setenv(name.c_str(), value.c_str(), 1);
  }
}

ScopedVariables::~ScopedVariables() {
  for (const auto& [name, value] : before_) {
    if (value.has_value()) {
      setenv(name.c_str(), value->c_str(), 1);
    } else {
      unsetenv(name.c_str());
    }
  }
}

}  // namespace psring
