// Where in the network a child process stands.
#pragma once

namespace psring {

// A network namespace that a child enters before it becomes what it is started as. Borrowed descriptors.
struct NetworkPlace {
  int user_fd = -1;  // the user namespace that owns the network; -1: the caller's own
  int net_fd = -1;   // -1: stay where you are
};

// For a child between fork and exec: only async-signal-safe calls. 0, or errno.
int EnterPlace(const NetworkPlace& place);

}  // namespace psring
