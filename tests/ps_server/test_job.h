// Jobs with made-up gradients, a worker that goes through them, and one process that computes the same.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "ps_server/client/ps_client.h"
#include "ps_server/protocol/pieces.h"

namespace psring {

// Buckets of these sizes, the first at the end of the parameters.
ServerJob MakeJob(int workers, const std::vector<size_t>& bucket_sizes);

// What every worker starts from; and the sum that a worker pushes in a step, over `Samples` samples.
std::vector<float> InitialWeights(const ServerJob& job);
std::vector<float> Gradient(const ServerJob& job, int worker, int64_t step);
int64_t Samples(int worker, int64_t step);

inline absl::Time Soon() { return absl::Now() + absl::Seconds(30); }

// One worker's memory and its client.
struct TestWorker {
  TestWorker(const ServerJob& job, int rank, std::unique_ptr<PsClient> client);

  absl::Status Start(absl::Time deadline = Soon());
  // Exchanges every bucket, all in flight at once; returns when all have come back, with their results by
  // bucket.
  absl::StatusOr<std::vector<ExchangeResult>> Step(int64_t step);
  // The same with the gradient as it was left, a sum over so many samples.
  absl::StatusOr<std::vector<ExchangeResult>> StepAgain(int64_t step, int64_t samples);
  // Exchanges one bucket and waits; ExchangeAgain takes the gradient as it was left.
  absl::StatusOr<ExchangeResult> ExchangeBucket(int bucket, int64_t step);
  absl::StatusOr<ExchangeResult> ExchangeAgain(int bucket, int64_t step);

  // What is sent of a bucket: the gradient, or its rounding to the job's wire type.
  ConstSpan Sent(const Bucket& bucket);

  const ServerJob job;
  const int rank;
  std::vector<float> weights;
  std::vector<float> gradient;
  std::vector<uint16_t> rounded;
  std::vector<ConstSpan> slots;      // initial ones of the optimizer; worker 0
  std::unique_ptr<PsClient> client;  // ends first: exchanges in flight use what stands above
};

// One process that adds the workers' gradients in rank order and updates once a step.
std::vector<float> TrainAlone(const ServerJob& job, int64_t steps);

// Runs `body` once for each rank, each on a thread of its own.
template <typename Body>
void ForEachRank(int ranks, const Body& body);

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

double RelativeDistance(const std::vector<float>& a, const std::vector<float>& b);

}  // namespace psring

#include <thread>

template <typename Body>
void psring::ForEachRank(int ranks, const Body& body) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) threads.emplace_back([&body, rank] { body(rank); });
  for (std::thread& thread : threads) thread.join();
}
