// The CPU cores that this process may run on.
#pragma once

#include <sched.h>

#include <algorithm>
#include <thread>
#include <vector>

namespace psring {

// The kernel's core numbers, ascending; never empty.
inline std::vector<int> AllowedCores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  // The call fails if there are more cores than a cpu_set_t counts.
  const bool known = sched_getaffinity(0, sizeof(set), &set) == 0;
  const int most = known ? CPU_SETSIZE : std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  std::vector<int> cores;
  for (int core = 0; core < most; ++core) {
    if (!known || CPU_ISSET(core, &set)) cores.push_back(core);
  }
  return cores;
}

}  // namespace psring
