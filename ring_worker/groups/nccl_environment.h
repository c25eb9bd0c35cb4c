// NCCL is configured by environment variables, which it reads when a communicator is created.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"

namespace psring {

using Variables = std::vector<std::pair<std::string, std::string>>;

struct NcclWishes {
  bool ring = false;        // use the ring algorithm regardless of the tuner
  bool sockets = false;     // only TCP, as with other backends
  bool loopback = false;    // all ranks are on this host; do not use its other interfaces
  bool shares_gpu = false;  // several ranks share a GPU, which NCCL rejects within a host
  int rank = 0;
};

// Pure. Ranks that share a GPU appear as separate hosts, so NCCL uses sockets between them.
Variables NcclVariables(const NcclWishes& wishes);

// NCCL reads most variables once per process, for its first communicator. The first call keeps `variables`,
// except NCCL_ALGO and NCCL_HOSTID, which may differ between groups. FailedPrecondition: an earlier group had
// others, which NCCL would silently go on using. Any thread.
absl::Status KeepForThisProcess(const Variables& variables);
// For tests: a fake NCCL reads its environment for every communicator.
void ForgetForThisProcess();

// The wire of payload (common/measure/wires.h) if the environment leaves NCCL only one, otherwise kNcclWire:
// NCCL does not report what it chose. `value`: of an environment variable, empty if it is not set. Pure.
std::string NcclWire(const std::function<std::string(const char* variable)>& value);

// Sets the variables while it exists, and restores them after the last instance. Threads may create
// communicators concurrently; only the first instance writes the environment.
class ScopedVariables {
 public:
  explicit ScopedVariables(const Variables& variables);
  ~ScopedVariables();
  ScopedVariables(const ScopedVariables&) = delete;
  ScopedVariables& operator=(const ScopedVariables&) = delete;

 private:
  std::vector<std::string> names_;
};

}  // namespace psring
