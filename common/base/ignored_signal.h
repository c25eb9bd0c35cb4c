// Signals that a process ignores because its parent had it start so: SIGHUP under nohup, SIGINT in a
// background job of a script. They stay ignored, so ask before installing a handler.
#pragma once

#include <signal.h>

namespace psring {

inline bool IgnoresSignal(int signal) {
  struct sigaction action;
  return sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

}  // namespace psring
