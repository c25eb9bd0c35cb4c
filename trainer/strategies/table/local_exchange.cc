#include "trainer/strategies/table/local_exchange.h"

namespace psring {

double GatherSeconds(const MachineInside& inside, double bytes) {
  if (inside.workers <= 1) return 0;
  return (inside.workers - 1) * (bytes / inside.workers / inside.bytes_per_s + inside.latency_s);
}

double ReduceSeconds(const MachineInside& inside, double bytes) {
  if (inside.workers <= 1) return 0;
  return GatherSeconds(inside, bytes) + (inside.workers - 1) * bytes / inside.workers * inside.add_s_per_byte;
}

}  // namespace psring
