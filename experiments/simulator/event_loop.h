// The time of a simulation: flows of a network, and timers. Pure and deterministic.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <queue>
#include <vector>

#include "experiments/simulator/fluid_network.h"

namespace psring {

// `Timer` has a `double time`, and operator> that also orders the timers of one time.
template <typename Timer>
class EventLoop {
 public:
  FluidNetwork& network() { return network_; }
  const FluidNetwork& network() const { return network_; }
  double now() const { return network_.now(); }

  // `timer.time`: at least now().
  void Add(const Timer& timer) { timers_.push(timer); }

  // Advances to the next time at which a flow or a timer ends. Calls `on_flow` with the tokens of these flows
  // in ascending order, then `on_timer` with these timers and those that are added for the same time. False:
  // there is neither.
  template <typename OnFlow, typename OnTimer>
  bool Advance(OnFlow on_flow, OnTimer on_timer) {
    const double next =
        std::min(network_.NextEnd(), timers_.empty() ? FluidNetwork::kUnlimited : timers_.top().time);
    if (std::isinf(next)) return false;
    ended_.clear();
    network_.AdvanceTo(next, ended_);
    for (const int64_t token : ended_) on_flow(token);
    while (!timers_.empty() && timers_.top().time <= next) {
      const Timer timer = timers_.top();
      timers_.pop();
      on_timer(timer);
    }
    return true;
  }

 private:
  FluidNetwork network_;
  std::priority_queue<Timer, std::vector<Timer>, std::greater<>> timers_;
  std::vector<int64_t> ended_;
};

}  // namespace psring
