// NCCL is told how to work by environment variables, which it reads while a communicator is made.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace psring {

using Variables = std::vector<std::pair<std::string, std::string>>;

struct NcclWishes {
  bool ring = false;        // the ring algorithm, whatever the tuner thinks
  bool sockets = false;     // TCP alone: the same wires as everybody's
  bool loopback = false;    // all ranks are on this host, and its other interfaces are not to be used
  bool shares_gpu = false;  // several ranks on one GPU, which NCCL refuses where it can tell
  int rank = 0;
};

// Pure. Ranks that share a GPU claim to be hosts of their own, which leaves them sockets to talk over.
Variables NcclVariables(const NcclWishes& wishes);

// Set for as long as this lives, or another of the same; then as they were before the first. Several threads
// may make communicators at once: only the first of them writes what another may be reading.
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
