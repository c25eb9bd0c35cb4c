#include "trainer/checkpoints/worker_parts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "common/rendezvous/rendezvous.h"
#include "tests/test_secret.h"
#include "tests/waiting_thread.h"

namespace psring {
namespace {

using testing::HasSubstr;

// Ranks 0 and 1 of one store, which wait 1 s.
class WorkerPartsTest : public testing::Test {
 protected:
  WorkerPartsTest() {
    auto server = RendezvousServer::Start("127.0.0.1", 0, TestSecret());
    EXPECT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    for (int rank = 0; rank < 2; ++rank) {
      auto joined = Rendezvous::Join({.rank = rank,
                                      .world_size = 2,
                                      .host = "127.0.0.1",
                                      .port = server_->port(),
                                      .hosted_elsewhere = true,
                                      .secret = TestSecret(),
                                      .timeout = absl::Seconds(1)});
      EXPECT_TRUE(joined.ok()) << joined.status();
      ranks_.push_back(*std::move(joined));
    }
    parts_.resize(2);
    std::thread other([this] { Meet(1); });
    Meet(0);
    other.join();
  }
  void Meet(int rank) {
    std::vector<int> blind;
    auto met = WorkerParts::Meet(*ranks_[static_cast<size_t>(rank)], testing::TempDir(), blind);
    EXPECT_TRUE(met.ok()) << met.status();
    parts_[static_cast<size_t>(rank)] = *std::move(met);
  }
  absl::Status MeetAs(int rank, const std::string& where) {
    return parts_[static_cast<size_t>(rank)]->MeetRank(1, where);
  }

  std::unique_ptr<RendezvousServer> server_;
  std::vector<std::unique_ptr<Rendezvous>> ranks_;
  std::vector<std::unique_ptr<WorkerParts>> parts_;
};

TEST_F(WorkerPartsTest, Rank0WaitsOnceForAStoppedRankAndAgainAfterItContinues) {
  EXPECT_THAT(MeetAs(0, "step5").message(), HasSubstr("waited 1 s for rank 1"));
  EXPECT_THAT(MeetAs(0, "step10").message(), HasSubstr("waited 0 s for rank 1"));
  EXPECT_THAT(MeetAs(0, "step15").message(), HasSubstr("waited 0 s for rank 1"));

  EXPECT_THAT(MeetAs(1, "step5").message(), HasSubstr("waited 1 s for rank 1"));  // it was too late
  absl::Status met = absl::UnknownError("not met");
  WaitingThread rank0([&] { met = MeetAs(0, "step20"); });
  EXPECT_TRUE(MeetAs(1, "step20").ok());
  rank0.Join();
  EXPECT_TRUE(met.ok()) << met;

  EXPECT_THAT(MeetAs(0, "step25").message(), HasSubstr("waited 1 s for rank 1"));
  EXPECT_THAT(MeetAs(0, "step30").message(), HasSubstr("waited 0 s for rank 1"));
}

}  // namespace
}  // namespace psring
