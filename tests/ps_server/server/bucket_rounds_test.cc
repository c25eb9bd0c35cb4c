#include "ps_server/server/bucket_rounds.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "common/device_factory/make_device.h"
#include "common/device_factory/make_ops.h"
#include "ps_server/server/bucket_receiver.h"
#include "ps_server/server/clipping.h"
#include "tests/ps_server/server/server_fixture.h"
#include "tests/ps_server/test_job.h"

namespace psring {
namespace {

constexpr size_t kElements = 100;

class BucketRoundsTest : public ::testing::Test {
 protected:
  void Begin(ServerJob job) {
    job_ = std::move(job);
    shard_ = *ParameterShard::Create(job_, *device_);
    workers_ = std::make_unique<WorkerStream[]>(static_cast<size_t>(job_.workers));
    for (int i = 0; i < job_.workers; ++i) workers_[i].pushes.resize(job_.buckets.size());
    checkpointing_.Begin(false, job_.workers, job_.buckets.size());
    rounds_ = std::make_unique<BucketRounds>(job_, *shard_, workers_.get(), checkpointing_, nullptr, nullptr);
    lane_.ops = *MakeUpdateOps(*device_);
    lane_.stream = device_->NewStream(StreamKind::kCompute, "test");
  }
  ServerJob Job(int workers, const std::string& consistency) {
    return MakeJob(workers, {kElements, kElements}, {.consistency = consistency});
  }
  // A complete push of the bucket with all elements `value`.
  absl::Status Push(int worker, int bucket, int64_t step, float value = 1) {
    const message::Gradient chunk{.bucket = bucket, .step = step, .samples = 1};
    PSRING_RETURN_IF_ERROR(rounds_->MayBegin(worker, chunk).status());
    PSRING_RETURN_IF_ERROR(shard_->BeginPush(worker, bucket, step).status());
    workers_[worker].pushes[bucket] = {.step = step, .samples = 1};
    const std::vector<float> gradient(kElements, value);
    const Bytes bytes = std::as_bytes(std::span(gradient));
    PSRING_RETURN_IF_ERROR(shard_->AddChunk(worker, bucket, 0, {&bytes, 1}).status());
    workers_[worker].pushes[bucket].high_water = bytes.size();
    return rounds_->OnPush(worker, bucket, lane_, replies_);
  }
  // The answers since the last call: worker, bucket, version.
  std::vector<std::tuple<int, int, int64_t>> TakeAnswers() {
    std::vector<std::tuple<int, int, int64_t>> answers;
    for (const auto& [worker, reply] : std::exchange(replies_, {})) {
      if (const auto* answer = std::get_if<message::Answer>(&reply.message)) {
        answers.emplace_back(worker, answer->bucket, answer->version);
      }
    }
    return answers;
  }
  using Answers = std::vector<std::tuple<int, int, int64_t>>;

  std::unique_ptr<Device> device_ = *MakeDevice("cpu");
  ServerJob job_;
  std::unique_ptr<ParameterShard> shard_;
  std::unique_ptr<WorkerStream[]> workers_;
  Checkpointing checkpointing_{nullptr, 0, [](const absl::Status&) {}};
  std::unique_ptr<BucketRounds> rounds_;
  Lane lane_;
  Replies replies_;
};

TEST_F(BucketRoundsTest, ASynchronousUpdateAnswersAllWorkersOfTheBucket) {
  Begin(Job(2, "sync"));
  ASSERT_EQ(Push(0, 0, 0), absl::OkStatus());
  EXPECT_EQ(TakeAnswers(), Answers{});
  EXPECT_TRUE(rounds_->IsUnanswered(0, 0, 0));
  EXPECT_EQ(rounds_->WaitsFor().what, "worker 1 to push bucket 0 of step 0");
  ASSERT_EQ(Push(1, 0, 0), absl::OkStatus());
  EXPECT_EQ(TakeAnswers(), (Answers{{0, 0, 1}, {1, 0, 1}}));
  EXPECT_FALSE(rounds_->IsUnanswered(0, 0, 0));
  EXPECT_EQ(rounds_->WaitsFor().what, "");
}

TEST_F(BucketRoundsTest, ClippingAnswersWhenAllBucketsAreReduced) {
  ServerJob job = Job(1, "sync");
  job.clip_norm = 1;
  Begin(job);
  ASSERT_EQ(Push(0, 0, 0), absl::OkStatus());
  EXPECT_EQ(TakeAnswers(), Answers{});
  EXPECT_FALSE(rounds_->Save()->has_value()) << "an update is decided and not made";
  ASSERT_EQ(Push(0, 1, 0), absl::OkStatus());
  EXPECT_EQ(TakeAnswers(), (Answers{{0, 0, 1}, {0, 1, 1}}));
}

TEST_F(BucketRoundsTest, WithSeveralServersUpdatesWaitForTheNorm) {
  ServerJob job = Job(1, "sync");
  job.clip_norm = 1;
  job.servers = 2;
  Begin(job);
  for (const int bucket : {0, 1}) ASSERT_EQ(Push(0, bucket, 0), absl::OkStatus());
  ASSERT_EQ(replies_.size(), 1u);
  const auto part = std::get<message::NormPart>(replies_.front().second.message);
  EXPECT_EQ(part.sum_of_squares, 2.0 * kElements);
  replies_.clear();
  ASSERT_EQ(rounds_->OnNormTotal({.step = 0, .sum_of_squares = 4}, lane_, replies_), absl::OkStatus());
  EXPECT_EQ(TakeAnswers().size(), 2u);
  ASSERT_EQ(rounds_->OnNormTotal({.step = 0, .sum_of_squares = 4}, lane_, replies_), absl::OkStatus());
  EXPECT_EQ(TakeAnswers(), Answers{}) << "the first total is used";
}

TEST_F(BucketRoundsTest, TheLossOfAWorkerInTheMiddleOfAPushResetsTheBucket) {
  Begin(Job(2, "sync"));
  ASSERT_EQ(Push(0, 0, 0), absl::OkStatus());
  workers_[1].pushes[0] = {.step = 0, .samples = 1, .high_water = 4};  // part of it is in the sum
  ASSERT_EQ(rounds_->OnLost(1, lane_, replies_), absl::OkStatus());
  ASSERT_EQ(replies_.size(), 2u);
  EXPECT_EQ(std::get<message::Reset>(replies_.front().second.message).resets, 1u);
  replies_.clear();
  EXPECT_FALSE(rounds_->IsUnanswered(0, 0, 0));
  EXPECT_FALSE(rounds_->MayBegin(0, {.step = 0}).ok()) << "for the sum before the reset";
  workers_[0].pushes[0] = {};
  EXPECT_TRUE(rounds_->MayBegin(0, {.step = 0, .resets = 1}).ok());
}

TEST_F(BucketRoundsTest, BackupWorkersAreAdmittedInTheOrderOfTheirAnnouncements) {
  Begin(Job(2, "backup:1"));
  const auto first = rounds_->OnAnnounce(1, {.step = 0}, lane_, replies_);
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_TRUE(first->admitted);
  const auto second = rounds_->OnAnnounce(0, {.step = 0}, lane_, replies_);
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_FALSE(second->admitted);
  replies_.clear();
  for (const int bucket : {0, 1}) ASSERT_EQ(Push(1, bucket, 0), absl::OkStatus());
  EXPECT_EQ(TakeAnswers().size(), 4u) << "the dropped worker gets the weights too";
}

TEST_F(BucketRoundsTest, AnAnnouncementInASynchronousJobIsRejected) {
  Begin(Job(1, "sync"));
  EXPECT_FALSE(rounds_->OnAnnounce(0, {.step = 0}, lane_, replies_).ok());
}

TEST_F(BucketRoundsTest, TheReceiverTakesEachPushOnce) {
  Begin(Job(1, "sync"));
  BucketReceiver receiver({.job = job_,
                           .incarnation = 7,
                           .shard = *shard_,
                           .rounds = *rounds_,
                           .workers = workers_.get(),
                           .on_device_error = [](const absl::Status& why) { ADD_FAILURE() << why; }});
  const std::vector<float> values(kElements, 1);
  const Bytes bytes = std::as_bytes(std::span(values));
  EXPECT_EQ(receiver.OnWeights({.bucket = 0}, {&bytes, 1}), absl::OkStatus());
  EXPECT_FALSE(receiver.OnWeights({.bucket = 0}, {&bytes, 1}).ok());
  EXPECT_TRUE(receiver.lacks_weights());
  EXPECT_EQ(receiver.OnWeights({.bucket = 1}, {&bytes, 1}), absl::OkStatus());
  EXPECT_FALSE(receiver.lacks_weights());

  message::Gradient chunk{.samples = 1, .incarnation = 7};
  const auto send = [&] { return receiver.OnGradient(0, chunk, {.pieces = {&bytes, 1}}, lane_, replies_); };
  EXPECT_TRUE(send()->complete);
  EXPECT_EQ(TakeAnswers(), (Answers{{0, 0, 1}}));
  EXPECT_FALSE(send()->complete);
  EXPECT_EQ(TakeAnswers(), (Answers{{0, 0, 1}})) << "it is only answered again";
  EXPECT_EQ(receiver.answered_again(), 1);
  EXPECT_FALSE(send().ok()) << "too often";
  chunk.incarnation = 6;
  EXPECT_FALSE(send()->complete) << "of an earlier server";
  chunk.bucket = 2;
  EXPECT_EQ(send().status().message(), "worker 0 names bucket 2 of 2");
}

TEST_F(BucketRoundsTest, SavedRoundsContinueAfterARestore) {
  Begin(Job(1, "sync"));
  for (const int bucket : {0, 1}) ASSERT_EQ(Push(0, bucket, 0), absl::OkStatus());
  const auto saved = rounds_->Save();
  ASSERT_TRUE(saved.ok() && saved->has_value());
  EXPECT_EQ((*saved)->step, 1);
  Begin(job_);
  ASSERT_EQ(rounds_->Restore(**saved), absl::OkStatus());
  EXPECT_FALSE(Push(0, 0, 2).ok());
  TakeAnswers();
  ASSERT_EQ(Push(0, 0, 1), absl::OkStatus());
  EXPECT_EQ(TakeAnswers(), (Answers{{0, 0, 2}}));
}

TEST(ClippingTest, AStepIsCompleteOnceWhenTheLastBucketIsHeld) {
  Clipping clipping(2);
  EXPECT_FALSE(clipping.TakeComplete().has_value());
  clipping.Hold(1, {.workers = {0, 1}, .step = 4, .sum_of_squares = 2});
  EXPECT_FALSE(clipping.TakeComplete().has_value());
  clipping.Hold(0, {.workers = {0, 1}, .step = 4, .sum_of_squares = 0.5});
  const auto complete = clipping.TakeComplete();
  ASSERT_TRUE(complete.has_value());
  EXPECT_EQ(complete->step, 4);
  EXPECT_EQ(complete->sum_of_squares, 2.5);
  EXPECT_EQ(complete->workers, (std::vector<int>{0, 1}));
  EXPECT_FALSE(clipping.TakeComplete().has_value());
}

TEST(ClippingTest, TheSumDoesNotDependOnTheOrderOfArrival) {
  const std::vector<double> parts = {1e16, 1, -1e16, 1};
  const auto sum = [&](const std::vector<int>& order) {
    Clipping clipping(parts.size());
    for (const int bucket : order) {
      clipping.Hold(bucket, {.sum_of_squares = parts[static_cast<size_t>(bucket)]});
    }
    return clipping.TakeComplete()->sum_of_squares;
  };
  EXPECT_EQ(sum({0, 1, 2, 3}), sum({3, 1, 0, 2}));
  EXPECT_NE(sum({0, 1, 2, 3}), 2) << "the order of addition must matter here";
}

TEST(ClippingTest, AHeldUpdateCollectsReadersUntilItIsTaken) {
  Clipping clipping(1);
  EXPECT_FALSE(clipping.AddReaders(0, {1}));
  clipping.Hold(0, {.workers = {0}, .samples = 8, .may_read = {0}});
  EXPECT_TRUE(clipping.Holds(0));
  EXPECT_TRUE(clipping.AddReaders(0, {2}));
  const Clipping::Update update = clipping.Take(0);
  EXPECT_EQ(update.may_read, (std::vector<int>{0, 2}));
  EXPECT_EQ(update.samples, 8);
  EXPECT_FALSE(clipping.Holds(0));
}

TEST(ClippingTest, OnlyTheFirstTotalOfTheAwaitedStepIsUsed) {
  Clipping clipping(1);
  EXPECT_FALSE(clipping.TakeTotal(-1)) << "none is awaited";
  clipping.AwaitTotal(3);
  EXPECT_FALSE(clipping.TakeTotal(2));
  EXPECT_TRUE(clipping.TakeTotal(3));
  EXPECT_FALSE(clipping.TakeTotal(3));
}

// When a serial server sends weights (ps_server/modes.md).

class SerialTest : public ServerFixture {
 protected:
  void Begin(const std::string& consistency, bool serial = true) {
    ServerFixture::Begin(MakeJob(2, {10, 10}, {.consistency = consistency, .serial = serial}),
                         {.worker_timeout = absl::Seconds(60)});
  }
  std::vector<int> AnswersOf(int worker) { return sinks_[worker]->TakeBuckets(); }

  using Buckets = std::vector<int>;
};

TEST_F(SerialTest, SynchronousWeightsWaitForAllBucketsOfAllWorkers) {
  for (const bool serial : {false, true}) {
    Begin("sync", serial);
    for (const int64_t step : {0, 1, 2}) {
      Push(0, 0, step);
      Push(0, 1, step);
      Push(1, 0, step);
      // Bucket 0 is updated, and all that worker 0 has to send has arrived.
      EXPECT_EQ(AnswersOf(0), serial ? Buckets() : Buckets{0}) << step;
      EXPECT_EQ(AnswersOf(1), serial ? Buckets() : Buckets{0}) << step;
      Push(1, 1, step);
      EXPECT_EQ(AnswersOf(0), (serial ? Buckets{0, 1} : Buckets{1})) << step;
      EXPECT_EQ(AnswersOf(1), (serial ? Buckets{0, 1} : Buckets{1})) << step;
    }
    EXPECT_EQ(server_->stats().pushes, 12);
  }
}

TEST_F(SerialTest, AsynchronousWeightsWaitForTheWorkersOwnGradients) {
  Begin("async");
  for (const int64_t step : {0, 1}) {
    Push(0, 0, step);
    EXPECT_EQ(AnswersOf(0), Buckets());
    Push(0, 1, step);
    EXPECT_EQ(AnswersOf(0), (Buckets{0, 1}));
  }
  EXPECT_EQ(AnswersOf(1), Buckets());
}

TEST_F(SerialTest, ARepeatedPushCountsOnceForItsStep) {
  Begin("sync");
  Push(0, 0);
  Push(0, 1);
  Push(1, 0);
  Reconnect(0);
  Push(0, 0);  // answered before, but the answer did not leave
  Push(0, 1);
  EXPECT_EQ(AnswersOf(0), Buckets());
  Push(1, 1);
  EXPECT_EQ(AnswersOf(0), (Buckets{0, 1}));
  // The weights were lost again, and are sent again at once.
  Reconnect(0);
  Push(0, 1);
  EXPECT_EQ(AnswersOf(0), Buckets{1});
  // The next step is held as a whole.
  Push(0, 0, 1);
  Push(0, 1, 1);
  Push(1, 0, 1);
  EXPECT_EQ(AnswersOf(0), Buckets());
  Push(1, 1, 1);
  EXPECT_EQ(AnswersOf(0), (Buckets{0, 1}));
  EXPECT_EQ(server_->stats().pushes, 8) << "each once";
}

}  // namespace
}  // namespace psring
