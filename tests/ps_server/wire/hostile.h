// A parameter server process, and a job whose third member is hostile.
#pragma once

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/deadline.h"
#include "common/net/address.h"
#include "tests/ps_server/server_process.h"
#include "tests/ps_server/test_job.h"
#include "tests/ps_server/wire/stranger.h"
#include "tests/test_secret.h"

namespace psring {

inline constexpr int kValid = 2;  // workers 0 and 1; hostile clients join as worker 2
inline constexpr int kHostile = 2;

inline ServerJob HostileJob(const std::string& consistency) {
  return MakeJob(kValid + 1, {1000, (kChunkBytes + kTail) / sizeof(float)},
                 {.consistency = consistency, .deterministic = consistency == "sync"});
}

// A server process.
class ServerTest : public ::testing::Test {
 protected:
  void Serve(int workers, int timeout_s = 30) {
    server_ = std::make_unique<Child>(
        ServerCommand(PS_SERVER_BINARY, *store_, workers,
                      {"--on_worker_loss", "continue", "--worker_timeout", "0", "--timeout",
                       absl::StrCat(timeout_s), "--debug.staging_mb", "8"}));
    address_ = AddressIn(*store_);
  }
  int64_t MemoryKb(const std::string& which) const {
    std::ifstream status(absl::StrCat("/proc/", server_->pid(), "/status"));
    for (std::string word; status >> word;) {
      int64_t kb = 0;
      if (word == which + ":" && status >> kb) return kb;
    }
    return 0;
  }

  // The server has not needed much more memory than `before`, in KiB.
  void ExpectNoGrowth(int64_t before) const {
    EXPECT_LT(MemoryKb("VmHWM"), before + (64 << 10)) << "KiB; before it was " << before;
  }

  std::unique_ptr<RendezvousServer> store_ = NewStore();
  std::unique_ptr<Child> server_;
  std::string address_;
};

// Two valid workers that train until the test stops them.
class HostileTest : public ServerTest, public ::testing::WithParamInterface<std::string> {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(Serve(job_.workers));
    valid_ = std::thread([this] { ForEachRank(kValid, [this](int rank) { Train(rank); }); });
    // The job starts when worker 2 has joined.
    Stranger third(address_);
    third.SendJoin(kHostile, job_);
    ASSERT_TRUE(third.IsWelcome()) << third.End();
  }
  void TearDown() override {
    Stop();
    if (HasFailure()) return;
    EXPECT_EQ(server_->Wait(), 0) << server_->both();
  }

  void Train(int rank) {
    // One uses shared memory, one gRPC or its own connection.
    TestWorker worker(job_, rank,
                      MakeGrpcPsClient(address_, {.secret = TestSecret(),
                                                  .payload = rank == 0 ? Payload::kGrpc : Payload::kAuto,
                                                  .own_connection = GetParam() == "async"}));
    ASSERT_EQ(worker.Start(), absl::OkStatus());
    for (int64_t step = 0; step < last_; ++step) {
      ASSERT_EQ(worker.Step(step).status(), absl::OkStatus()) << "worker " << rank << ", step " << step;
      ++steps_made_[rank];
      absl::SleepFor(absl::Milliseconds(1));  // leaves the processor to the others
    }
    EXPECT_EQ(worker.client->Leave(Soon()), absl::OkStatus());
    weights_[rank] = worker.weights;
  }
  void Stop() {
    if (!valid_.joinable()) return;
    last_ = std::max(steps_made_[0].load(), steps_made_[1].load()) + 5;
    valid_.join();
  }
  // Ends the job. In a synchronous one the hostile worker's pushes are not in the weights.
  void ExpectWeightsOfTheOthers() {
    Stop();
    if (GetParam() != "sync") return;
    ServerJob valid = job_;
    valid.workers = kValid;
    EXPECT_EQ(weights_[0], TrainAlone(valid, last_));
    EXPECT_EQ(weights_[1], weights_[0]);
  }
  // Each valid worker makes another two steps.
  void ExpectOthersContinue() {
    for (int rank = 0; rank < kValid; ++rank) {
      const int64_t before = steps_made_[rank];
      const MonotonicTime deadline = Soon();
      while (steps_made_[rank] < before + 2 && MonotonicNow() < deadline)
        absl::SleepFor(absl::Milliseconds(1));
      ASSERT_GE(steps_made_[rank], before + 2) << "worker " << rank << " makes no progress";
    }
  }
  // Joins as worker 2, when the server has noticed that the previous one is lost.
  std::unique_ptr<Stranger> Joined() {
    for (const MonotonicTime deadline = Soon(); MonotonicNow() < deadline;) {
      auto stranger = std::make_unique<Stranger>(address_);
      stranger->SendJoin(kHostile, job_);
      if (stranger->IsWelcome()) return stranger;
      EXPECT_THAT(stranger->End(), ::testing::AnyOf(::testing::HasSubstr("there is a worker 2 already"),
                                                    ::testing::HasSubstr("worker 2 is being removed")));
      absl::SleepFor(absl::Milliseconds(5));
    }
    ADD_FAILURE() << "worker 2 was never admitted";
    return nullptr;
  }
  int OpenDescriptors() const {
    int open = 0;
    for (const auto& entry :
         std::filesystem::directory_iterator(absl::StrCat("/proc/", server_->pid(), "/fd")))
      open += !entry.path().empty();
    return open;
  }
  // A connection that sends only these bytes.
  int Connect(const std::string& bytes) const {
    const int port = ParseAddress(address_).value_or(HostPort()).port;
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in to{.sin_family = AF_INET, .sin_port = htons(static_cast<uint16_t>(port))};
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(fd, reinterpret_cast<const sockaddr*>(&to), sizeof(to)), 0);
    if (!bytes.empty()) (void)!send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    return fd;
  }

  const ServerJob job_ = HostileJob(GetParam());
  std::thread valid_;
  std::atomic<int64_t> last_{std::numeric_limits<int64_t>::max()};
  std::atomic<int64_t> steps_made_[kValid] = {};
  std::vector<float> weights_[kValid];
};

}  // namespace psring
