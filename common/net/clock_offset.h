// The offset of another machine's clock from ours. Pure.
//
// A request was sent at `asked` and answered at `answered`, by our clock; in between the other clock showed
// `theirs`. So it is ahead by theirs - (asked + answered) / 2, with an error of at most half of the round
// trip (Cristian, "Probabilistic clock synchronization", 1989; NTP does the same). Of several answers the
// fastest is the most precise. Clocks also differ in rate by a few parts per million: offsets measured before
// and after a run are interpolated linearly.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "common/base/check.h"

namespace psring {

// Nanoseconds.
struct ClockReading {
  int64_t asked = 0, theirs = 0, answered = 0;
};

struct ClockOffset {
  int64_t at = 0;      // by our clock
  int64_t ahead = 0;   // theirs minus ours
  int64_t within = 0;  // the maximum error of `ahead`, either way
};

// `readings`: at least one.
inline ClockOffset OffsetOf(const std::vector<ClockReading>& readings) {
  PSRING_CHECK(!readings.empty());
  const auto took = [](const ClockReading& reading) { return reading.answered - reading.asked; };
  const ClockReading& quickest =
      *std::min_element(readings.begin(), readings.end(),
                        [&](const ClockReading& a, const ClockReading& b) { return took(a) < took(b); });
  const int64_t middle = quickest.asked + took(quickest) / 2;
  return {.at = middle, .ahead = quickest.theirs - middle, .within = (took(quickest) + 1) / 2};
}

class ClockMap {
 public:
  ClockMap() = default;  // the clocks are the same
  ClockMap(const ClockOffset& before, const ClockOffset& after) : before_(before), after_(after) {}

  bool same() const { return before_.ahead == 0 && after_.ahead == 0; }
  int64_t Theirs(int64_t ours) const {
    const int64_t apart = after_.at - before_.at;
    if (apart <= 0) return ours + before_.ahead;
    const double gained = static_cast<double>(after_.ahead - before_.ahead) *
                          (static_cast<double>(ours - before_.at) / static_cast<double>(apart));
    return ours + before_.ahead + std::llround(gained);
  }
  // The maximum error for a time between the two measurements.
  int64_t within() const { return before_.within > after_.within ? before_.within : after_.within; }

 private:
  ClockOffset before_, after_;
};

}  // namespace psring
