// Jobs with synthetic gradients, a worker for them, and a loop that computes the same in one process.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/check.h"
#include "common/base/deadline.h"
#include "common/device/device.h"
#include "ps_server/client/ps_client.h"

namespace psring {

// What differs from a synchronous job with momentum.
struct JobOptions {
  std::string consistency = "sync";
  bool deterministic = false;
  bool serial = false;
  double clip_norm = 0;
  DType wire = DType::kFloat32;
  OptimizerKind optimizer = OptimizerKind::kMomentum;
  double rate = 0.1;
};
// Buckets of these sizes, the first at the end of the parameters.
ServerJob MakeJob(int workers, const std::vector<size_t>& bucket_sizes, const JobOptions& options = {});

// The initial weights; and the gradient of a worker in a step, which is a sum over `Samples` samples.
std::vector<float> InitialWeights(const ServerJob& job);
std::vector<float> Gradient(const ServerJob& job, int worker, int64_t step);
int64_t Samples(int worker, int64_t step);

inline std::string MessageOf(const absl::Status& status) {
  return status.ok() ? "OK" : std::string(status.message());
}
inline MonotonicTime Soon() { return MonotonicNow() + absl::Seconds(30); }

// Waits for all answers; the results in order, or the first error.
absl::StatusOr<std::vector<ExchangeResult>> ExchangeAll(PsClient& client,
                                                        const std::vector<Exchange>& exchanges);

// Values in memory that a server on this host can share.
template <typename T>
class SharedValues {
 public:
  using const_iterator = const T*;
  explicit SharedValues(size_t count)
      : memory_(*MakeCpuDevice()->AllocateShared(std::max<size_t>(1, count) * sizeof(T))), count_(count) {}
  SharedValues& operator=(const std::vector<T>& values) {
    PSRING_CHECK(values.size() == count_);
    std::copy(values.begin(), values.end(), begin());
    return *this;
  }
  void assign(size_t count, T value) { *this = std::vector<T>(count, value); }

  T* data() const { return static_cast<T*>(memory_.data()); }
  size_t size() const { return count_; }
  T* begin() const { return data(); }
  T* end() const { return data() + count_; }
  T& operator[](size_t i) const { return data()[i]; }
  operator std::vector<T>() const { return {begin(), end()}; }
  bool operator==(const SharedValues& other) const { return *this == std::vector<T>(other); }
  bool operator==(const std::vector<T>& other) const { return std::ranges::equal(*this, other); }
  SharedSpan shared() const { return {{data(), count_, memory_type}, memory_.shared_fd()}; }

 private:
  static constexpr DType memory_type = sizeof(T) == sizeof(float) ? DType::kFloat32 : DType::kBFloat16;
  Buffer memory_;
  size_t count_;
};

// One worker's memory and its client.
struct TestWorker {
  TestWorker(const ServerJob& job, int rank, std::unique_ptr<PsClient> client);

  absl::Status Start(MonotonicTime deadline = Soon());
  // Exchanges all buckets at once; returns when all are answered, with the results by bucket.
  absl::StatusOr<std::vector<ExchangeResult>> Step(int64_t step);
  // The same with the current `gradient`, a sum over `samples` samples.
  absl::StatusOr<std::vector<ExchangeResult>> StepAgain(int64_t step, int64_t samples);
  // Makes a step, and sets `step` to the one with which the worker continues: the next one, unless its
  // gradient was dropped, or the server went back; then it fetches the server's weights.
  absl::Status Advance(int64_t& step);
  // Steps `first` to `end` - 1.
  absl::Status Steps(int64_t first, int64_t end);
  absl::Status Fetch();  // `weights`
  // Exchanges one bucket and waits; ExchangeAgain uses the current `gradient`.
  absl::StatusOr<ExchangeResult> ExchangeBucket(int bucket, int64_t step);
  absl::StatusOr<ExchangeResult> ExchangeAgain(int bucket, int64_t step);

  // One bucket of the current `gradient`.
  Exchange Of(const Bucket& bucket, int64_t step, int64_t samples);
  // A bucket of the gradient, rounded to the job's wire type.
  ConstSpan Sent(const Bucket& bucket);

  const ServerJob job;
  const int rank;
  SharedValues<float> weights;
  SharedValues<float> gradient;
  SharedValues<uint16_t> rounded;    // of the gradient, if the job's wire type has 16 bits
  std::vector<ConstSpan> slots;      // initial ones of the optimizer; worker 0
  std::unique_ptr<PsClient> client;  // destroyed first: exchanges in flight use the other members
};

// One process that adds the workers' gradients in rank order and updates once a step.
std::vector<float> TrainAlone(const ServerJob& job, int64_t steps);

// Runs `body` for each rank on its own thread.
template <typename Body>
void ForEachRank(int ranks, const Body& body);

// A worker per rank, on its own thread: starts, after `prepare(worker)`, and runs `body(worker)`; RunWorkers:
// and leaves. `servers` has NewClient.
using PrepareWorker = std::function<void(TestWorker&)>;
template <typename Servers, typename Body>
void StartWorkers(const ServerJob& job, Servers& servers, const Body& body,
                  const PrepareWorker& prepare = {});
template <typename Servers, typename Body>
void RunWorkers(const ServerJob& job, Servers& servers, const Body& body, const PrepareWorker& prepare = {});

// For tests in which some workers must be later than others.
class StepOfTheFastest {
 public:
  // A worker is at this step.
  void Reach(int64_t step) {
    for (int64_t before = step_; before < step && !step_.compare_exchange_weak(before, step);) {
    }
    step_.notify_all();
  }
  // Waits until a worker is at this step or later.
  void Await(int64_t step) const {
    for (int64_t now = step_; now < step; now = step_) step_.wait(now);
  }

 private:
  std::atomic<int64_t> step_ = 0;
};

// Prepares a job of SGD in which the weights count the pushes: a gradient of -10 times a rate of 0.1 is 1.
void CountPushes(TestWorker& worker);

double RelativeDistance(const std::vector<float>& a, const std::vector<float>& b);

}  // namespace psring

#include <gtest/gtest.h>

#include <thread>

template <typename Body>
void psring::ForEachRank(int ranks, const Body& body) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) threads.emplace_back([&body, rank] { body(rank); });
  for (std::thread& thread : threads) thread.join();
}

template <typename Servers, typename Body>
void psring::StartWorkers(const ServerJob& job, Servers& servers, const Body& body,
                          const PrepareWorker& prepare) {
  ForEachRank(job.workers, [&](int rank) {
    TestWorker worker(job, rank, servers.NewClient());
    if (prepare) prepare(worker);
    ASSERT_EQ(worker.Start(), absl::OkStatus());
    body(worker);
  });
}

template <typename Servers, typename Body>
void psring::RunWorkers(const ServerJob& job, Servers& servers, const Body& body,
                        const PrepareWorker& prepare) {
  const auto and_leave = [&](TestWorker& worker) {
    body(worker);
    if (testing::Test::HasFatalFailure()) return;
    ASSERT_EQ(worker.client->Leave(Soon()), absl::OkStatus());
  };
  StartWorkers(job, servers, and_leave, prepare);
}
