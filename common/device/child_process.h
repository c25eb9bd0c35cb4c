// Starts one child process and reads its output line by line.
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace psring {

// The network namespace that a child enters before exec. The descriptors are borrowed.
struct ChildNetwork {
  int user_fd = -1;  // the user namespace that owns the network; -1: the caller's
  int net_fd = -1;   // -1: the caller's
};

// Enters `network` (async-signal-safe, for use between fork and exec). False: see errno.
bool EnterNetwork(const ChildNetwork& network);

struct ChildProcess {
  pid_t pid = -1;
  int pid_fd = -1;  // readable once the child has ended; -1: the kernel has none; TryWait closes it
  int out_fd = -1;  // stdout and stderr, non-blocking; the reader closes them
  int err_fd = -1;  // -1: shared
  bool running = false;
  int wait_status = 0;

  bool TryWait();  // reaps the child if it has ended; true the first time it has
  bool Succeeded() const;
  bool Signalled() const;
  bool EndedWith(int exit_code) const;
  std::string HowItEnded() const;  // "ended with exit code 3", "was killed by SIGSEGV (Segmentation fault)"
};

// Null-terminated, as exec needs them; they borrow `strings`.
std::vector<char*> Pointers(const std::vector<std::string>& strings);

// Starts `command` in process group `group` (0: its own) and in `network`, with `environment` added to ours
// and stdin from /dev/null. The child inherits the descriptors `inherits`, and stderr with `shares_stderr`.
// The kernel kills it when the calling thread ends. NotFound: exec failed. Internal: pipe or fork failed.
absl::StatusOr<ChildProcess> StartProcess(const std::vector<std::string>& command,
                                          const std::vector<std::string>& environment, pid_t group,
                                          const ChildNetwork& network = {},
                                          const std::vector<int>& inherits = {}, bool shares_stderr = false);

// Reads lines from a non-blocking descriptor.
class LineReader {
 public:
  LineReader() = default;
  explicit LineReader(int fd) : fd_(fd) {}

  int fd() const { return fd_; }  // -1 once everything has been read
  // Reads what is available. A last line without a newline is reported at the end of the file.
  void Read(const std::function<void(const std::string&)>& on_line);
  void Close();

 private:
  int fd_ = -1;
  std::string rest_;
};

}  // namespace psring
