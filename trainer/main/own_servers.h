// Parameter servers that a trainer process starts, or becomes, if its launcher starts only ranks.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/deadline.h"
#include "common/device/child_process.h"

namespace psring {

class OwnServers {
 public:
  // Starts the ps_server in this program's folder once per command line, with this process's stderr. The
  // servers are killed when the calling thread ends, so call it from the main thread. Returns when each has
  // reported that it serves. Unavailable: one has ended; DeadlineExceeded: one has not reported.
  static absl::StatusOr<std::unique_ptr<OwnServers>> Start(
      const std::vector<std::vector<std::string>>& arguments, absl::Duration timeout);
  // Sends SIGTERM to those still running, and SIGKILL 2 s later.
  ~OwnServers();

  // Waits until they have ended, which they do when all workers have left. Aborted: one has failed.
  absl::Status WaitUntilDone(absl::Duration timeout);

 private:
  struct Server {
    ChildProcess process;
    LineReader output;
  };

  OwnServers() = default;
  static absl::Status WaitUntilServing(Server& server, MonotonicTime deadline, absl::Duration timeout);
  bool ReapUntil(MonotonicTime deadline, absl::Status& first_failure);

  std::vector<Server> servers_;
};

// Replaces this process with a server; returns only on error.
absl::Status BecomeServer(const std::vector<std::string>& arguments);

}  // namespace psring
