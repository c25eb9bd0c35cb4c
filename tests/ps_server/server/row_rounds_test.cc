// Tables on one server: who waits for whom, and what a worker may send.
#include "ps_server/server/row_rounds.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/deadline.h"
#include "ps_server/client/client_session.h"

namespace psring {
namespace {

ServerJob RowJob(int workers, const std::string& consistency) {
  ServerJob job{.workers = workers, .consistency = consistency};
  job.tables = {{.rows = 10, .width = 2, .bound = .5f}, {.rows = 3, .width = 1, .bound = .5f}};
  job.optimizer.kind = OptimizerKind::kSgd;
  job.schedule.base = 1;
  return job;
}

class Rounds {
 public:
  explicit Rounds(const ServerJob& job) : job_(job), rounds_(*RowRounds::Create(job, true)) {}

  absl::Status Pull(int worker, int64_t step, int table, std::vector<int32_t> rows) {
    return rounds_->On(worker, message::PullRows{.bucket = table, .step = step}, BytesOf(rows, {}), replies);
  }
  absl::Status Push(int worker, const message::PushRows& push, std::vector<int32_t> rows,
                    std::vector<float> gradient) {
    return rounds_->On(worker, push, BytesOf(rows, gradient), replies);
  }
  absl::Status PullSlot(int64_t step, int64_t slot, std::vector<int32_t> rows) {
    return rounds_->On(0, message::PullRows{.step = step, .slot = slot}, BytesOf(rows, {}), replies);
  }
  absl::Status Put(int worker, const message::InitialRows& initial, std::vector<int32_t> rows,
                   std::vector<float> values) {
    return rounds_->On(worker, initial, BytesOf(rows, values), replies);
  }
  void Gone(int worker) { rounds_->OnGone(worker, replies); }
  absl::Status Update(std::vector<int> workers) { return rounds_->OnUpdate(workers, replies); }
  std::vector<int> waits_for() const { return rounds_->WaitsFor(); }

  // Answers since the last call: worker and values.
  std::vector<std::pair<int, std::vector<float>>> Take() {
    std::vector<std::pair<int, std::vector<float>>> taken;
    for (const auto& [worker, reply] : std::exchange(replies, {})) {
      const ConstSpan values = reply.weights.weights;
      taken.emplace_back(worker, std::vector<float>(values.floats(), values.floats() + values.count));
    }
    return taken;
  }
  std::vector<float> Initial(int table, int row) const {
    std::vector<float> values(static_cast<size_t>(job_.tables[table].width));
    InitialRow(job_.tables[table], table, row, job_.table_seed, values.data());
    return values;
  }

  Replies replies;

 private:
  Pieces BytesOf(const std::vector<int32_t>& rows, const std::vector<float>& gradient) {
    bytes_.resize(4 * (rows.size() + gradient.size()));
    if (!rows.empty()) std::memcpy(bytes_.data(), rows.data(), 4 * rows.size());
    if (!gradient.empty()) std::memcpy(bytes_.data() + 4 * rows.size(), gradient.data(), 4 * gradient.size());
    piece_ = bytes_;
    return {&piece_, 1};
  }

  const ServerJob job_;
  std::unique_ptr<RowRounds> rounds_;
  std::vector<std::byte> bytes_;
  Bytes piece_;
};

void Rejects(const absl::Status& status, const std::string& why) {
  EXPECT_FALSE(status.ok()) << why;
  EXPECT_TRUE(absl::StrContains(status.message(), why)) << status;
}

TEST(RowRounds, AStepIsUpdatedWhenAllHavePushedInTheOrderOfWorkers) {
  Rounds rounds(RowJob(2, "sync"));
  EXPECT_TRUE(rounds.Pull(0, 0, 0, {2, 9}).ok());
  ASSERT_EQ(rounds.Take().size(), 1);
  EXPECT_TRUE(rounds.Push(1, {.bucket = 0, .step = 0, .samples = 3}, {2, 3}, {3, 3, 1, 1}).ok());
  EXPECT_TRUE(rounds.Push(1, {.bucket = 1, .step = 0, .samples = 3, .complete = 1}, {}, {}).ok());
  EXPECT_TRUE(rounds.Pull(1, 1, 0, {2, 3, 9}).ok());
  EXPECT_TRUE(rounds.Take().empty());
  EXPECT_EQ(rounds.waits_for(), std::vector<int>{0});
  EXPECT_TRUE(rounds.Push(0, {.bucket = 0, .step = 0, .samples = 1, .complete = 1}, {2}, {1, 5}).ok());
  const auto answers = rounds.Take();
  ASSERT_EQ(answers.size(), 1);
  EXPECT_EQ(answers[0].first, 1);
  const std::vector<float> two = rounds.Initial(0, 2), three = rounds.Initial(0, 3),
                           nine = rounds.Initial(0, 9);
  EXPECT_EQ(answers[0].second, (std::vector<float>{two[0] - (1.f + 3) / 4, two[1] - (5.f + 3) / 4,
                                                   three[0] - .25f, three[1] - .25f, nine[0], nine[1]}));
}

TEST(RowRounds, WithoutASynchronousModeEachMessageIsAnUpdate) {
  Rounds rounds(RowJob(2, "async"));
  EXPECT_TRUE(rounds.Push(1, {.bucket = 1, .step = 5, .samples = 2}, {0}, {2}).ok());
  EXPECT_TRUE(rounds.Pull(0, 77, 1, {0}).ok());
  const auto answers = rounds.Take();
  ASSERT_EQ(answers.size(), 1);
  EXPECT_EQ(answers[0].second, std::vector<float>{rounds.Initial(1, 0)[0] - 1});
}

// Of three workers, two are in the step's update.
TEST(RowRounds, WithBackupWorkersAStepIsUpdatedByThoseOfTheBuckets) {
  Rounds rounds(RowJob(3, "backup:1"));
  const auto push = [&](int worker, int64_t step) {
    return rounds.Push(worker, {.bucket = 1, .step = step, .samples = 1, .complete = 1}, {0},
                       {static_cast<float>(worker)});
  };
  EXPECT_FALSE(push(0, 0).ok()) << "the step's workers are not known";
  EXPECT_TRUE(rounds.Update({0, 2}).ok());
  EXPECT_TRUE(push(2, 0).ok());
  EXPECT_TRUE(rounds.Pull(2, 1, 1, {0}).ok());
  EXPECT_TRUE(rounds.Take().empty());
  EXPECT_EQ(rounds.waits_for(), std::vector<int>{0});
  EXPECT_EQ(push(1, 0).message(), "worker 1 pushes rows of step 0, in which it does not take part");
  EXPECT_FALSE(rounds.Update({0, 2}).ok()) << "rows of worker 0 are missing";
  EXPECT_TRUE(push(0, 0).ok());
  const auto answers = rounds.Take();
  ASSERT_EQ(answers.size(), 1);
  EXPECT_EQ(answers[0].second, std::vector<float>{rounds.Initial(1, 0)[0] - 1});
  // The worker that was dropped reads the newest rows, of a later step than it asks for.
  EXPECT_TRUE(rounds.Pull(1, 0, 1, {0}).ok());
  ASSERT_EQ(rounds.Take().size(), 1);
  // A lost worker's rows are not awaited, also if nobody else is in the step.
  EXPECT_TRUE(rounds.Update({0, 1}).ok());
  EXPECT_TRUE(push(1, 1).ok());
  EXPECT_TRUE(rounds.Pull(2, 2, 1, {0}).ok());
  rounds.Gone(0);
  ASSERT_EQ(rounds.Take().size(), 1);
  EXPECT_TRUE(rounds.Update({0}).ok());
  EXPECT_TRUE(rounds.Pull(2, 3, 1, {0}).ok());
  EXPECT_EQ(rounds.Take().size(), 1);
}

TEST(RowRounds, AWorkerThatIsGoneIsNotAwaited) {
  Rounds rounds(RowJob(3, "sync"));
  EXPECT_TRUE(rounds.Push(0, {.step = 0, .samples = 1, .complete = 1}, {1}, {1, 1}).ok());
  EXPECT_TRUE(rounds.Push(2, {.step = 0, .samples = 1}, {1}, {100, 100}).ok());
  EXPECT_TRUE(rounds.Pull(0, 1, 0, {1}).ok());
  EXPECT_EQ(rounds.waits_for(), (std::vector<int>{1, 2}));
  rounds.Gone(1);
  EXPECT_TRUE(rounds.Take().empty());
  rounds.Gone(2);  // in the middle of its push
  const auto answers = rounds.Take();
  ASSERT_EQ(answers.size(), 1);
  EXPECT_EQ(answers[0].second[0], rounds.Initial(0, 1)[0] - 1);
}

TEST(RowRounds, WhatIsOutOfBoundsIsAnErrorAndChangesNothing) {
  Rounds rounds(RowJob(2, "sync"));
  for (const int32_t bad : {-1, 10, 2'000'000'000}) {
    const std::string why = absl::StrCat("row ", bad, " after row -1 of a table of 10 rows");
    Rejects(rounds.Pull(0, 0, 0, {bad}), why);
    Rejects(rounds.Push(0, {.step = 0, .samples = 1}, {bad}, {1, 1}), why);
  }
  Rejects(rounds.Pull(0, 0, 0, {3, 3}), "row 3 after row 3");
  Rejects(rounds.Pull(0, 0, 2, {0}), "table 2 of 2");
  Rejects(rounds.Pull(0, 0, -1, {0}), "table -1 of 2");
  Rejects(rounds.Push(0, {.bucket = 5, .step = 0, .samples = 1}, {}, {}), "table 5 of 2");
  Rejects(rounds.Push(0, {.step = 0, .samples = 1}, {1}, {1}), "8 bytes of rows of width 2");
  Rejects(rounds.Push(0, {.step = 0, .samples = 1}, {1}, {1, std::nanf("")}), "is NaN or infinite");
  Rejects(rounds.Push(0, {.step = 1, .samples = 1}, {}, {}),
          "pushes rows of step 1, and the server is at step 0");
  Rejects(rounds.Push(0, {.step = 0, .samples = -1}, {}, {}), "of -1 samples");
  Rejects(rounds.Push(0, {.step = 0, .samples = 0}, {1}, {1, 1}), "rows of no samples");
  Rejects(rounds.Pull(0, 2, 0, {1}), "pulls rows of step 2, and the server is at step 0");
  // The parts of a push are in order.
  EXPECT_TRUE(rounds.Push(1, {.step = 0, .samples = 1}, {4}, {1, 1}).ok());
  Rejects(rounds.Push(1, {.step = 0, .samples = 1}, {4}, {1, 1}), "row 4 after row 4");
  EXPECT_TRUE(rounds.Push(1, {.step = 0, .samples = 1, .complete = 1}, {5}, {1, 1}).ok());
  Rejects(rounds.Push(1, {.step = 0, .samples = 1}, {6}, {1, 1}), "again");
  for (size_t i = 0; i < MostPulls(2); ++i) EXPECT_TRUE(rounds.Pull(0, 1, 0, {1}).ok());
  Rejects(rounds.Pull(0, 1, 0, {1}), "pulls of rows that wait");
  rounds.Take();
  EXPECT_TRUE(rounds.Pull(1, 0, 0, {1, 2}).ok());
  EXPECT_EQ(rounds.Take()[0].second[0], rounds.Initial(0, 1)[0]);
}

// Of a job that continues with step 4: server 1 of 2 has rows 1, 3, 5, 7, 9 of the first table, and row 1 of
// the second.
TEST(RowRounds, PullsWaitForTheRowsOfACheckpoint) {
  ServerJob job = RowJob(2, "sync");
  job.optimizer.kind = OptimizerKind::kAdagrad;
  job.server = 1;
  job.servers = 2;
  job.start_step = 4;
  job.row_arrays = 2;
  Rounds rounds(job);
  EXPECT_TRUE(rounds.Pull(1, 4, 0, {0, 4}).ok());
  EXPECT_TRUE(rounds.Take().empty());
  EXPECT_EQ(rounds.waits_for(), std::vector<int>{0});
  EXPECT_TRUE(rounds.Put(0, {.bucket = 0}, {0, 1, 2}, {1, 2, 3, 4, 5, 6}).ok());
  EXPECT_TRUE(rounds.Put(0, {.bucket = 1, .slot = 1}, {0}, {.25}).ok());
  EXPECT_TRUE(rounds.Put(0, {.bucket = 0}, {3, 4}, {7, 8, 9, 10}).ok());
  EXPECT_TRUE(rounds.Put(0, {.bucket = 1}, {0}, {11}).ok());
  for (const auto& [worker, values] : rounds.Take()) {
    EXPECT_EQ(worker, 0);
    EXPECT_TRUE(values.empty()) << "only acknowledged";
  }
  EXPECT_TRUE(rounds.Put(0, {.bucket = 0, .slot = 1}, {0, 1, 2, 3, 4}, std::vector<float>(10, .5)).ok());
  const auto answers = rounds.Take();
  ASSERT_EQ(answers.size(), 2);
  EXPECT_EQ(answers[1].first, 1);
  EXPECT_EQ(answers[1].second, (std::vector<float>{1, 2, 9, 10}));
  EXPECT_TRUE(rounds.waits_for().empty());
  EXPECT_TRUE(rounds.Pull(0, 4, 1, {0}).ok());
  EXPECT_EQ(rounds.Take()[0].second, std::vector<float>{11});
  EXPECT_TRUE(rounds.PullSlot(4, 1, {2}).ok());
  EXPECT_EQ(rounds.Take()[0].second, std::vector<float>(2, .5));
}

TEST(RowRounds, OnlyTheMissingRowsOfACheckpointAreTaken) {
  ServerJob job = RowJob(2, "sync");
  job.row_arrays = 1;
  Rounds rounds(job);
  Rejects(rounds.Put(1, {.bucket = 1}, {0}, {1}), "worker 1 sends rows of slot 0, which were not requested");
  Rejects(rounds.Put(0, {.bucket = 1, .slot = 1}, {0}, {1}), "slot 1, which were not requested");
  Rejects(rounds.Put(0, {.bucket = 1, .slot = -1}, {0}, {1}), "slot -1, which were not requested");
  Rejects(rounds.Put(0, {.bucket = 2}, {0}, {1}), "table 2 of 2");
  Rejects(rounds.Put(0, {.bucket = 1}, {1}, {1}), "1 rows of table 1 that do not follow row -1");
  Rejects(rounds.Put(0, {.bucket = 1}, {0, 2}, {1, 1}), "do not follow");
  Rejects(rounds.Put(0, {.bucket = 1}, {}, {}), "do not follow");
  Rejects(rounds.Put(0, {.bucket = 1}, {0, 1, 2, 3}, {1, 1, 1, 1}), "row 3 after row 2 of a table of 3");
  Rejects(rounds.Put(0, {.bucket = 1}, {0}, {}), "bytes of rows of width 1");
  Rejects(rounds.Push(1, {.step = 0, .samples = 1}, {1}, {1, 1}), "before worker 0 has sent");
  Rejects(rounds.Pull(1, 1, 0, {1}), "pulls rows of step 1");
  EXPECT_TRUE(rounds.Put(0, {.bucket = 1}, {0, 1, 2}, {1, 2, 3}).ok());
  Rejects(rounds.Put(0, {.bucket = 1}, {0}, {1}), "row 0 after row 2");
  EXPECT_TRUE(rounds.Take().size() == 1) << "what is rejected is not answered";
}

TEST(RowRounds, TheStateOfTheOptimizerCanBePulled) {
  ServerJob job = RowJob(1, "sync");
  job.optimizer.kind = OptimizerKind::kAdagrad;
  Rounds rounds(job);
  EXPECT_TRUE(rounds.PullSlot(0, 1, {3}).ok());
  EXPECT_EQ(rounds.Take()[0].second, (std::vector<float>{0, 0}));
  EXPECT_FALSE(rounds.PullSlot(0, 2, {3}).ok());
  EXPECT_FALSE(rounds.PullSlot(0, -1, {3}).ok());
  EXPECT_TRUE(rounds.Push(0, {.step = 0, .samples = 1, .complete = 1}, {3}, {2, 3}).ok());
  EXPECT_TRUE(rounds.PullSlot(1, 1, {2, 3}).ok());
  EXPECT_EQ(rounds.Take()[0].second, (std::vector<float>{0, 0, 4, 9}));
}

// An answer that waited may be delivered by another thread, after that to a later request.
TEST(RowMessages, AnswersMayComeInAnyOrder) {
  const ServerJob job = RowJob(1, "sync");
  ClientSession session;
  ASSERT_EQ(session.Begin(job, {}), absl::OkStatus());
  const std::vector<int32_t> rows = {0, 2};
  std::vector<float> first(2), second(2);
  const std::vector<RowPull> pulls = {{1, rows, first.data()}, {1, rows, second.data()}};
  std::vector<message::PullRows> requests;
  const auto send = [&](const RowMessage& request) {
    requests.push_back(std::get<message::PullRows>(request.message));
    if (requests.size() < 2) return;
    for (const int answered : {1, 0}) {
      const std::vector<float> values(2, static_cast<float>(answered));
      const Bytes bytes = std::as_bytes(std::span(values));
      EXPECT_EQ(
          session.OnMessage(message::Rows{.bucket = 1, .step = 7, .request = requests[answered].request},
                            {&bytes, 1}),
          absl::OkStatus());
    }
  };
  ASSERT_EQ(session.AskForRows(PartsOf(job, 7, pulls), MonotonicNow() + absl::Seconds(10), "rows", send),
            absl::OkStatus());
  EXPECT_EQ(first, std::vector<float>(2, 0));
  EXPECT_EQ(second, std::vector<float>(2, 1));
}

TEST(RowMessages, AreAtMostAChunkAndCoverAllRows) {
  ServerJob job = RowJob(1, "sync");
  job.tables[0].width = 1000;
  std::vector<int32_t> rows(700);
  for (size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<int32_t>(3 * i);
  const std::vector<float> gradient(rows.size() * 1000, 1);
  const std::vector<RowPush> pushes = {{.table = 0, .rows = rows, .gradient = gradient.data()}};
  const auto parts = PartsOf(job, 4, 9, pushes);
  ASSERT_EQ(parts.size(), 3);
  size_t sum = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    EXPECT_LE(parts[i].payload->size() * sizeof(float), kChunkBytes);
    EXPECT_EQ(std::get<message::PushRows>(parts[i].message).complete, i + 1 == parts.size() ? 1 : 0);
    sum += parts[i].rows;
  }
  EXPECT_EQ(sum, 700);
  EXPECT_EQ(PartsOf(job, 4, {}).size(), 1) << "a pull without rows waits for the step";
  EXPECT_EQ(PartsOf(job, 4, 0, {}).size(), 1) << "a push without rows is complete";
}

}  // namespace
}  // namespace psring
