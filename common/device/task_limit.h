// Limits of the number of processes and threads, which Linux calls tasks: ulimit -u, and pids.max of control
// groups. Libraries abort if a thread cannot start, so programs check the limits first.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"

namespace psring {

struct TaskLimit {
  int64_t most = 0;  // tasks, of this user or of a control group
  int64_t left = 0;  // how many more may start
  std::string name;  // "ulimit -u", "/sys/fs/cgroup/pids.max"
};
// The one that leaves the fewest; nullopt: there is none. Raises this process's soft limit first. `root` is
// prefixed to /proc and /sys.
std::optional<TaskLimit> LowestTaskLimit(const std::string& root = "");

// FailedPrecondition, in one line, if `whose` ("4 processes") need more tasks than may start.
absl::Status AllowTasks(int64_t needed, const std::string& whose, const std::string& root = "");

// The end of an error message: "; ulimit -u is 40: run: ulimit -u 80" if `error`, an errno of fork or
// pthread_create, is EAGAIN; else empty.
std::string TaskLimitText(int error);

// Estimates from measurements with 2 to 4 workers on 2 cores: 12 of a rank, 14 to 16 of a server, 12 to 16 of
// psring.
int64_t RankTasks(int ranks,
                  int servers = 0);  // of a process with `ranks` ranks, each of which has `servers`
int64_t ServerTasks();
int64_t LauncherTasks();  // beyond itself

// For threads beyond the estimates. From the start of a program that links this function: if a thread cannot
// start because of a limit, the process ends with exit code 1 and one line on stderr. Without it, std::thread
// and gRPC abort the process. Does nothing when it is called. With sanitizers, which have their own
// pthread_create, programs abort.
void ExitIfAThreadCannotStart();

}  // namespace psring
