// A solution of the exercise `ssp`: ./run exercise ssp experiments/lecture/solutions/ssp.cc
#include "ssp.h"

#include <cstddef>

bool MayContinue(const JobState& job, int worker) {
  for (size_t other = 0; other < job.pushed.size(); ++other) {
    if (!job.finished[other] && job.pushed[worker] - job.pushed[other] > job.bound) return false;
  }
  return true;
}
