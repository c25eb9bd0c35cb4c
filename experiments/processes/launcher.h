// Starts the processes of one configuration, listens to them, and leaves none behind.
//
// All children of a launch form a process group of their own, and die with psring even if psring is killed
// (the kernel sends them SIGKILL when the launching thread ends: launch from a thread that lives on, such as
// main's). Each child's output goes line by line to its log file and to the listener.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "experiments/processes/interrupt.h"
#include "experiments/processes/network_place.h"

namespace psring {

struct ChildSpec {
  std::string name;                      // as errors call it: "rank 0", "server"
  std::vector<std::string> command;      // an absolute path, then arguments
  std::vector<std::string> environment;  // "KEY=value", on top of ours
  std::string log_path;                  // empty: none
  std::shared_ptr<const void> keeps;     // lives as long as this
  bool serves = false;                   // ends by itself when the others have: LaunchSpec::serving_after
  NetworkPlace place = {};               // where in the network it stands
  std::vector<int> inherits = {};        // descriptors that it finds open, under their numbers
  bool may_die = false;  // killed by a signal, it is no failure while others of its kind go on
  bool may_return =
      false;  // killed by a signal, or told by one to end, it is started again: LaunchSpec::restarts
};

struct LaunchSpec {
  std::string what;  // as errors call it: "ring x 4"
  std::vector<ChildSpec> children;
  absl::Duration deadline = absl::Minutes(5);  // for all of it
  absl::Duration grace = absl::Seconds(2);     // between SIGTERM and SIGKILL
  // Likewise where `interrupt` was raised: children that are told to end may have something to keep.
  absl::Duration interrupt_grace = absl::Seconds(2);
  // How long a child that serves may take to end once all others have.
  absl::Duration serving_after = absl::Seconds(10);
  // How often children that may return are started again, all together.
  int restarts = 0;
  // A line of a child's stdout, without its newline. True: it was for the listener (progress), and is not
  // logged.
  std::function<bool(int child, const std::string& line)> on_line = [](int, const std::string&) {
    return false;
  };
  // A line of a child that an error need not quote; it is logged all the same.
  std::function<bool(const std::string& line)> is_noise = [](const std::string&) { return false; };
  // Asked several times a second: an error ends the launch, and is its verdict.
  std::function<absl::Status()> check;
  // A child died, and the rest goes on: "rank 1 was killed by SIGKILL (Killed)"; `again`: it was started
  // anew.
  std::function<void(const std::string& what, bool again)> on_death = [](const std::string&, bool) {};
  // What the child was last known to do, for errors: "at step 12 of 25". Empty: nothing is known.
  std::function<std::string(int child)> last_known = [](int) { return ""; };
};

// Returns when every child has ended and has been waited for.
//   OK                every child ended with 0
//   Cancelled         `interrupt` was raised, even if the same signal has ended children
//   DeadlineExceeded  not all ended in time; names those that had not, and what was last known of them
//   Aborted           a child failed: names the first one, how it ended and its last lines
//   InvalidArgument   likewise, with exit code 2: it was given what it cannot take
// In all but the first case the rest is ended: SIGTERM at once, to those that serve once the others have
// ended, SIGKILL after `grace`.
absl::Status RunChildren(const LaunchSpec& spec, const Interrupt& interrupt);

// Runs one command and returns its stdout. Its failure is an error whose message is the last line that it
// wrote to stderr, as it stands.
absl::StatusOr<std::string> RunForOutput(const std::vector<std::string>& command, absl::Duration deadline,
                                         const Interrupt& interrupt);

}  // namespace psring
