#include "tests/ps_server/test_job.h"

#include <cmath>
#include <latch>
#include <utility>

#include "common/base/mutex.h"
#include "common/device_factory/make_ops.h"
#include "common/kernels/reduce.h"
#include "common/ops/gradient_norm.h"
#include "common/ops/ops.h"

namespace psring {

ServerJob MakeJob(int workers, const std::vector<size_t>& bucket_sizes, const JobOptions& options) {
  ServerJob job{.workers = workers,
                .consistency = options.consistency,
                .deterministic = options.deterministic,
                .serial = options.serial,
                .clip_norm = options.clip_norm,
                .wire = options.wire};
  size_t total = 0;
  for (const size_t size : bucket_sizes) total += size;
  job.parameters = static_cast<int64_t>(total);
  for (const size_t size : bucket_sizes) {
    total -= size;
    job.buckets.push_back({.index = static_cast<int>(job.buckets.size()), .first = total, .count = size});
  }
  job.optimizer.kind = options.optimizer;
  job.schedule.base = options.rate;
  return job;
}

std::vector<float> InitialWeights(const ServerJob& job) {
  std::vector<float> weights(job.parameters);
  for (size_t i = 0; i < weights.size(); ++i) weights[i] = static_cast<float>(i % 1013) / 1013 - 0.5f;
  return weights;
}

std::vector<float> Gradient(const ServerJob& job, int worker, int64_t step) {
  std::vector<float> gradient(job.parameters);
  // Numbers whose float32 sum depends on the order of addition.
  uint32_t state = 12345 + 1000 * worker + step;
  for (float& value : gradient) {
    state = state * 1664525 + 1013904223;
    value = static_cast<float>(state >> 8) / (1 << 22) - 2;
  }
  return gradient;
}

int64_t Samples(int worker, int64_t step) { return 16 + worker + step % 3; }

TestWorker::TestWorker(const ServerJob& its_job, int its_rank, std::unique_ptr<PsClient> its_client)
    : job(its_job),
      rank(its_rank),
      weights(job.parameters),
      gradient(job.parameters),
      rounded(job.wire == DType::kFloat32 ? 0 : job.parameters),
      client(std::move(its_client)) {
  if (rank == 0) weights = InitialWeights(job);
}

absl::Status TestWorker::Start(MonotonicTime deadline) {
  const bool rounds = job.wire != DType::kFloat32;
  return client->Start(rank, job,
                       {.weights = {weights.data(), weights.size()},
                        .slots = slots,
                        .shared_gradients = rounds ? rounded.shared() : gradient.shared(),
                        .shared_weights = weights.shared()},
                       deadline);
}

absl::StatusOr<std::vector<ExchangeResult>> TestWorker::Step(int64_t step) {
  gradient = Gradient(job, rank, step);
  return StepAgain(step, Samples(rank, step));
}

absl::StatusOr<std::vector<ExchangeResult>> ExchangeAll(PsClient& client,
                                                        const std::vector<Exchange>& exchanges) {
  std::latch left(std::ssize(exchanges));
  std::vector<ExchangeResult> results(exchanges.size());
  Mutex mutex;
  absl::Status status;
  for (size_t i = 0; i < exchanges.size(); ++i) {
    client.PushPull(exchanges[i], [&, i](absl::StatusOr<ExchangeResult> result) {
      {
        MutexLock lock(mutex);
        status.Update(result.status());
        if (result.ok()) results[i] = *result;
      }
      left.count_down();
    });
  }
  left.wait();
  if (!status.ok()) return status;
  return results;
}

absl::StatusOr<std::vector<ExchangeResult>> TestWorker::StepAgain(int64_t step, int64_t samples) {
  std::vector<Exchange> exchanges;
  for (const Bucket& bucket : job.buckets) exchanges.push_back(Of(bucket, step, samples));
  return ExchangeAll(*client, exchanges);
}

absl::Status TestWorker::Advance(int64_t& step) {
  PSRING_ASSIGN_OR_RETURN(const std::vector<ExchangeResult> results, Step(step));
  const auto back = std::ranges::find_if(results, &ExchangeResult::went_back);
  if (back != results.end()) {
    step = back->version;
    return Fetch();
  }
  step = results.front().dropped ? results.front().version : step + 1;
  return absl::OkStatus();
}

absl::Status TestWorker::Steps(int64_t first, int64_t end) {
  for (int64_t step = first; step < end; ++step) PSRING_RETURN_IF_ERROR(Step(step).status());
  return absl::OkStatus();
}

absl::Status TestWorker::Fetch() { return client->Fetch({weights.data(), weights.size()}, Soon()); }

Exchange TestWorker::Of(const Bucket& bucket, int64_t step, int64_t samples) {
  return {.bucket = bucket.index,
          .step = step,
          .samples = samples,
          .gradient = Sent(bucket),
          .weights = {weights.data() + bucket.first, bucket.count}};
}

ConstSpan TestWorker::Sent(const Bucket& bucket) {
  const float* const from = gradient.data() + bucket.first;
  if (job.wire == DType::kFloat32) return {from, bucket.count};
  uint16_t* const to = rounded.data() + bucket.first;
  cpu::Convert(DType::kFloat32, from, job.wire, to, bucket.count);
  return {to, bucket.count, job.wire};
}

absl::StatusOr<ExchangeResult> TestWorker::ExchangeBucket(int bucket, int64_t step) {
  gradient = Gradient(job, rank, step);
  return ExchangeAgain(bucket, step);
}

absl::StatusOr<ExchangeResult> TestWorker::ExchangeAgain(int bucket, int64_t step) {
  const auto results = ExchangeAll(*client, {Of(job.buckets[bucket], step, Samples(rank, step))});
  if (!results.ok()) return results.status();
  return results->front();
}

std::vector<float> TrainAlone(const ServerJob& job, int64_t steps) {
  const auto device = MakeCpuDevice();
  const auto ops = *MakeOps(*device, 1);
  const auto stream = device->NewStream(StreamKind::kCompute, "reference");
  const Optimizer optimizer = *Optimizer::Create(job.optimizer, *device, job.parameters);
  std::vector<float> weights = InitialWeights(job);
  int64_t samples_before = 0;
  for (int64_t step = 0; step < steps; ++step) {
    std::vector<float> sum = Gradient(job, 0, step);
    int64_t samples = Samples(0, step);
    for (int worker = 1; worker < job.workers; ++worker) {
      const std::vector<float> gradient = Gradient(job, worker, step);
      for (size_t i = 0; i < sum.size(); ++i) sum[i] += gradient[i];
      samples += Samples(worker, step);
    }
    double sum_of_squares = 0;
    for (const Bucket& bucket : job.buckets) {
      sum_of_squares += SumOfSquares(sum.data() + bucket.first, bucket.count);
    }
    optimizer.Apply(0, {weights.data(), weights.size()}, {sum.data(), sum.size()}, samples,
                    LearningRate(job.schedule, samples_before), step + 1, *ops, *stream,
                    *ClipFactor(job.clip_norm, sum_of_squares, samples));
    samples_before += samples;
  }
  PSRING_CHECK(stream->Synchronize().ok());
  return weights;
}

void CountPushes(TestWorker& worker) {
  worker.weights.assign(worker.weights.size(), 0);
  worker.gradient.assign(worker.gradient.size(), -10);
}

double RelativeDistance(const std::vector<float>& a, const std::vector<float>& b) {
  double difference = 0, norm = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference += (double{a[i]} - b[i]) * (double{a[i]} - b[i]);
    norm += double{b[i]} * b[i];
  }
  return norm > 0 ? std::sqrt(difference / norm) : std::sqrt(difference);
}

}  // namespace psring
