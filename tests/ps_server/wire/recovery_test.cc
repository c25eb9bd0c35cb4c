// The other workers continue when a worker is lost or sends invalid gradients, and all workers continue when
// a server restarts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <latch>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/deadline.h"
#include "common/io/files.h"
#include "proto/checkpoint.pb.h"
#include "ps_server/wire/checkpoint_file.h"
#include "ps_server/wire/service.h"
#include "tests/eventually.h"
#include "tests/ps_server/cluster.h"
#include "tests/ps_server/direct_client.h"
#include "tests/ps_server/test_job.h"
#include "tests/test_folder.h"
#include "tests/test_secret.h"
#include "tests/waiting_thread.h"

namespace psring {
namespace {

using ::testing::AnyOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

namespace fs = std::filesystem;

ServerOptions Continuing(int workers) {
  return {.workers = workers, .timeout = absl::Seconds(20), .on_worker_loss = OnWorkerLoss::kContinue};
}

TEST(RecoveryTest, AWorkerWithANonFiniteGradientIsRemovedAndTheOthersContinue) {
  for (const std::string consistency : {"sync", "async"}) {
    for (const float poison :
         {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
      const auto cluster = MakeCluster(Continuing(2));
      // Two chunks: the first one is already in the sum.
      const ServerJob job = MakeJob(2, {kChunkBytes / sizeof(float) + 100}, {.consistency = consistency});
      StartWorkers(job, *cluster, [&](TestWorker& worker) {
        if (worker.rank == 1) {
          worker.gradient[kChunkBytes / sizeof(float) + 7] = poison;
          EXPECT_THAT(
              MessageOf(worker.ExchangeAgain(0, 0).status()),
              HasSubstr("worker 1, bucket 0: the gradient of step 0 is NaN or infinite at element 262151"));
          return;
        }
        ASSERT_EQ(MessageOf(worker.Steps(0, 3)), "OK");
        ServerJob alone = job;
        alone.workers = 1;
        EXPECT_EQ(worker.weights, TrainAlone(alone, 3));
        EXPECT_EQ(worker.client->Leave(Soon()), absl::OkStatus());
      });
      EXPECT_EQ(MessageOf(*cluster->server().WaitUntilOver(Soon())), "OK");
      EXPECT_THAT(cluster->server().stats().lost_workers, ElementsAre(1));
    }
  }
}

TEST(RecoveryTest, ANonFiniteGradientIsAcceptedIfTheCheckIsDisabled) {
  const auto cluster = MakeCluster(ServerOptions{.workers = 1, .reject_nonfinite = false});
  TestWorker worker(MakeJob(1, {10}), 0, cluster->NewClient());
  ASSERT_EQ(worker.Start(), absl::OkStatus());
  worker.gradient[3] = std::numeric_limits<float>::infinity();
  EXPECT_EQ(MessageOf(worker.ExchangeAgain(0, 0).status()), "OK");
}

// Replaces the worker's client, and joins again when the server has noticed that the worker is lost. Returns
// the step to begin with.
int64_t Rejoin(std::unique_ptr<TestWorker>& worker, Cluster& cluster) {
  const ServerJob job = worker->job;
  const int rank = worker->rank;
  worker.reset();
  while (true) {
    worker = std::make_unique<TestWorker>(job, rank, cluster.NewClient());
    const absl::Status joined = worker->Start();
    if (joined.ok()) return worker->client->status().start_step;
    EXPECT_THAT(MessageOf(joined), AnyOf(HasSubstr("already"), HasSubstr("join again")));
  }
}

// Meanwhile the others are at random points of their steps.
TEST(RecoveryTest, AWorkerCanRejoinManyTimesWhileTheOthersTrain) {
  for (const std::string consistency : {"sync", "async", "ssp:1", "backup:1"}) {
    SCOPED_TRACE(consistency);
    const auto cluster = MakeCluster(Continuing(3));
    const ServerJob job = MakeJob(3, std::vector<size_t>(40, 3), {.consistency = consistency});
    constexpr int64_t kRejoins = 30;
    std::atomic<int> joins = 0;
    ForEachRank(3, [&](int rank) {
      auto worker = std::make_unique<TestWorker>(job, rank, cluster->NewClient());
      ASSERT_EQ(worker->Start(), absl::OkStatus());
      int64_t step = 0;
      while (rank != 2 && joins < kRejoins) ASSERT_EQ(MessageOf(worker->Advance(step)), "OK") << rank;
      while (rank == 2 && ++joins < kRejoins) {
        step = Rejoin(worker, *cluster);
        ASSERT_EQ(MessageOf(worker->Advance(step)), "OK");
      }
      EXPECT_EQ(MessageOf(worker->client->Leave(Soon())), "OK");
    });
    joins = kRejoins;  // ends the loops after a failure
    EXPECT_EQ(MessageOf(*cluster->server().WaitUntilOver(Soon())), "OK");
    EXPECT_EQ(cluster->server().stats().lost_workers.size(), kRejoins - 1);
  }
}

// Worker 1 is lost after its push, when worker 0 has not pushed yet, and joins again before worker 0 pushes.
// The push stays in the sum (sync) or is sent again (backup).
TEST(RecoveryTest, AWorkerCanRejoinInTheStepThatItHadPushed) {
  for (const std::string consistency : {"sync", "backup:0"}) {
    SCOPED_TRACE(consistency);
    const auto cluster = MakeCluster(Continuing(2));
    const ServerJob job = MakeJob(2, {1000, 300}, {.consistency = consistency});
    constexpr int64_t kSteps = 4;
    const auto train = [](TestWorker& worker, int64_t step) {
      for (; step < kSteps; ++step) ASSERT_EQ(MessageOf(worker.Step(step).status()), "OK");
      EXPECT_EQ(worker.client->Leave(Soon()), absl::OkStatus());
    };
    TestWorker other(job, 0, cluster->NewClient());
    {
      // Does everything in order on one thread, so that Abort comes after the push.
      auto client = MakeDirectPsClient(cluster->server());
      OneServerClient* const direct = client.get();
      const auto lose = [direct] { direct->Abort(absl::CancelledError("the worker dies")); };
      client->SetListener([&](const message::ToWorker& message) {
        if (std::holds_alternative<message::Admitted>(message)) lose();  // the push is sent before
      });
      TestWorker dies(job, 1, std::move(client));
      ForEachRank(2, [&](int rank) { ASSERT_EQ(MessageOf((rank == 0 ? other : dies).Start()), "OK"); });
      std::latch ended(static_cast<std::ptrdiff_t>(job.buckets.size()));
      for (const Bucket& bucket : job.buckets) {
        dies.gradient = Gradient(job, 1, 0);
        direct->PushPull(dies.Of(bucket, 0, Samples(1, 0)),
                         [&](const absl::StatusOr<ExchangeResult>&) { ended.count_down(); });
      }
      if (consistency == "sync") lose();
      ended.wait();
    }
    const auto lost = [&] { return cluster->server().stats().lost_workers; };
    ASSERT_TRUE(Eventually([&] { return !lost().empty(); }));
    TestWorker again(job, 1, MakeDirectPsClient(cluster->server()));
    WaitingThread rejoins([&] {
      ASSERT_EQ(MessageOf(again.Start()), "OK");
      train(again, again.client->status().start_step);
    });
    train(other, 0);
    rejoins.Join();
    EXPECT_EQ(MessageOf(*cluster->server().WaitUntilOver(Soon())), "OK");
    EXPECT_THAT(lost(), ElementsAre(1));
    EXPECT_EQ(other.weights, TrainAlone(job, kSteps));
    EXPECT_EQ(again.weights, other.weights);
  }
}

TEST(RecoveryTest, IncompleteCheckpointsAreSkippedAndTheNewestTwoAreKept) {
  const TestFolder folder;
  const auto store = *OpenCheckpointFolder(folder.path(), 3);
  EXPECT_FALSE((*store->Load()).has_value());
  Checkpoint checkpoint{.job = MakeJob(2, {10, 5}), .values = std::vector<float>(30, 1.5f)};
  checkpoint.buckets = {{.version = 4, .left = {false, true}}, {.version = 4, .left = {false, true}}};
  checkpoint.samples = {17, 18};
  for (checkpoint.step = 2; checkpoint.step <= 4; ++checkpoint.step) {
    checkpoint.values[7] = static_cast<float>(checkpoint.step);
    ASSERT_EQ(store->Save(checkpoint), absl::OkStatus());
  }
  EXPECT_FALSE(fs::exists(folder.path() + "/server3-step2.checkpoint"));
  const std::string newest = folder.path() + "/server3-step4.checkpoint";
  auto loaded = *store->Load();
  ASSERT_TRUE(loaded.has_value());
  EXPECT_EQ(loaded->step, 4);
  EXPECT_EQ(loaded->values[7], 4);
  EXPECT_EQ(loaded->samples, checkpoint.samples);
  EXPECT_EQ(loaded->buckets[1].left, checkpoint.buckets[1].left);
  EXPECT_EQ(RequireSameJob(loaded->job, checkpoint.job, 0), absl::OkStatus());
  // Truncated, then with one bit flipped.
  const std::string whole = *ReadFile(newest);
  ASSERT_EQ(WriteFile(newest, whole.substr(0, whole.size() - 20)), absl::OkStatus());
  EXPECT_EQ((*store->Load())->step, 3);
  std::string flipped = whole;
  flipped[flipped.size() - 40] ^= 1;
  ASSERT_EQ(WriteFile(newest, flipped), absl::OkStatus());
  EXPECT_EQ((*store->Load())->step, 3);
}

// Another user's link in a folder that all can write must not make the server overwrite one of its own files.
TEST(RecoveryTest, ALinkUnderTheTemporaryNameIsNotFollowed) {
  const TestFolder folder;
  const auto store = *OpenCheckpointFolder(folder.path(), 0);
  const std::string victim = folder.path() + "/victim";
  ASSERT_EQ(WriteFile(victim, "precious"), absl::OkStatus());
  fs::create_symlink(victim, folder.path() + "/server0-step2.checkpoint.part");
  const absl::Status saved = store->Save({.job = MakeJob(2, {10}), .step = 2});
  EXPECT_THAT(MessageOf(saved), HasSubstr("server0-step2.checkpoint.part"));
  EXPECT_EQ(*ReadFile(victim), "precious");
}

TEST(RecoveryTest, ACheckpointWithAnImpossibleCountIsDamaged) {
  const TestFolder folder;
  const auto store = *OpenCheckpointFolder(folder.path(), 0);
  ASSERT_EQ(store->Save({.job = MakeJob(2, {10}), .step = 2}), absl::OkStatus());
  const std::string path = folder.path() + "/server0-step2.checkpoint", magic = "psring checkpoint 1\n";
  const std::string whole = *ReadFile(path);
  uint64_t length = 0;
  std::memcpy(&length, whole.data() + magic.size(), sizeof(length));
  proto::Checkpoint header;
  ASSERT_TRUE(header.ParseFromString(whole.substr(magic.size() + sizeof(length), length)));
  header.set_values(uint64_t{1} << 62);  // times 4 bytes: 0
  const std::string changed = header.SerializeAsString();
  length = changed.size();
  const std::string bytes(reinterpret_cast<const char*>(&length), sizeof(length));
  ASSERT_EQ(WriteFile(path, absl::StrCat(magic, bytes, changed, std::string(16, 'h'))), absl::OkStatus());
  EXPECT_THAT(MessageOf(store->Load().status()), HasSubstr("is damaged"));
}

// A server that restarts at another port, as after a kill.
class RestartingServer {
 public:
  explicit RestartingServer(int workers, OnWorkerLoss on_worker_loss = OnWorkerLoss::kByMode,
                            absl::Duration timeout = absl::Seconds(20))
      : workers_(workers),
        on_worker_loss_(on_worker_loss),
        timeout_(timeout),
        store_(*OpenCheckpointFolder(folder_.path(), 0)) {
    Begin();
  }

  void Begin() {
    auto server = std::make_unique<ParameterServer>(*device_, ServerOptions{.workers = workers_,
                                                                            .timeout = timeout_,
                                                                            .on_worker_loss = on_worker_loss_,
                                                                            .checkpoints = store_.get(),
                                                                            .checkpoint_every = 2});
    if (auto checkpoint = *store_->Load(); checkpoint.has_value()) {
      ASSERT_EQ(server->Restore(*checkpoint), absl::OkStatus());
    }
    auto service = *Service::Start(*server, {.secret = TestSecret()});
    MutexLock lock(mutex_);
    server_ = std::move(server);
    service_ = std::move(service);
  }
  // Clients only notice that their connections are closed.
  void Stop() {
    std::unique_ptr<Service> service;
    failed_searches_ = 0;
    {
      MutexLock lock(mutex_);
      service = std::move(service_);
    }
    ASSERT_TRUE(service->Stop(MonotonicNow()));
  }
  std::unique_ptr<PsClient> NewClient() {
    return MakeGrpcPsClient(*Find(), {.secret = TestSecret(), .find_again = [this] { return Find(); }});
  }
  ParameterServer& server() { return *server_; }
  // Waits until a client has searched for the server in vain since its last death.
  void AwaitFailedSearch() const { failed_searches_.wait(0); }

 private:
  absl::StatusOr<std::string> Find() {
    MutexLock lock(mutex_);
    if (service_ == nullptr) {
      ++failed_searches_;
      failed_searches_.notify_all();
      return absl::NotFoundError("the server is down");
    }
    return service_->address();
  }

  const int workers_;
  const OnWorkerLoss on_worker_loss_;
  const absl::Duration timeout_;
  const TestFolder folder_;
  std::unique_ptr<Device> device_ = MakeCpuDevice();
  std::unique_ptr<CheckpointStore> store_;
  std::atomic<int> failed_searches_ = 0;
  Mutex mutex_;
  std::unique_ptr<ParameterServer> server_;
  std::unique_ptr<Service> service_;
};

TEST(RecoveryTest, SeveralServersWithBackupWorkersCannotContinueAndSuggestARemedy) {
  ServerJob job = MakeJob(2, {10}, {.consistency = "backup:1"});
  job.servers = 2;
  const std::unique_ptr<Device> device = MakeCpuDevice();
  ParameterServer server(*device, {.workers = 2, .servers = 2});
  EXPECT_THAT(MessageOf(server.Restore({.job = job})), HasSubstr("start it again from a checkpoint"));
}

TEST(RecoveryTest, AfterServerRestartsTheWeightsEqualAnUninterruptedRun) {
  RestartingServer restarting(2);
  const ServerJob job = MakeJob(2, {1000, 300}, {.deterministic = true});
  constexpr int64_t kSteps = 40;
  StepOfTheFastest fastest;
  constexpr std::array<int64_t, 2> kDeaths = {5, 23};  // One step after a checkpoint.
  std::atomic<int> deaths_left = 2;
  std::thread deaths([&] {
    for (const int64_t at : kDeaths) {
      fastest.Await(at);
      restarting.Stop();
      restarting.AwaitFailedSearch();
      restarting.Begin();
      --deaths_left;
      deaths_left.notify_all();
    }
  });
  std::atomic<int> rollbacks = 0;
  ForEachRank(2, [&](int rank) {
    TestWorker worker(job, rank, restarting.NewClient());
    ASSERT_EQ(MessageOf(worker.Start()), "OK");
    for (int64_t step = 0; step < kSteps;) {
      // Only worker 0 is in this step when the server dies.
      for (int left; rank == 1 && (left = deaths_left) > 0 && step == kDeaths[2 - left];) {
        deaths_left.wait(left);
      }
      const int64_t before = step;
      ASSERT_EQ(MessageOf(worker.Advance(step)), "OK");
      rollbacks += step <= before ? 1 : 0;
      fastest.Reach(step);
    }
    EXPECT_EQ(worker.weights, TrainAlone(job, kSteps));
    EXPECT_EQ(MessageOf(worker.client->Leave(Soon())), "OK");
  });
  deaths.join();
  EXPECT_EQ(rollbacks, 4) << "two workers, two deaths";
  EXPECT_EQ(MessageOf(*restarting.server().WaitUntilOver(Soon())), "OK");
  EXPECT_EQ(restarting.server().stats().restarts, 2);
  const int64_t pushes = 2 * kSteps * static_cast<int64_t>(job.buckets.size());
  EXPECT_EQ(restarting.server().stats().pushes, pushes) << "as an uninterrupted run";
}

// Synchronous: the restarted server waits for all workers until the timeout.
TEST(RecoveryTest, AWorkerThatDiesWithItsServerIsLostAfterTheTimeout) {
  RestartingServer restarting(3, OnWorkerLoss::kContinue, absl::Seconds(3));
  const ServerJob job = MakeJob(3, {1000, 300});
  constexpr int64_t kSteps = 10;
  std::latch ready(3), restarted(1);
  ForEachRank(3, [&](int rank) {
    auto worker = std::make_unique<TestWorker>(job, rank, restarting.NewClient());
    ASSERT_EQ(MessageOf(worker->Start()), "OK");
    for (int64_t step = 0; step < kSteps;) {
      if (step == 5 && !restarted.try_wait()) {
        ready.arrive_and_wait();
        if (rank == 2) {
          restarting.Stop();
          worker.reset();
          restarting.Begin();
          restarted.count_down();
          return;
        }
        restarted.wait();
      }
      ASSERT_EQ(MessageOf(worker->Advance(step)), "OK");
    }
    EXPECT_EQ(MessageOf(worker->client->Leave(Soon())), "OK");
  });
  EXPECT_EQ(MessageOf(*restarting.server().WaitUntilOver(Soon())), "OK");
  EXPECT_THAT(restarting.server().stats().lost_workers, ElementsAre(2));
}

}  // namespace
}  // namespace psring
