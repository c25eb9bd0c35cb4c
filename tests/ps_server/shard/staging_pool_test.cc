#include "ps_server/shard/staging_pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "ps_server/shard/helpers.h"

namespace psring {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class StagingPoolTest : public ::testing::Test {
 protected:
  std::unique_ptr<Device> device_ = MakeCpuDevice();
  std::shared_ptr<StagingPool> pool_ = std::make_shared<StagingPool>(*device_, 100);
};

TEST_F(StagingPoolTest, ABufferIsReused) {
  auto share = pool_->Reserve(0, 64);
  auto first = *pool_->Take(share, 64);
  share.reset();
  EXPECT_EQ(pool_->Reserve(1, 64), nullptr) << "the buffer keeps its share";
  const void* memory = first->data();
  first.reset();
  EXPECT_EQ((*pool_->Take(pool_->Reserve(1, 64), 64))->data(), memory);
  EXPECT_EQ(pool_->peak_bytes(), 64u);
}

TEST_F(StagingPoolTest, BuffersOfAllSizesTogetherStayWithinTheWindow) {
  for (const size_t bytes : {60, 50, 70, 100, 1}) {
    ASSERT_TRUE(pool_->Take(pool_->Reserve(0, bytes), bytes).ok());
    EXPECT_LE(pool_->peak_bytes(), 100u);
  }
}

TEST_F(StagingPoolTest, WorkersAreServedInTheOrderOfTheirRequests) {
  auto all = pool_->Reserve(0, 90);
  EXPECT_EQ(pool_->Reserve(1, 80), nullptr);
  EXPECT_EQ(pool_->Reserve(2, 5), nullptr) << "there is enough memory, but worker 1 asked first";
  EXPECT_THAT(pool_->queued(), ElementsAre(1, 2));
  all.reset();
  EXPECT_EQ(pool_->AwaitCall(), 1);
  EXPECT_EQ(pool_->Reserve(2, 5), nullptr) << "not called yet";
  const auto much = pool_->Reserve(1, 80);
  EXPECT_NE(much, nullptr);
  EXPECT_EQ(pool_->AwaitCall(), 2);
  EXPECT_NE(pool_->Reserve(2, 5), nullptr);
  EXPECT_THAT(pool_->queued(), IsEmpty());
}

TEST_F(StagingPoolTest, AWorkerThatLeavesTheQueueDoesNotBlockOthers) {
  const auto most = pool_->Reserve(0, 90);
  EXPECT_EQ(pool_->Reserve(1, 80), nullptr);
  EXPECT_EQ(pool_->Reserve(2, 5), nullptr);
  pool_->LeaveQueue(1);
  EXPECT_EQ(pool_->AwaitCall(), 2);
}

TEST_F(StagingPoolTest, ReserveAnywayMayExceedTheWindow) {
  auto much = pool_->ReserveAnyway(150);
  EXPECT_EQ(pool_->Reserve(0, 1), nullptr);
  auto buffer = *pool_->Take(std::move(much), 150);
  EXPECT_EQ(pool_->peak_bytes(), 150u);
  buffer.reset();
  EXPECT_EQ(pool_->AwaitCall(), 0);
}

TEST_F(StagingPoolTest, NamesTheReaders) {
  auto buffer = *pool_->Take(pool_->Reserve(0, 64), 64);
  auto first = pool_->Lend(buffer, 3);
  const auto second = pool_->Lend(std::move(buffer), 5);
  EXPECT_THAT(pool_->readers(), ElementsAre(3, 5));
  first.reset();
  EXPECT_THAT(pool_->readers(), ElementsAre(5));
  EXPECT_EQ(pool_->Reserve(0, 64), nullptr);
}

TEST_F(StagingPoolTest, ABufferMayOutliveItsPoolsOwner) {
  auto buffer = pool_->Lend(*pool_->Take(pool_->Reserve(0, 64), 64), 1);
  const std::weak_ptr<StagingPool> pool = pool_;
  pool_.reset();
  EXPECT_FALSE(pool.expired()) << "the buffer keeps its pool";
  buffer.reset();
  EXPECT_TRUE(pool.expired());
}

TEST_F(StagingPoolTest, ManyWorkersUseTheWholeWindowInTurn) {
  std::atomic<int> inside = 0, times = 0;
  std::vector<std::atomic<bool>> called(8);
  std::thread notifier([&] {
    while (const auto who = pool_->AwaitCall()) {
      called[*who] = true;
      called[*who].notify_one();
    }
  });
  std::vector<std::thread> workers;
  for (int who = 0; who < 8; ++who) {
    workers.emplace_back([&, who] {
      for (int i = 0; i < 200; ++i) {
        StagingPool::Share share = pool_->Reserve(who, who % 2 == 0 ? 100 : 60);
        while (share == nullptr) {
          called[who].wait(false);
          called[who] = false;
          share = pool_->Reserve(who, who % 2 == 0 ? 100 : 60);
        }
        EXPECT_EQ(++inside, 1);
        ++times;
        --inside;
      }
    });
  }
  for (std::thread& worker : workers) worker.join();
  EXPECT_EQ(times, 1600);
  pool_->Close();
  notifier.join();
}

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
