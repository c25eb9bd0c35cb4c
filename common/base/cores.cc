#include "common/base/cores.h"

#include <sched.h>

#include <algorithm>
#include <thread>

namespace psring {

std::vector<int> AllowedCores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> cores;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) {
    for (int core = 0; core < CPU_SETSIZE; ++core) {
      if (CPU_ISSET(core, &set)) cores.push_back(core);
    }
    return cores;
  }
  // More cores than a cpu_set_t counts.
  for (int core = 0; core < std::max(1, static_cast<int>(std::thread::hardware_concurrency())); ++core) {
    cores.push_back(core);
  }
  return cores;
}

}  // namespace psring
