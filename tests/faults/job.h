// A real job of the fault driver: psring or ranks started by hand, its processes and its progress.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/experiments/started.h"

namespace psring {

inline constexpr int kFaultWorkers = 3;
inline constexpr int64_t kFaultSteps = 80;
// In JobSetup::before: the job's checkpoint folder.
inline constexpr char kCheckpoints[] = "@CHECKPOINTS@";

struct JobKind {
  std::string name;
  std::string flags;
  bool has_server = true;
  bool asynchronous = false;
  bool same_bits = false;  // two undisturbed runs have the same weights
  bool tables = false;
};
const std::vector<JobKind>& JobKinds();

struct JobSetup {
  JobKind kind;
  bool by_hand = false;    // ranks without a launcher; rank 0 starts the server
  bool restarts = false;   // --max_restarts
  bool on_links = false;   // each worker in its own network namespace
  bool dedicated = false;  // the server has a node of its own
  int nodes = 1;           // --nnodes, all on this machine
  int per_node = 2;        // workers, with several nodes
  int timeout_s = 60;
  int workers() const { return nodes > 1 ? nodes * per_node : kFaultWorkers; }
  // A shell command that limits the job's processes ("ulimit -n 32"), and one that starts that shell.
  std::string before = {};
  std::vector<std::string> shell = {"/bin/sh"};
};

class FaultJob {
 public:
  // Starts the job in `folder`, which is its own. `port`: of node 0's store.
  FaultJob(const JobSetup& asked, const std::string& folder, int port);

  // Waits until `condition()` holds; false: a process that was started here has ended before.
  template <typename Condition>
  bool Await(const Condition& condition) {
    return WaitUntil(started_, condition);
  }
  // Waits until all started processes have ended; false: some had not within `timeout`.
  bool AwaitEnd(absl::Duration timeout);

  // Ranks and servers, by role: "rank 1", "server". Without those that have ended.
  std::vector<std::pair<std::string, pid_t>> Processes() const;
  std::optional<pid_t> Find(const std::string& role) const;
  pid_t launcher(int node = 0) const { return started_[static_cast<size_t>(node)]->pid(); }
  StartedOnes& started() { return started_; }

  std::string run() const { return folder_ + "/run"; }
  std::string checkpoints() const { return folder_ + "/checkpoints"; }
  std::string temporary() const { return folder_ + "/tmp"; }

  // The last line of each failed process's errors; of a launcher, its last error, which may have several
  // lines.
  std::vector<std::string> LastLines() const;
  bool Succeeded() const;
  std::string Story() const;
  // The final weights' hash, if all ranks that wrote a result have the same.
  std::string Weights() const;
  // What remains of the job after its end; empty: nothing. A launcher that was killed leaves its temporary
  // folder, which the next one removes.
  std::string Remains(bool launcher_died) const;
  // Processes that were killed on purpose.
  void Ignore(pid_t pid) { ignored_.insert(pid); }

 private:
  // Folders in /dev/shm of psrings that have ended.
  static std::set<std::string> AbandonedMemory();

  const JobSetup setup_;
  const std::string folder_;
  const std::set<std::string> abandoned_before_;  // by earlier tests that killed psring
  StartedOnes started_;
  std::set<pid_t> ignored_;
};

// Sockets that the process has open: how far it has got in connecting.
int SocketsOf(pid_t pid);
// The ports on which the process listens, in its network.
std::vector<int> PortsOf(pid_t pid);

}  // namespace psring
