// One child process and the lines that come out of it: the thin layer under the launcher.
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "experiments/processes/network_place.h"

namespace psring {

struct ChildProcess {
  pid_t pid = -1;
  int pid_fd = -1;  // readable once the child has ended; closed when it has been waited for
  int out_fd = -1;  // its stdout and stderr, non-blocking; whoever reads them closes them
  int err_fd = -1;
  bool running = false;
  int wait_status = 0;

  bool TryWait();  // true once, when the child has ended: nothing is left of it then
  bool Succeeded() const;
  bool Signalled() const;
  bool EndedWith(int exit_code) const;
  std::string HowItEnded() const;  // "ended with exit code 3", "was killed by SIGSEGV (Segmentation fault)"
};

// Starts `command` in process group `group` (0: a new one, named after the child) with `environment` on top
// of ours, stdin from /dev/null, and SIGKILL at the death of the calling thread. It stands at `place` in the
// network, and finds the descriptors `inherits` open under their numbers.
absl::StatusOr<ChildProcess> StartProcess(const std::vector<std::string>& command,
                                          const std::vector<std::string>& environment, pid_t group,
                                          const NetworkPlace& place = {},
                                          const std::vector<int>& inherits = {});

// Splits what arrives on a non-blocking descriptor into lines.
class LineReader {
 public:
  LineReader() = default;
  explicit LineReader(int fd) : fd_(fd) {}

  int fd() const { return fd_; }  // -1 once everything has been read
  // Reads what is there. A last line without a newline counts when the writer is gone.
  void Read(const std::function<void(const std::string&)>& on_line);
  void Close();

 private:
  int fd_ = -1;
  std::string rest_;
};

}  // namespace psring
