// How a parameter server job fails: immediately, for all workers, with the name of the cause.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <latch>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/eventually.h"
#include "tests/ps_server/cluster.h"
#include "tests/ps_server/test_job.h"

namespace psring {
namespace {

using ::testing::HasSubstr;

// Whether the server has admitted this worker, without joining.
bool HasJoined(Cluster& cluster, int rank) {
  TestWorker probe(MakeJob(100, {10}), rank, cluster.NewClient());
  return absl::StrContains(MessageOf(probe.Start()), "already");
}

TEST(FailureTest, AWorkerWithADifferentJobIsRejectedAndTheOthersTrain) {
  for (const int first : {0, 1}) {
    const auto cluster = MakeCluster(2);
    const ServerJob job = MakeJob(2, {10});
    ForEachRank(2, [&](int rank) {
      if (rank != first) {
        ASSERT_TRUE(Eventually([&] { return HasJoined(*cluster, first); }));
        ServerJob other = job;
        other.optimizer.momentum = 0.5;
        TestWorker worker(other, rank, cluster->NewClient());
        EXPECT_THAT(MessageOf(worker.Start()),
                    HasSubstr(absl::StrCat("worker ", rank, " has another job than worker ", first,
                                           ": momentum is 0.5, not 0.9")));
      }
      TestWorker worker(job, rank, cluster->NewClient());
      ASSERT_EQ(worker.Start(), absl::OkStatus());
      ASSERT_EQ(worker.Step(0).status(), absl::OkStatus());
      EXPECT_LT(RelativeDistance(worker.weights, TrainAlone(job, 1)), 1e-6);
      EXPECT_EQ(worker.client->Leave(Soon()), absl::OkStatus());
    });
    EXPECT_EQ(cluster->server().WaitUntilOver(Soon()), absl::OkStatus());
  }
}

TEST(FailureTest, AMissingWorkerThatWasRejectedIsNamedWithTheReasonAtTheTimeout) {
  const auto cluster = MakeCluster(2, absl::Seconds(2));
  ServerJob job = MakeJob(2, {10});
  job.servers = 7;
  TestWorker rejected(job, 1, cluster->NewClient());
  EXPECT_THAT(MessageOf(rejected.Start()), HasSubstr("worker 1 takes this for server 0 of 7"));
  TestWorker worker(MakeJob(2, {10}), 0, cluster->NewClient());
  EXPECT_THAT(
      MessageOf(worker.Start()),
      HasSubstr("waited 2s for worker 1 to join; worker 1 was rejected: worker 1 takes this for server "
                "0 of 7; it is server 0 of 1"));
}

TEST(FailureTest, ATakenOrInvalidWorkerNumberIsRejectedWithoutHarm) {
  const ServerJob job = MakeJob(2, {10});
  const auto cluster = MakeCluster(2);
  std::latch rejected(2);
  // Two workers have number 0: the job waits for worker 1, which joins when one of them has been rejected.
  ForEachRank(4, [&](int i) {
    if (i == 3) {
      TestWorker invalid(job, 2, cluster->NewClient());
      EXPECT_THAT(MessageOf(invalid.Start()),
                  HasSubstr("worker 2 is out of range: this server has 2 workers"));
      rejected.count_down();
      return;
    }
    if (i == 1) rejected.wait();
    TestWorker worker(job, i == 1 ? 1 : 0, cluster->NewClient());
    const absl::Status started = worker.Start();
    if (i != 1 && !started.ok()) {
      EXPECT_THAT(MessageOf(started), HasSubstr("there is a worker 0 already"));
      rejected.count_down();
      return;
    }
    EXPECT_EQ(started, absl::OkStatus());
    EXPECT_EQ(worker.Step(0).status(), absl::OkStatus());
    EXPECT_EQ(worker.client->Leave(Soon()), absl::OkStatus());
  });
}

TEST(FailureTest, MissingWorkersAreNamedAtTheTimeout) {
  const auto cluster = MakeCluster(4, absl::Seconds(1));
  const ServerJob job = MakeJob(4, {10});
  ForEachRank(2, [&](int i) {
    TestWorker worker(job, 2 * i, cluster->NewClient());
    EXPECT_THAT(MessageOf(worker.Start()), HasSubstr("waited 1s for workers 1, 3 to join"));
  });
}

TEST(FailureTest, AServerWithoutWorkersGivesUp) {
  const auto cluster = MakeCluster(2, absl::Milliseconds(100));
  EXPECT_THAT(MessageOf(*cluster->server().WaitUntilOver(Soon())),
              HasSubstr("waited 100ms for workers 0, 1 to join"));
}

TEST(FailureTest, ASilentWorkerIsNamedAtTheTimeout) {
  const auto cluster = MakeCluster(3, absl::Seconds(1));
  const ServerJob job = MakeJob(3, {10, 10});
  StartWorkers(job, *cluster, [&](TestWorker& worker) {
    ASSERT_EQ(worker.Step(0).status(), absl::OkStatus());
    if (worker.rank == 1) {
      EXPECT_FALSE(cluster->server().WaitUntilOver(Soon())->ok());
    } else {
      EXPECT_THAT(MessageOf(worker.Step(1).status()),
                  HasSubstr("waited 1s for worker 1 to push bucket 0 of step 1"));
    }
  });
}

TEST(FailureTest, SlowWorkersAreNamedAtTheTimeout) {
  struct Case {
    const char* consistency;
    const char* error;
  };
  const Case cases[] = {{"backup:1", "waited 1s for workers 1, 2 to announce the gradient of step 1"},
                        {"ssp:1", "waited 1s for workers 1, 2 to push bucket 0 of step 1"}};
  ForEachRank(2, [&](int number) {  // at once, because they mostly wait
    const Case& c = cases[number];
    const auto cluster = MakeCluster(
        ServerOptions{.workers = 3, .timeout = absl::Seconds(1), .on_worker_loss = OnWorkerLoss::kStop});
    const ServerJob job = MakeJob(3, {10, 10}, {.consistency = c.consistency});
    std::latch stepped(3);
    StartWorkers(job, *cluster, [&](TestWorker& worker) {
      ASSERT_EQ(worker.Step(0).status(), absl::OkStatus());
      stepped.count_down();
      if (worker.rank > 0) {
        EXPECT_FALSE(cluster->server().WaitUntilOver(Soon())->ok());
        return;
      }
      stepped.wait();
      absl::Status status;
      for (int64_t step = 1; status.ok() && step < 9; ++step) status = worker.Step(step).status();
      EXPECT_THAT(MessageOf(status), HasSubstr(c.error));
    });
  });
}

TEST(FailureTest, ALostWorkerFailsTheJobIfLossesStopIt) {
  for (const std::string consistency : {"sync", "async", "ssp:1", "backup:1"}) {
    const auto cluster = MakeCluster(ServerOptions{.workers = 3, .on_worker_loss = OnWorkerLoss::kStop});
    const ServerJob job = MakeJob(3, {10}, {.consistency = consistency});
    std::latch started(3);
    StartWorkers(job, *cluster, [&](TestWorker& worker) {
      started.count_down();
      if (worker.rank == 2) {
        started.wait();
        return;  // destroys its client
      }
      absl::Status status;
      for (int64_t step = 0; status.ok(); ++step) status = worker.Step(step).status();
      EXPECT_THAT(MessageOf(status), HasSubstr("worker 2 was lost"));
      // The job stays failed.
      EXPECT_THAT(MessageOf(worker.Step(1).status()), HasSubstr("worker 2 was lost"));
      EXPECT_THAT(MessageOf(worker.Fetch()), HasSubstr("worker 2 was lost"));
    });
    EXPECT_THAT(MessageOf(*cluster->server().WaitUntilOver(Soon())), HasSubstr("worker 2 was lost"));
  }
}

// With trainer --pp the workers of a server are replicas.
TEST(FailureTest, ALostWorkerIsNamedByItsRankIfThatIsAnotherNumber) {
  const auto cluster =
      MakeCluster(ServerOptions{.workers = 2, .ranks = {1, 3}, .on_worker_loss = OnWorkerLoss::kStop});
  const ServerJob job = MakeJob(2, {10});
  std::latch started(2);
  StartWorkers(job, *cluster, [&](TestWorker& worker) {
    started.count_down();
    if (worker.rank == 1) {
      started.wait();
      return;  // destroys its client
    }
    absl::Status status;
    for (int64_t step = 0; status.ok(); ++step) status = worker.Step(step).status();
    EXPECT_THAT(MessageOf(status), HasSubstr("worker 1 (rank 3) was lost"));
  });
}

TEST(FailureTest, TheLossOfAWorkerBeforeTheStartFailsTheJob) {
  const auto cluster = MakeCluster(2);
  const ServerJob job = MakeJob(2, {10});
  TestWorker workers[] = {{job, 0, cluster->NewClient()}, {job, 0, cluster->NewClient()}};
  // The rejection of one shows that the other has joined and waits for worker 1.
  ForEachRank(2, [&](int i) {
    const std::string message = MessageOf(workers[i].Start());
    if (message == "enough") return;
    EXPECT_THAT(message, HasSubstr("there is a worker 0 already"));
    workers[1 - i].client->Abort(absl::CancelledError("enough"));
  });
  EXPECT_THAT(MessageOf(*cluster->server().WaitUntilOver(Soon())), HasSubstr("worker 0 was lost"));
}

TEST(FailureTest, AbortEndsAWaitingExchangeAndTheJobOfTheOthers) {
  const auto cluster = MakeCluster(2);
  const ServerJob job = MakeJob(2, {1000000});
  std::latch in_flight(1);
  StartWorkers(job, *cluster, [&](TestWorker& worker) {
    if (worker.rank == 1) {
      in_flight.wait();
      worker.client->Abort(absl::CancelledError("no more"));
      EXPECT_EQ(MessageOf(worker.Step(0).status()), "no more");
      return;
    }
    std::latch ended(1);
    worker.client->PushPull(worker.Of(job.buckets[0], 0, 1), [&](absl::StatusOr<ExchangeResult> result) {
      EXPECT_THAT(MessageOf(result.status()), HasSubstr("worker 1 was lost"));
      ended.count_down();
    });
    in_flight.count_down();
    ended.wait();
  });
}

TEST(FailureTest, APushOfAnUnexpectedStepNamesWorkerAndStep) {
  struct Case {
    int64_t second_step;
    const char* error;
  };
  for (const Case& c :
       {Case{7, "worker 1, bucket 0: worker 1 pushed step 7, from the future: its next one is 2"},
        Case{0, "worker 1, bucket 0: worker 1 pushed step 0, from the past: its next one is 2"}}) {
    const auto cluster = MakeCluster(ServerOptions{.workers = 2, .on_worker_loss = OnWorkerLoss::kStop});
    const ServerJob job = MakeJob(2, {10});
    StartWorkers(job, *cluster, [&](TestWorker& worker) {
      absl::Status status;
      for (int64_t step = 0; status.ok() && (worker.rank == 0 || step < 2); ++step)
        status = worker.Step(step).status();
      if (worker.rank == 1 && status.ok()) status = worker.ExchangeBucket(0, c.second_step).status();
      EXPECT_THAT(MessageOf(status), HasSubstr(c.error));
    });
  }
}

TEST(FailureTest, ASecondExchangeOfABucketInFlightIsRejected) {
  const auto cluster = MakeCluster(2);
  const ServerJob job = MakeJob(2, {10});
  StartWorkers(job, *cluster, [&](TestWorker& worker) {
    if (worker.rank == 0) {  // gets the error of worker 1
      EXPECT_FALSE(cluster->server().WaitUntilOver(Soon())->ok());
      return;
    }
    std::atomic<int> ended = 0;
    for (int64_t step = 0; step < 2; ++step) {
      worker.client->PushPull(worker.Of(job.buckets[0], step, 1), [&](absl::StatusOr<ExchangeResult> result) {
        EXPECT_THAT(MessageOf(result.status()), HasSubstr("has an exchange in flight"));
        ++ended;
      });
    }
    EXPECT_TRUE(Eventually([&] { return ended == 2; }));
    worker.client.reset();
  });
}

TEST(FailureTest, AJobThatHasEndedRejectsWorkers) {
  const auto cluster = MakeCluster(1);
  const ServerJob job = MakeJob(1, {10});
  TestWorker worker(job, 0, cluster->NewClient());
  ASSERT_EQ(worker.Start(), absl::OkStatus());
  ASSERT_EQ(worker.client->Leave(Soon()), absl::OkStatus());
  TestWorker late(job, 0, cluster->NewClient());
  EXPECT_THAT(MessageOf(late.Start()), HasSubstr("there is a worker 0 already"));
}

}  // namespace
}  // namespace psring
