// Visits every reachable state of a small model.
#pragma once

#include <gtest/gtest.h>

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

}  // namespace psring
