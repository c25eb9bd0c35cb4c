// Ctrl-C, SIGTERM and SIGHUP, seen by code that waits in poll().
#pragma once

#include "absl/status/status.h"

namespace psring {

// From its construction on the three signals no longer end the process: they make fd() readable for good. A
// second Ctrl-C does no more than the first, because the ending itself has a deadline. SIGHUP and SIGINT stay
// ignored if they were (nohup, background jobs of scripts). At most one at a time.
class Interrupt {
 public:
  Interrupt();
  ~Interrupt();
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;

  int fd() const { return read_fd_; }
  // The first of the signals that has come; 0: none.
  int signal() const;
  // OK, or Cancelled: "interrupted (SIGINT)".
  absl::Status Check() const;

 private:
  int read_fd_ = -1;
  int write_fd_ = -1;
};

}  // namespace psring
