#include "ring_worker/groups/nccl_environment.h"

#include <stdlib.h>

#include <map>
#include <optional>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/errors.h"
#include "common/base/mutex.h"
#include "common/measure/wires.h"

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

std::string NcclWire(const std::function<std::string(const char* variable)>& value) {
  const auto is_on = [&](const char* variable) {
    const std::string text = value(variable);
    return !text.empty() && text != "0";
  };
  // Otherwise ranks of one machine may use NVLink, PCIe or shared memory.
  if (!is_on("NCCL_P2P_DISABLE") || !is_on("NCCL_SHM_DISABLE")) return kNcclWire;
  const std::string net = absl::AsciiStrToLower(value("NCCL_NET"));
  if (net == "socket") return kNcclSocketsWire;
  if (net == "ib") return kNcclInfiniBandWire;
  const bool no_other = is_on("NCCL_IB_DISABLE") && value("NCCL_NET_PLUGIN") == "none";
  return net.empty() && no_other ? kNcclSocketsWire : kNcclWire;
}

namespace {

// One per process, as in NCCL.
Mutex kept_mutex;
std::optional<Variables>& KeptVariables() ABSL_EXCLUSIVE_LOCKS_REQUIRED(kept_mutex) {
  static auto* const kept = new std::optional<Variables>;
  return *kept;
}

std::string Text(const Variables& variables) {
  return variables.empty() ? "its own choice of transport"
                           : absl::StrJoin(variables, " ", absl::PairFormatter("="));
}

}  // namespace

absl::Status KeepForThisProcess(const Variables& variables) {
  Variables kept = variables;
  std::erase_if(kept, [](const auto& variable) {
    return variable.first == "NCCL_ALGO" || variable.first == "NCCL_HOSTID";
  });
  MutexLock lock(kept_mutex);
  std::optional<Variables>& first = KeptVariables();
  if (!first.has_value()) first = kept;
  if (*first == kept) return absl::OkStatus();
  return FailedPrecondition("this process already uses NCCL with ", Text(*first),
                            ", and NCCL reads its settings once per process; use other processes for ",
                            Text(kept));
}

void ForgetForThisProcess() {
  MutexLock lock(kept_mutex);
  KeptVariables().reset();
}

namespace {

// One per process, like the environment.
struct Held {
  int by = 0;
  std::optional<std::string> before;
};
Mutex held_mutex;
std::map<std::string, Held>& HeldVariables() ABSL_EXCLUSIVE_LOCKS_REQUIRED(held_mutex) {
  static auto* const held = new std::map<std::string, Held>;
  return *held;
}

}  // namespace

ScopedVariables::ScopedVariables(const Variables& variables) {
  MutexLock lock(held_mutex);
  for (const auto& [name, value] : variables) {
    Held& held = HeldVariables()[name];
    const char* const present = getenv(name.c_str());
    if (held.by++ == 0) held.before = present != nullptr ? std::optional<std::string>(present) : std::nullopt;
    if (present == nullptr || value != present) setenv(name.c_str(), value.c_str(), 1);
    names_.push_back(name);
  }
}

ScopedVariables::~ScopedVariables() {
  MutexLock lock(held_mutex);
  for (const std::string& name : names_) {
    Held& held = HeldVariables()[name];
    if (--held.by > 0) continue;
    if (held.before.has_value()) {
      setenv(name.c_str(), held.before->c_str(), 1);
    } else {
      unsetenv(name.c_str());
    }
  }
}

}  // namespace psring
