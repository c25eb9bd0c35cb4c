// Starts the processes of one configuration, reads their output and waits until all have ended.
//
// The children of a launch form their own process group. The kernel kills them when the launching thread
// ends, however that happens, so launch from a long-lived thread such as main's.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/device/child_process.h"
#include "experiments/launch/interrupt.h"

namespace psring {

struct ChildSpec {
  std::string name;                      // in errors: "rank 0", "server"
  std::vector<std::string> command;      // an absolute path, then arguments
  std::vector<std::string> environment;  // "KEY=value", added to ours
  std::string log_path;                  // empty: none
  std::shared_ptr<const void> keeps;     // a resource that lives as long as this
  bool serves = false;  // ends by itself after the others (LaunchSpec::serving_after), which need it no more
  ChildNetwork network = {};
  std::vector<int> inherits = {};  // descriptors that stay open
  bool may_die = false;            // death by a signal or SIGTERM is no failure while other non-servers run,
                                   // here or elsewhere (LaunchSpec::others_elsewhere)
  bool may_return = false;         // after such a death it is restarted (LaunchSpec::restarts)
};

// RunChildren calls all callbacks on its own thread.
struct LaunchSpec {
  std::string what;  // in errors: "ring x 4"
  std::vector<ChildSpec> children;
  absl::Duration deadline = absl::Minutes(5);  // of the launch
  absl::Duration grace = absl::Seconds(2);     // between SIGTERM and SIGKILL
  absl::Duration interrupt_grace =
      absl::Seconds(2);                              // the same after an interrupt, when ranks may save state
  absl::Duration serving_after = absl::Seconds(10);  // for servers to end after all others
  int restarts = 0;                                  // of all children together
  bool others_elsewhere = false;  // other machines run non-servers that may outlive those here
  bool several_nodes = false;     // other machines run processes of the same job
  // Called with each line of a child's stdout, without its newline. Returns true to keep it out of the log.
  std::function<bool(int child, const std::string& line)> on_line = [](int, const std::string&) {
    return false;
  };
  // Whether to leave a line out of error messages. It is logged in any case.
  std::function<bool(const std::string& line)> is_noise = [](const std::string&) { return false; };
  // Called several times a second. An error ends the launch and is returned.
  std::function<absl::Status()> check;
  // A child died ("rank 1 was killed by SIGKILL (Killed)") and the launch continues; `again`: it was
  // restarted.
  std::function<void(int child, const std::string& what, bool again)> on_death = [](int, const std::string&,
                                                                                    bool) {};
  // Whether the job has ended without the child, which does not respond: it is killed, which is no failure.
  // Called as often as `check`.
  std::function<bool(int child)> is_lost;
  // `is_lost` held, and the child has been killed.
  std::function<void(int child)> on_lost = [](int) {};
  // The child's last known state, for errors: "last seen at step 12 of 25". Empty: unknown.
  std::function<std::string(int child)> last_known = [](int) { return ""; };
};

// Returns after every child has ended and has been reaped.
//   OK                every child ended with 0
//   Cancelled         `interrupt` was raised, even if the same signal ended children
//   DeadlineExceeded  names the children that did not end in time and their last known state
//   Aborted           a child failed: names the first one, how it ended and its last lines
//   InvalidArgument   likewise, with exit code 2: its arguments are invalid
//   Internal          a child could not be started, or its log could not be written
//   other             the error of `check`
// On an error the remaining children get SIGTERM, servers after all others have ended, and SIGKILL after
// `grace`.
absl::Status RunChildren(const LaunchSpec& spec, const Interrupt& interrupt);

// Runs one command and returns its stdout. If it fails, the error message is its last line of stderr.
absl::StatusOr<std::string> RunForOutput(const std::vector<std::string>& command, absl::Duration deadline,
                                         const Interrupt& interrupt, const ChildNetwork& network = {});
// The same; null: signals do not end it.
absl::StatusOr<std::string> RunForOutput(const std::vector<std::string>& command, absl::Duration deadline,
                                         const Interrupt* interrupt, const ChildNetwork& network = {});

}  // namespace psring
