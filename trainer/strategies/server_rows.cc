// Tables on parameter servers only: a worker has just the rows that its batch looks up. The other parameters
// are on the same servers, or synchronized by a process group ("hybrid": Kim et al. 2019, "Parallax:
// Sparsity-aware Data Parallel Training of Deep Neural Networks").
#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "common/base/deadline.h"
#include "ps_server/client/ps_client.h"
#include "trainer/strategies/strategies.h"

namespace psring {
namespace {

class ServerRows : public RowStrategy, public PendingUpdates {
 public:
  // `measures_push`: what is pushed is not in the traffic of the other strategy's step.
  ServerRows(const StrategyContext& context, bool measures_push)
      : context_(context), client_(*context.servers.client), measures_push_(measures_push) {}

  // The strategy of the other parameters has joined the servers.
  absl::Status Start(const RowStart& start) override {
    if (start.arrays == 0) return absl::OkStatus();
    // Without a deadline: a running server names rank 0 if its rows stop coming, and the client detects a
    // lost server.
    if (context_.rank > 0) return client_.Pull(start.step, {}, MonotonicTime::InfiniteFuture());
    std::vector<float> values;
    for (int t = 0; t < static_cast<int>(context_.tables.size()); ++t) {
      const Table& table = context_.tables[static_cast<size_t>(t)];
      for (int array = 0; array < start.arrays; ++array) {
        PSRING_RETURN_IF_ERROR(ForEachRange(table, t, array, [&](const RowRange& range) -> absl::Status {
          values.resize(static_cast<size_t>(range.count) * static_cast<size_t>(table.width));
          PSRING_RETURN_IF_ERROR(start.rows(range, values.data()));
          const std::vector<int32_t> rows = RowsOf(range);
          return client_.Put({.table = t, .rows = rows, .values = values.data(), .slot = array}, Deadline());
        }));
      }
    }
    return absl::OkStatus();
  }

  absl::Status Pull(int64_t step, TouchedRows& rows) override {
    const Traffic before = client_.status().traffic;
    const int64_t begin_ns = context_.trace.Now();
    bytes_ = {};
    pushed_ = {};
    std::vector<RowPull> pulls;
    for (size_t t = 0; t < rows.of_tables().size(); ++t) {
      TouchedRows::OfTable& table = rows.of_tables()[t];
      table.pulled.resize(table.rows.size() * static_cast<size_t>(context_.tables[t].width));
      table.values = table.pulled.data();
      table.is_entire_table = false;
      bytes_.asked_bytes += static_cast<double>(table.rows.size() * sizeof(int32_t));
      bytes_.pulled_bytes += static_cast<double>(table.pulled.size() * sizeof(float));
      pulls.push_back({.table = static_cast<int>(t), .rows = table.rows, .values = table.pulled.data()});
    }
    PSRING_RETURN_IF_ERROR(client_.Pull(step, pulls, Deadline()));
    pulled_ns_ = {begin_ns, context_.trace.Now()};
    pulled_ = client_.status().traffic - before;
    return absl::OkStatus();
  }

  absl::Status Push(const StepInfo& info, TouchedRows& rows) override {
    const Traffic before = client_.status().traffic;
    std::vector<RowPush> pushes;
    for (size_t t = 0; t < rows.of_tables().size(); ++t) {
      const TouchedRows::OfTable& table = rows.of_tables()[t];
      bytes_.pushed_bytes +=
          static_cast<double>(table.rows.size() * sizeof(int32_t) + table.gradient.size() * sizeof(float));
      pushes.push_back({.table = static_cast<int>(t), .rows = table.rows, .gradient = table.gradient.data()});
    }
    // A rank's share of a short last batch may be empty: then it has no rows.
    client_.Push(info.step, info.samples, pushes);
    if (measures_push_) pushed_ = client_.status().traffic - before;
    return absl::OkStatus();
  }

  // The update is visible to the next Pull, which waits for it.
  absl::StatusOr<RowReport> Finish() override {
    return RowReport{.traffic = pulled_ + pushed_,
                     .bytes = bytes_,
                     .begin_ns = pulled_ns_.first,
                     .end_ns = pulled_ns_.second,
                     .exposed_ns = pulled_ns_.second - pulled_ns_.first};
  }

  ConstSpan Local() const override { return {}; }
  absl::Status Read(int64_t step, const RowRange& range, float* to) override {
    const std::vector<int32_t> rows = RowsOf(range);
    const std::vector<RowPull> pulls = {
        {.table = range.table, .rows = rows, .values = to, .slot = range.array}};
    return client_.Pull(step, pulls, Deadline());
  }
  // A server handles a worker's messages in order.
  absl::Status Settle() override { return client_.Pull(/*step=*/0, {}, Deadline()); }
  void Abort(absl::Status why) override { client_.Abort(std::move(why)); }

 protected:
  const StrategyContext context_;
  PsClient& client_;

 private:
  static std::vector<int32_t> RowsOf(const RowRange& range) {
    std::vector<int32_t> rows(static_cast<size_t>(range.count));
    std::iota(rows.begin(), rows.end(), range.first);
    return rows;
  }

  // A server names the workers for which others wait before this.
  MonotonicTime Deadline() const { return MonotonicNow() + 3 * context_.servers.timeout + absl::Seconds(5); }

  const bool measures_push_;
  Traffic pulled_, pushed_;
  RowFigures bytes_;
  std::pair<int64_t, int64_t> pulled_ns_ = {};
};

// No other strategy uses the servers. The push overlaps with the group's all-reduce.
class OnlyRowsOnServers : public ServerRows, public ServerMembership {
 public:
  explicit OnlyRowsOnServers(const StrategyContext& context) : ServerRows(context, /*measures_push=*/true) {}

  absl::Status Start(const RowStart& start) override {
    ServerJob job = JobOf(context_);
    job.parameters = 0;
    job.buckets.clear();
    job.start_step = start.step;
    job.start_samples = start.samples;
    job.row_arrays = start.arrays;
    PSRING_RETURN_IF_ERROR(client_.Start(context_.rank, job, WorkerBuffers(), LeaveOrJoinBy()));
    return ServerRows::Start(start);
  }

  absl::Status Leave() override { return client_.Leave(LeaveOrJoinBy()); }

 private:
  MonotonicTime LeaveOrJoinBy() const { return MonotonicNow() + context_.servers.timeout; }
};

}  // namespace

absl::StatusOr<std::unique_ptr<RowStrategy>> MakeServerRows(const StrategyContext& context) {
  PSRING_CHECK(context.servers.client != nullptr);
  return std::make_unique<ServerRows>(context, /*measures_push=*/context.servers.drops_gradients);
}

absl::StatusOr<std::unique_ptr<RowStrategy>> MakeOnlyRowsOnServers(const StrategyContext& context) {
  PSRING_CHECK(context.servers.client != nullptr);
  return std::make_unique<OnlyRowsOnServers>(context);
}

}  // namespace psring
