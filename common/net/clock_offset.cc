#include "common/net/clock_offset.h"

#include <algorithm>
#include <cmath>

#include "common/base/check.h"

namespace psring {

ClockOffset OffsetOf(const std::vector<ClockReading>& readings) {
  PSRING_CHECK(!readings.empty());
  const auto took = [](const ClockReading& reading) { return reading.answered - reading.asked; };
  const ClockReading& quickest =
      *std::min_element(readings.begin(), readings.end(),
                        [&](const ClockReading& a, const ClockReading& b) { return took(a) < took(b); });
  const int64_t middle = quickest.asked + took(quickest) / 2;
  return {.at = middle, .ahead = quickest.theirs - middle, .within = (took(quickest) + 1) / 2};
}

int64_t ClockMap::Theirs(int64_t ours) const {
  const int64_t apart = after_.at - before_.at;
  if (apart <= 0) return ours + before_.ahead;
  const double gained = static_cast<double>(after_.ahead - before_.ahead) *
                        (static_cast<double>(ours - before_.at) / static_cast<double>(apart));
  return ours + before_.ahead + std::llround(gained);
}

}  // namespace psring
