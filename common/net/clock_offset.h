// How far another machine's clock is from ours. Pure.
//
// Asked at `asked`, answered at `answered`, by our clock: the other clock said `theirs` at some moment in
// between. So it is ahead by theirs - (asked + answered) / 2, give or take half of the time that the answer
// took (Cristian, "Probabilistic clock synchronization", 1989; NTP does the same). Of several answers the
// quickest tells most. Clocks also run at different rates, by some millionths: what is measured before and
// after a run holds for its middle by a straight line.
#pragma once

#include <cstdint>
#include <vector>

namespace psring {

// Nanoseconds.
struct ClockReading {
  int64_t asked = 0, theirs = 0, answered = 0;
};

struct ClockOffset {
  int64_t at = 0;      // by our clock
  int64_t ahead = 0;   // theirs minus ours
  int64_t within = 0;  // how far `ahead` may be off, either way
};

// `readings`: at least one.
ClockOffset OffsetOf(const std::vector<ClockReading>& readings);

class ClockMap {
 public:
  ClockMap() = default;  // theirs is ours
  ClockMap(const ClockOffset& before, const ClockOffset& after) : before_(before), after_(after) {}

  bool same() const { return before_.ahead == 0 && after_.ahead == 0; }
  int64_t Theirs(int64_t ours) const;
  // How far a time between the two measurements may be off.
  int64_t within() const { return before_.within > after_.within ? before_.within : after_.within; }

 private:
  ClockOffset before_, after_;
};

}  // namespace psring
