// Makes Ctrl-C, SIGTERM and SIGHUP visible to code that waits in poll().
#pragma once

#include "absl/status/status.h"

namespace psring {

// While it exists, the three signals do not end the process but make fd() permanently readable. Further
// signals have no effect, because the shutdown has its own deadline. SIGHUP and SIGINT stay ignored if they
// were (nohup, background jobs of scripts). At most one instance at a time.
class Interrupt {
 public:
  Interrupt();
  ~Interrupt();
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;

  int fd() const { return read_fd_; }
  // The first signal received; 0: none.
  int signal() const;
  // OK, or Cancelled: "interrupted (SIGINT)".
  absl::Status Check() const;

 private:
  int read_fd_ = -1;
  int write_fd_ = -1;
};

}  // namespace psring
