#include "trainer/checkpoints/worker_parts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "common/rendezvous/rendezvous.h"
#include "tests/ring_worker/fake_rendezvous.h"
#include "tests/test_folder.h"
#include "tests/test_secret.h"
#include "tests/waiting_thread.h"

namespace psring {
namespace {

using testing::HasSubstr;
namespace fs = std::filesystem;

// Ranks 0 and 1 of one store, which wait 1 s.
class WorkerPartsTest : public testing::Test {
 protected:
  WorkerPartsTest() {
    auto server = RendezvousServer::Start("127.0.0.1", 0, TestSecret()).value();
    server_ = std::move(server);
    for (int rank = 0; rank < 2; ++rank) {
      auto joined = Rendezvous::Join({.rank = rank,
                                      .world_size = 2,
                                      .host = "127.0.0.1",
                                      .port = server_->port(),
                                      .hosted_elsewhere = true,
                                      .secret = TestSecret(),
                                      .timeout = absl::Seconds(1)})
                        .value();
      ranks_.push_back(std::move(joined));
    }
    parts_.resize(2);
    std::thread other([this] { Meet(1); });
    Meet(0);
    other.join();
  }
  void Meet(int rank) {
    std::vector<int> blind;
    auto met = WorkerParts::Meet(*ranks_[static_cast<size_t>(rank)], testing::TempDir(), blind).value();
    parts_[static_cast<size_t>(rank)] = std::move(met);
  }
  absl::Status MeetAs(int rank, const std::string& where) {
    return parts_[static_cast<size_t>(rank)]->MeetRank(1, where);
  }

  std::unique_ptr<RendezvousServer> server_;
  std::vector<std::unique_ptr<Rendezvous>> ranks_;
  std::vector<std::unique_ptr<WorkerParts>> parts_;
};

TEST_F(WorkerPartsTest, Rank0WaitsOnceForAStoppedRankAndAgainAfterItContinues) {
  EXPECT_THAT(MeetAs(0, "step5").message(), HasSubstr("waited 0.5 s for rank 1"));
  EXPECT_THAT(MeetAs(0, "step10").message(), HasSubstr("waited 0 s for rank 1"));
  EXPECT_THAT(MeetAs(0, "step15").message(), HasSubstr("waited 0 s for rank 1"));

  EXPECT_THAT(MeetAs(1, "step5").message(), HasSubstr("waited 0.5 s for rank 1"));  // it was too late
  absl::Status met = absl::UnknownError("not met");
  WaitingThread rank0([&] { met = MeetAs(0, "step20"); });
  EXPECT_TRUE(MeetAs(1, "step20").ok());
  rank0.Join();
  EXPECT_TRUE(met.ok()) << met;

  EXPECT_THAT(MeetAs(0, "step25").message(), HasSubstr("waited 0.5 s for rank 1"));
  EXPECT_THAT(MeetAs(0, "step30").message(), HasSubstr("waited 0 s for rank 1"));
}

// What rank 1 does if rank 0, which another machine may control, names the folder of parts `named`.
class NamedFolderTest : public testing::Test {
 protected:
  NamedFolderTest() {
    fs::create_directories(top_ / "own");
    fs::create_directories(top_ / "foreign");
  }

  // Whether rank 1 saves its residual; it must not write outside its own folder.
  bool SavesIn(const std::string& named) {
    const auto store = std::make_shared<FakeStore>();
    FakeRendezvous rank0(store, 0, 2), rank1(store, 1, 2);
    std::vector<int> blind;
    WaitingThread other([&] {
      auto met = WorkerParts::Meet(rank1, (top_ / "own").string(), blind).value();
      EXPECT_TRUE(met->Leave("step5", {.next = 5, .residual = "residual"}).ok());
    });
    EXPECT_TRUE(rank0.Exchange("checkpoint/folder", named).ok());
    EXPECT_TRUE(rank0.Exchange("checkpoint/folder seen", "sees").ok());
    other.Join();
    EXPECT_TRUE(fs::is_empty(top_ / "foreign"));
    return std::find(blind.begin(), blind.end(), 1) == blind.end();
  }
  const TestFolder folder_;
  const fs::path top_ = folder_.path();
};

TEST_F(NamedFolderTest, IsWrittenOnlyWithinTheRanksOwn) {
  fs::create_directories(top_ / "own" / "workers-aB3dEf");
  EXPECT_TRUE(SavesIn("workers-aB3dEf"));
  EXPECT_TRUE(fs::exists(top_ / "own" / "workers-aB3dEf" / "step5-worker1.safetensors"));
  for (const std::string& named :
       {(top_ / "foreign").string(), std::string("../foreign"), std::string("workers-/../.."), std::string(),
        std::string("workers-missin")}) {
    EXPECT_FALSE(SavesIn(named)) << named;
  }
}

TEST_F(NamedFolderTest, MayNotLeadElsewhere) {
  fs::create_directory_symlink(top_ / "foreign", top_ / "own" / "workers-aB3dEf");
  EXPECT_FALSE(SavesIn("workers-aB3dEf"));

  fs::create_directories(top_ / "own" / "workers-Second");
  fs::create_symlink(top_ / "foreign" / "file",
                     top_ / "own" / "workers-Second" / "step5-worker1.safetensors");
  EXPECT_TRUE(SavesIn("workers-Second"));
}

}  // namespace
}  // namespace psring
