// Signals that a process ignores because its parent started it so: SIGHUP under nohup, SIGINT in a script's
// background job. They must stay ignored, so check before installing a handler.
#pragma once

#include <signal.h>

namespace psring {

inline bool IgnoresSignal(int signal) {
  struct sigaction action;
  return sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

}  // namespace psring
