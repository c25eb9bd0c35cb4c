// Visits every reachable state of a small model, and every order of pushes.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <vector>

namespace psring {

// A World has actions(), Can(action), Do(action), over(), and State(), which determines its future. Orders of
// actions that lead to the same state are continued once. Each state gets a new World, so worlds need not be
// copied. Returns the number of states.
template <typename World>
int ForEveryState(const std::function<std::unique_ptr<World>()>& make) {
  std::set<std::vector<int64_t>> seen;
  std::vector<int> order;
  const std::function<void()> extend = [&] {
    if (testing::Test::HasFailure()) return;
    const std::unique_ptr<World> world = make();
    for (const int action : order) world->Do(action);
    if (!seen.insert(world->State()).second) return;
    bool stuck = true;
    for (int action = 0; action < world->actions(); ++action) {
      if (!world->Can(action)) continue;
      stuck = false;
      order.push_back(action);
      extend();
      order.pop_back();
    }
    EXPECT_TRUE(!stuck || world->over()) << "deadlock after " << testing::PrintToString(order);
    if (testing::Test::HasFailure()) ADD_FAILURE() << "after " << testing::PrintToString(order);
  };
  extend();
  return static_cast<int>(seen.size());
}

// Calls `visit` with every order in which worker i pushes `pushes[i]` times. `may_push`: whether a worker may
// push next, given how often each still has to.
inline void ForEveryOrder(const std::vector<int>& pushes,
                          const std::function<bool(const std::vector<int>& left, size_t worker)>& may_push,
                          const std::function<void(const std::vector<int>& order)>& visit) {
  std::vector<int> order, left = pushes;
  const std::function<void()> extend = [&] {
    if (std::ranges::count(left, 0) == std::ssize(left)) return visit(order);
    for (size_t worker = 0; worker < left.size(); ++worker) {
      if (left[worker] == 0 || !may_push(left, worker)) continue;
      --left[worker];
      order.push_back(static_cast<int>(worker));
      extend();
      order.pop_back();
      ++left[worker];
    }
  };
  extend();
}
inline bool AnyMayPush(const std::vector<int>&, size_t) { return true; }

}  // namespace psring
