#include "experiments/processes/network_place.h"

#include <sched.h>

#include <cerrno>

namespace psring {

int EnterPlace(const NetworkPlace& place) {
  if (place.net_fd < 0) return 0;
  if (place.user_fd >= 0 && setns(place.user_fd, CLONE_NEWUSER) != 0) return errno;
  return setns(place.net_fd, CLONE_NEWNET) == 0 ? 0 : errno;
}

}  // namespace psring
