// Parameter servers that this process starts beside itself, because its launcher knows only ranks; and a rank
// that becomes one.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace psring {

class OwnServers {
 public:
  // Starts ps_server, which stands beside this program, once for each command line; what they write to stderr
  // goes where ours does. They die with the calling thread, however it ends: call it from main's. Returns
  // when each says that it serves. Unavailable: one has ended instead; DeadlineExceeded: it says nothing.
  static absl::StatusOr<std::unique_ptr<OwnServers>> Start(
      const std::vector<std::vector<std::string>>& arguments, absl::Duration timeout);
  // Ends those that still run: SIGTERM, and SIGKILL 2 s later.
  ~OwnServers();

  // Waits until they have ended by themselves, which they do when all workers have left.
  absl::Status WaitUntilDone(absl::Duration timeout);

 private:
  struct Server {
    pid_t pid = -1;
    int out_fd = -1;
  };

  OwnServers() = default;
  absl::Status StartOne(const std::string& program, const std::vector<std::string>& arguments);
  static absl::Status WaitUntilServing(Server& server, absl::Time deadline, absl::Duration timeout);
  bool ReapUntil(absl::Time deadline, absl::Status& first_failure);

  std::vector<Server> servers_;  // that have not been waited for
};

// This process is a server from here on: it comes back only with an error.
absl::Status BecomeServer(const std::vector<std::string>& arguments);

}  // namespace psring
