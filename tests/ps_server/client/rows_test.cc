// Rows of tables on one server or several, with every client.
#include <gtest/gtest.h>

#include <atomic>
#include <deque>
#include <latch>
#include <numeric>
#include <vector>

#include "absl/strings/match.h"
#include "common/base/deadline.h"
#include "common/tables/merge_rows.h"
#include "common/tables/row_storage.h"
#include "tests/ps_server/cluster.h"
#include "tests/ps_server/test_job.h"

namespace psring {
namespace {

ServerJob JobWithTables(int workers) {
  ServerJob job = MakeJob(workers, {3, 100}, {.optimizer = OptimizerKind::kAdagrad, .rate = .1});
  job.tables = {{.rows = 50, .width = 5, .bound = .5f}, {.rows = 70'000, .width = 64, .bound = .1f}};
  job.table_seed = 3;
  return job;
}

// The rows of a worker in a step: every third, from another one on; and their gradient.
std::vector<int32_t> RowsOf(int worker, int64_t step, int rows) {
  std::vector<int32_t> own;
  for (int row = (worker + static_cast<int>(step)) % 3; row < rows; row += 3) own.push_back(row);
  return own;
}
std::vector<float> GradientOf(const std::vector<int32_t>& rows, int worker, int width) {
  std::vector<float> gradient;
  for (const int32_t row : rows) {
    for (int c = 0; c < width; ++c) gradient.push_back(static_cast<float>(row % 7 - 3 + worker) + .25f * c);
  }
  return gradient;
}

// What a worker pulls and pushes in a step.
struct StepRows {
  StepRows(const ServerJob& job, int worker, int64_t step) {
    for (const Table& table : job.tables) {
      rows.push_back(RowsOf(worker, step, table.rows));
      values.emplace_back(rows.back().size() * static_cast<size_t>(table.width));
      gradients.push_back(GradientOf(rows.back(), worker, table.width));
    }
    for (int t = 0; t < static_cast<int>(rows.size()); ++t) {
      pulls.push_back({t, rows[t], values[t].data()});
      pushes.push_back({t, rows[t], gradients[t].data()});
    }
  }
  std::vector<std::vector<int32_t>> rows;  // by table
  std::vector<std::vector<float>> values, gradients;
  std::vector<RowPull> pulls;
  std::vector<RowPush> pushes;
};

std::vector<int32_t> RowsFrom(int begin, int end) {
  std::vector<int32_t> rows(static_cast<size_t>(end - begin));
  std::iota(rows.begin(), rows.end(), begin);
  return rows;
}

TEST(Rows, OfEveryStepEqualALoopBitForBit) {
  constexpr int kSteps = 3;
  for (const auto& [workers, servers] : {std::pair{1, 1}, {3, 1}, {2, 3}}) {
    SCOPED_TRACE(testing::Message() << workers << " workers, " << servers << " servers");
    const ServerJob job = JobWithTables(workers);
    const Servers all(workers, servers);
    std::atomic<uint64_t> sent = 0, received = 0;
    ForEachRank(workers, [&](int rank) {
      const auto host = MakeCpuDevice();
      auto expected = RowStorage::Create(job.tables, job.optimizer, *host);
      expected->Initialize(job.table_seed);
      TestWorker worker(job, rank, all.NewClient());
      ASSERT_EQ(worker.Start(), absl::OkStatus());
      for (int64_t step = 0; step <= kSteps; ++step) {
        const StepRows own(job, rank, step);
        const auto& [rows, values, gradients, pulls, pushes] = own;
        ASSERT_EQ(worker.client->Pull(step, pulls, Soon()), absl::OkStatus());
        for (int t = 0; t < 2; ++t) {
          const size_t width = static_cast<size_t>(job.tables[t].width);
          for (size_t i = 0; i < values[t].size(); ++i) {
            const size_t at = static_cast<size_t>(rows[t][i / width]) * width + i % width;
            ASSERT_EQ(values[t][i], expected->table(t).floats()[at]) << "table " << t << ", step " << step;
          }
        }
        if (step == kSteps) break;
        worker.client->Push(step, 1 + rank, pushes);
        ASSERT_EQ(worker.Step(step).status(), absl::OkStatus());
        for (int t = 0; t < 2; ++t) {
          std::deque<StepRows> all_rows;
          std::vector<RowGradient> sources;
          for (int w = 0; w < workers; ++w) {
            const StepRows& of_worker = all_rows.emplace_back(job, w, step);
            sources.push_back({of_worker.rows[t], of_worker.gradients[t].data()});
          }
          std::vector<int32_t> sum_rows;
          std::vector<float> sums;
          AddUpRows(sources, static_cast<size_t>(job.tables[t].width), sum_rows, sums);
          expected->Update(t, sum_rows, sums.data(),
                           StepOf(job.optimizer, workers * (workers + 1) / 2, .1, step + 1));
        }
      }
      ASSERT_EQ(worker.client->Leave(Soon()), absl::OkStatus());
      sent += worker.client->status().traffic.payload_tx_bytes;
      received += worker.client->status().traffic.payload_rx_bytes;
    });
    for (const auto& cluster : all.clusters) {
      const ServerStats stats = cluster->server().stats();
      sent -= stats.payload_rx_bytes;
      received -= stats.payload_tx_bytes;
    }
    EXPECT_EQ(sent, 0) << "bytes that no server counted";
    EXPECT_EQ(received, 0);
  }
}

// As for `hybrid`.
TEST(Rows, AJobMayHaveOnlyTables) {
  for (const int servers : {1, 3}) {
    ServerJob job = JobWithTables(2);
    job.parameters = 0;
    job.buckets.clear();
    const Servers all(2, servers);
    ForEachRank(2, [&](int rank) {
      const auto client = all.NewClient();
      ASSERT_EQ(client->Start(rank, job, WorkerBuffers(), Soon()), absl::OkStatus());
      const std::vector<int32_t> rows = {rank, 7};
      std::vector<float> values(10), before;
      const std::vector<float> gradient(10, 1.0f);
      const std::vector<RowPull> pulls = {{0, rows, values.data()}};
      const std::vector<RowPush> pushes = {{0, rows, gradient.data()}};
      for (int64_t step = 0; step < 3; ++step) {
        ASSERT_EQ(client->Pull(step, pulls, Soon()), absl::OkStatus());
        EXPECT_NE(values, before) << "step " << step;
        before = values;
        client->Push(step, 1, pushes);
      }
      ASSERT_EQ(client->Leave(Soon()), absl::OkStatus());
    });
  }
}

// Rows of a job are read with the state of their optimizer, and put into another with other servers.
TEST(Rows, OfACheckpointContinueWithOtherServers) {
  ServerJob job = JobWithTables(2);
  const auto read = [&](TestWorker& worker, int64_t step) {
    std::vector<std::vector<float>> arrays;  // of each table: the values, and Adagrad's sums
    for (int t = 0; t < 2; ++t) {
      const std::vector<int32_t> rows = RowsOf(0, 0, job.tables[t].rows);
      for (int slot = 0; slot < 2; ++slot) {
        arrays.emplace_back(rows.size() * static_cast<size_t>(job.tables[t].width));
        const std::vector<RowPull> pulls = {{t, rows, arrays.back().data(), slot}};
        EXPECT_EQ(worker.client->Pull(step, pulls, Soon()), absl::OkStatus());
      }
    }
    return arrays;
  };
  std::vector<std::vector<float>> of_first, of_second;
  const Servers first(2, 3);
  const auto steps = [&](TestWorker& worker, int rank, int64_t step) {
    for (const int64_t end = step + 2; step < end; ++step) {
      worker.client->Push(step, 1 + rank, StepRows(job, rank, step).pushes);
      ASSERT_EQ(worker.Step(step).status(), absl::OkStatus());
    }
  };
  std::vector<std::vector<float>> everything;  // at step 2
  RunWorkers(job, first, [&](TestWorker& worker) {
    steps(worker, worker.rank, 0);
    if (worker.rank == 0) {
      for (int t = 0; t < 2; ++t) {
        const std::vector<int32_t> rows = RowsFrom(0, job.tables[t].rows);
        for (int slot = 0; slot < 2; ++slot) {
          everything.emplace_back(job.tables[t].count());
          const std::vector<RowPull> pulls = {{t, rows, everything.back().data(), slot}};
          ASSERT_EQ(worker.client->Pull(2, pulls, Soon()), absl::OkStatus());
        }
      }
    }
    steps(worker, worker.rank, 2);
    if (worker.rank == 0) of_first = read(worker, 4);
  });
  job.start_step = 2;
  job.start_samples = 6;
  job.row_arrays = 2;
  const Servers second(2, 2);
  RunWorkers(job, second, [&](TestWorker& worker) {
    for (int t = 0; t < 2 && worker.rank == 0; ++t) {
      const size_t width = static_cast<size_t>(job.tables[t].width);
      for (int slot = 0; slot < 2; ++slot) {
        // In two pieces.
        const int cut = job.tables[t].rows / 3;
        for (const auto& [begin, end] : {std::pair{0, cut}, {cut, job.tables[t].rows}}) {
          const std::vector<int32_t> rows = RowsFrom(begin, end);
          const float* const values =
              everything[static_cast<size_t>(2 * t + slot)].data() + static_cast<size_t>(begin) * width;
          ASSERT_EQ(worker.client->Put({t, rows, values, slot}, Soon()), absl::OkStatus());
        }
      }
    }
    ASSERT_EQ(worker.client->Pull(2, {}, Soon()), absl::OkStatus());
    steps(worker, worker.rank, 2);
    if (worker.rank == 0) of_second = read(worker, 4);
  });
  EXPECT_TRUE(of_first == of_second);
  EXPECT_FALSE(of_first.empty());
}

// With it an asynchronous worker pauses before a checkpoint.
TEST(Rows, APullWithoutRowsWaitsForTheWorkersOwnPushes) {
  ServerJob job = JobWithTables(2);
  job.consistency = "async";
  for (const int servers : {1, 3}) {
    const Servers all(2, servers);
    std::latch pushed(1);
    RunWorkers(job, all, [&](TestWorker& worker) {
      const Table& table = job.tables[1];
      const size_t width = static_cast<size_t>(table.width);
      if (worker.rank == 1) {
        const std::vector<int32_t> rows = RowsFrom(0, table.rows);
        const std::vector<float> gradient(table.count(), 1.0f);
        const std::vector<RowPush> pushes = {{1, rows, gradient.data()}};
        worker.client->Push(0, 1, pushes);
        EXPECT_EQ(worker.client->Pull(0, {}, Soon()), absl::OkStatus());
        pushed.count_down();
      } else {
        pushed.wait();
        const std::vector<int32_t> last = {table.rows - 2, table.rows - 1};
        std::vector<float> values(2 * width), initial(width);
        const std::vector<RowPull> pulls = {{1, last, values.data()}};
        ASSERT_EQ(worker.client->Pull(0, pulls, Soon()), absl::OkStatus());
        for (size_t i = 0; i < last.size(); ++i) {
          InitialRow(table, 1, last[i], job.table_seed, initial.data());
          for (size_t c = 0; c < width; ++c) EXPECT_LT(values[i * width + c], initial[c] - .05f);
        }
      }
    });
  }
}

// Otherwise the others would wait for rows that only it has.
TEST(Rows, OfACheckpointThatWorkerZeroDoesNotSendEndTheJob) {
  ServerJob job = JobWithTables(2);
  job.consistency = "async";  // which otherwise continues without a lost worker
  job.row_arrays = 1;
  const Servers all(2, 1);
  std::latch started(2);
  StartWorkers(job, all, [&](TestWorker& worker) {
    started.arrive_and_wait();
    if (worker.rank == 0) return;  // its client is destroyed
    const absl::Status status = worker.client->Pull(0, {}, MonotonicTime::InfiniteFuture());
    EXPECT_TRUE(absl::StrContains(status.message(), "worker 0 was lost")) << status;
  });
}

TEST(Rows, OutsideOfATableEndTheJobWithTheWorkersName) {
  const ServerJob job = JobWithTables(1);
  const Servers all(1, 1);
  TestWorker worker(job, 0, all.NewClient());
  ASSERT_EQ(worker.Start(), absl::OkStatus());
  const std::vector<int32_t> rows = {3, 50};
  std::vector<float> values(10);
  const std::vector<RowPull> pulls = {{0, rows, values.data()}};
  const absl::Status status = worker.client->Pull(0, pulls, Soon());
  EXPECT_TRUE(absl::StrContains(status.message(), "row 50 after row 3 of a table of 50 rows")) << status;
}

TEST(Rows, APullThatWaitsForAnotherWorkerEndsWhenTheJobFails) {
  const ServerJob job = JobWithTables(2);
  const Servers all(2, 1);
  std::latch started(2);
  StartWorkers(job, all, [&](TestWorker& worker) {
    started.arrive_and_wait();
    if (worker.rank == 1) return;  // its client is destroyed before it has pushed
    const std::vector<int32_t> rows = {3};
    std::vector<float> values(5);
    worker.client->Push(0, 1, {});
    const std::vector<RowPull> pulls = {{0, rows, values.data()}};
    const absl::Status status = worker.client->Pull(1, pulls, Soon());
    EXPECT_TRUE(absl::StrContains(status.message(), "worker 1")) << status;
  });
}

}  // namespace
}  // namespace psring
