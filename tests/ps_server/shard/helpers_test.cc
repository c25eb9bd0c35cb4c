#include "ps_server/shard/helpers.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

namespace psring {
namespace {

TEST(HelpersTest, EachCallersItemsAreDoneOnce) {
  for (const int threads : {0, 1, 3}) {
    Helpers helpers(threads);
    for (const int count : {0, 1, 2, 7, 1000}) {
      std::vector<std::thread> callers;
      for (int caller = 0; caller < 3; ++caller) {
        callers.emplace_back([&] {
          std::vector<std::atomic<int>> done(static_cast<size_t>(count));
          helpers.ForEach(count, [&](int item, int thread) {
            EXPECT_LE(thread, threads);
            ++done[static_cast<size_t>(item)];
          });
          for (const std::atomic<int>& times : done) EXPECT_EQ(times, 1);
        });
      }
      for (std::thread& caller : callers) caller.join();
    }
  }
}

TEST(HelpersTest, AThreadDoesOneItemAtATimeInIncreasingOrder) {
  Helpers helpers(3);
  for (int round = 0; round < 100; ++round) {
    std::vector<std::atomic<int>> last(4);
    std::vector<std::atomic<bool>> busy(4);
    for (std::atomic<int>& item : last) item = -1;
    helpers.ForEach(50, [&](int item, int thread) {
      EXPECT_FALSE(busy[static_cast<size_t>(thread)].exchange(true));
      EXPECT_GT(item, last[static_cast<size_t>(thread)].exchange(item));
      busy[static_cast<size_t>(thread)] = false;
    });
  }
}

}  // namespace
}  // namespace psring
