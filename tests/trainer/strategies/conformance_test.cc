// Compares every strategy, on 1 to 4 workers and with every optimizer, with one process that adds as many
// micro-batches.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/deadline.h"
#include "tests/has.h"
#include "tests/trainer/cluster.h"

namespace psring {
namespace {

// Each strategy on 1 to 4 workers, those of other libraries on up to 3; strategies of one process on 1.
struct Setting {
  const StrategyRow* row;
  int workers;

  // As users give it, with its smallest number if it has one.
  std::string name() const {
    return row->has_number() ? absl::StrCat(row->name, ":", row->number_least) : row->name;
  }
};
std::vector<Setting> Settings(const std::function<bool(const Setting&)>& wanted) {
  std::vector<Setting> settings;
  for (const StrategyRow& row : StrategyRows()) {
    if (!RunsOnThreads(row) || row.has_only_rows_on_servers()) continue;  // step/table_servers_test.cc
    const int most = row.single_process ? 1 : row.backend == "native" ? 4 : 3;
    for (int workers = 1; workers <= most; ++workers) {
      if (wanted({&row, workers})) settings.push_back({&row, workers});
    }
  }
  return settings;
}

class Conformance : public testing::TestWithParam<Setting> {
 protected:
  const StrategyRow& row() const { return *GetParam().row; }
  int workers() const { return GetParam().workers; }
  std::string name() const { return GetParam().name(); }
  TrainingOptions Options(const std::string& optimizer = "") const {
    TrainingOptions options = SmallOptions(name());
    options.optimizer = optimizer;
    return options;
  }
  std::vector<RankOutcome> Train(const TrainingOptions& options) const {
    return TrainRanks(options, workers(), SmallData());
  }
  const RankOutcome& Reference(const TrainingOptions& options) const {
    return OneProcess(options, workers(), SmallData());
  }
};

std::string SettingName(const testing::TestParamInfo<Setting>& info) {
  std::string name = absl::StrCat(info.param.row->name, "_", info.param.workers);
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

class SynchronousConformance : public Conformance {};

TEST_P(SynchronousConformance, ReplicasAreEqualAfterEachStepAndCloseToTheReference) {
  for (const std::string& optimizer : kOptimizers) {
    SCOPED_TRACE(optimizer);
    TrainingOptions options = Options(optimizer);
    options.check_replicas = true;
    // Ten times stricter than documented: rounding causes a few 1e-8. Adam has a separate test.
    const auto outcomes =
        optimizer == "adam" ? Train(options) : ExpectOneProcess(options, workers(), SmallData(), 1e-5);
    std::set<std::string> hashes;
    for (const RankOutcome& outcome : outcomes) {
      ASSERT_EQ(outcome.steps.size(), 20);
      for (size_t step = 0; step < 20; ++step) {
        EXPECT_EQ(outcome.steps[step].weights_hash, outcomes[0].steps[step].weights_hash) << "step " << step;
        hashes.insert(outcome.steps[step].weights_hash);
      }
      EXPECT_EQ(outcome.result->weights_hash, outcomes[0].steps[19].weights_hash);
    }
    EXPECT_EQ(hashes.size(), 20) << "a step did not change the weights";
  }
}

// One SGD step at so high a rate leaves only the mean gradient: the initial weights are lost in rounding.
constexpr double kHighRate = 1 << 20;
TrainingOptions AtHighRate(TrainingOptions options) {
  options.optimizer = "sgd";
  options.lr = kHighRate;
  options.steps = 1;
  return options;
}
std::vector<float> GradientOf(const RankOutcome& of_one_step) {
  std::vector<float> gradient = of_one_step.weights;
  for (float& element : gradient) element = static_cast<float>(-element / kHighRate);
  return gradient;
}

TEST_P(SynchronousConformance, TheFirstGradientEqualsTheReferenceUpToRounding) {
  const std::vector<float> expected = GradientOf(Reference(AtHighRate(Options())));
  EXPECT_GT(*std::max_element(expected.begin(), expected.end()), 1e-3);
  // Both add the same `workers()` float32 terms in different orders: each of their additions rounds by at
  // most 2^-24 of a partial sum.
  EXPECT_LE(RelativeL2(GradientOf(Train(AtHighRate(Options()))[0]), expected), 1e-6);
}

// Adam divides by the gradient's own size, so an element whose gradient is only rounding noise moves by a
// full step in either direction. All others must agree.
TEST_P(SynchronousConformance, AdamMovesElementsLikeTheReference) {
  TrainingOptions options = Options("adam");
  options.lr = 1e-3;
  options.steps = 3;
  const std::vector<float> weights = Train(options)[0].weights;
  const std::vector<float>& reference = Reference(options).weights;
  const std::vector<float> gradient = GradientOf(Reference(AtHighRate(Options())));
  size_t compared = 0;
  for (size_t i = 0; i < gradient.size(); ++i) {
    const double difference = std::abs(double{weights[i]} - reference[i]);
    if (std::abs(gradient[i]) < 1e-5) {
      EXPECT_LE(difference, 2.1 * static_cast<double>(options.steps) * options.lr) << "element " << i;
      continue;
    }
    ++compared;
    EXPECT_LE(difference, 1e-3 * options.lr) << "element " << i << ", gradient " << gradient[i];
  }
  EXPECT_GT(compared, gradient.size() / 2);
}

TEST_P(SynchronousConformance, ClippedReplicasAreCloseToTheClippedReference) {
  TrainingOptions options = Options("sgd");
  options.clip_norm = kClipNorm;
  ExpectOneProcess(options, workers(), SmallData(), 1e-5);
  EXPECT_GT(RelativeL2(Reference(options).weights, Reference(Options("sgd")).weights), 1e-3);
}

// Strategies that do not keep the whole gradient send it for every batch.
TEST_P(SynchronousConformance, AccumulatedBatchesAreOneStepAndSentOnce) {
  TrainingOptions options = Options("sgd");
  options.clip_norm = kClipNorm;
  const auto without = Train(options);
  options.micro_batches = 3;
  const auto outcomes = Train(options);
  const int spare = row().number_below_workers ? FindStrategy(name())->number : 0;
  for (int rank = 0; rank < workers(); ++rank) {
    EXPECT_EQ(outcomes[rank].weights, outcomes[0].weights);
    EXPECT_EQ(outcomes[rank].result->global_batch, 3 * (workers() - spare) * options.batch);
    for (size_t step = 0; step < 20; ++step) {
      EXPECT_EQ(outcomes[rank].steps[step].samples, 3 * options.batch);
      const uint64_t sent = outcomes[rank].steps[step].payload_tx_bytes;
      const uint64_t once = without[rank].steps[step].payload_tx_bytes;
      if (!row().shards_gradients || workers() == 1) {
        EXPECT_EQ(sent, once);
        continue;
      }
      // A unit whose weights are there is not gathered again.
      const double most = row().SentPart(1, 3) / row().SentPart(1) * static_cast<double>(once);
      EXPECT_LE(static_cast<double>(sent), most * 1.01);
      EXPECT_GE(static_cast<double>(sent), most * (row().shards_weights ? .8 : .99));
    }
  }
  // One process with one batch of as many samples, without micro-batches.
  options.micro_batches = 1;
  options.batch *= 3 * workers();
  EXPECT_LE(RelativeL2(outcomes[0].weights, OneProcess(options, 1, SmallData()).weights), 1e-5);
}

// 33 samples for 4 workers of 8 leave one sample for the last step; 5 leave one worker without samples
// immediately.
TEST_P(SynchronousConformance, EverySampleCountsOnceInAShortLastBatch) {
  if (row().number_below_workers) GTEST_SKIP() << "drops gradients";
  for (const auto& [train, accumulate] : {std::pair{5, 1}, {33, 2}, {61, 1}}) {
    SCOPED_TRACE(absl::StrCat(train, " samples, ", accumulate, " batches a step"));
    const DataSplits data =
        MakeSyntheticData({.height = 8, .width = 8, .train = train, .test = 10}, /*seed=*/5);
    TrainingOptions options = Options("sgd");
    options.drop_last = "false";
    options.micro_batches = accumulate;
    options.steps = 0;
    options.epochs = 3;
    const auto outcomes = TrainRanks(options, workers(), data);
    int64_t samples = 0;
    for (const RankOutcome& outcome : outcomes) {
      samples += outcome.result->samples;
      EXPECT_EQ(outcome.weights, outcomes[0].weights);
      EXPECT_EQ(outcome.steps.size(), outcomes[0].steps.size());
    }
    EXPECT_EQ(samples, 3 * train);
    options.micro_batches = 1;
    options.batch *= accumulate * workers();
    EXPECT_LE(RelativeL2(outcomes[0].weights, OneProcess(options, 1, data).weights), 1e-5);
  }
}

INSTANTIATE_TEST_SUITE_P(Strategies, SynchronousConformance,
                         testing::ValuesIn(Settings([](const Setting& s) { return s.row->synchronous; })),
                         SettingName);

TEST_P(Conformance, RecordsEveryStep) {
  TrainingOptions options = Options();
  options.steps = 4;
  options.warmup_steps = 2;
  const auto outcomes = Train(options);
  // Asynchronous workers share the steps: faster ones make more.
  const bool shares = name() == "ps-async";
  size_t all_steps = 0;
  for (const RankOutcome& outcome : outcomes) all_steps += outcome.steps.size();
  EXPECT_EQ(all_steps, 6 * static_cast<size_t>(workers()));
  for (int rank = 0; rank < workers(); ++rank) {
    const auto steps = static_cast<int64_t>(outcomes[rank].steps.size());
    if (!shares) {
      ASSERT_EQ(steps, 6);
    }
    const int64_t measured = std::max<int64_t>(0, steps - 2);
    const RankResult& result = *outcomes[rank].result;
    EXPECT_EQ(result.strategy, name());
    EXPECT_EQ(result.rank, rank);
    EXPECT_EQ(result.world_size, workers());
    EXPECT_EQ(result.steps, 4);
    EXPECT_EQ(result.samples, measured * options.batch);
    EXPECT_EQ(result.global_batch, workers() * options.batch);
    EXPECT_EQ(result.bucket_elements.size(), 3);
    if (measured > 0) {
      EXPECT_GT(result.wall_s, 0);
    }
    double measured_ms = 0;
    for (int64_t step = 0; step < steps; ++step) {
      const StepRecord& record = outcomes[rank].steps[step];
      EXPECT_EQ(record.step, step);
      EXPECT_EQ(record.warmup, step < 2);
      EXPECT_GT(record.compute_ms, 0);
      EXPECT_LE(record.compute_ms + record.exposed_comm_ms, record.step_ms);
      if (!record.warmup) measured_ms += record.step_ms;
      ASSERT_EQ(record.buckets.size(), 3);
      for (size_t b = 0; b < 3; ++b) {
        const BucketRecord& bucket = record.buckets[b];
        EXPECT_EQ(bucket.bucket, b);
        EXPECT_LE(record.begin_ns, bucket.ready_ns);
        EXPECT_LE(bucket.ready_ns, bucket.begin_ns);
        EXPECT_LE(bucket.begin_ns, bucket.end_ns);
      }
    }
    EXPECT_NEAR(result.wall_s, measured_ms / 1000, 1e-9);
  }
}

// The gradient's elements that rank `rank` of `n` sends in a ring all-reduce of `count`: all chunks but one
// in each of the two halves.
uint64_t RingElements(uint64_t count, int n, int rank) {
  const auto chunk = [&](int c) { return (c + 1) * count / n - c * count / n; };
  // Scatter-reduce ends with the chunk after the rank's own, which it never sends; all-gather starts with
  // that chunk and never sends the one after it.
  return 2 * count - chunk((rank + 1) % n) - chunk((rank + 2) % n);
}

TEST_P(Conformance, SendsExactlyTheTheoreticalBytes) {
  const auto outcomes = Train(Options());
  if (row().uses_group && name() != "ring" && name() != "star") {
    // In total, one gradient in each direction for every rank except one.
    double sent = 0;
    for (const RankOutcome& outcome : outcomes) sent += double(outcome.steps.front().payload_tx_bytes);
    const double gradient = double(GradientBytes(*outcomes[0].result));
    const double gathered = 4. * double(outcomes[0].result->gathered_elements);
    EXPECT_NEAR(sent, (workers() - 1) * (gradient + (row().shards_weights ? gathered : gradient)),
                3 * 4 * 3 * workers());
    return;
  }
  for (int rank = 0; rank < workers(); ++rank) {
    const RankResult& result = *outcomes[rank].result;
    const uint64_t gradient = GradientBytes(result);
    uint64_t sent = 0, received = 0;
    if (row().uses_servers) {
      sent = received = gradient;
    } else if (name() == "star" && workers() > 1) {
      sent = received = rank == 0 ? (workers() - 1) * gradient : gradient;
    } else if (name() == "ring" && workers() > 1) {
      for (const uint64_t elements : result.bucket_elements) {
        sent += 4 * RingElements(elements, workers(), rank);
        received += 4 * RingElements(elements, workers(), (rank + workers() - 1) % workers());
      }
      // 2(N-1)/N of the gradient, up to the rounding of chunks.
      EXPECT_NEAR(sent, 2.0 * (workers() - 1) / workers() * gradient, 2 * 4 * result.bucket_elements.size());
    }
    for (const StepRecord& record : outcomes[rank].steps) {
      EXPECT_EQ(record.payload_tx_bytes, sent) << "rank " << rank << ", step " << record.step;
      EXPECT_EQ(record.payload_rx_bytes, received) << "rank " << rank << ", step " << record.step;
    }
  }
}

class Dependence : public Conformance {};

TEST_P(Dependence, AFailedRankStopsTheOthers) {
  const int failing = workers() - 1;
  TrainingOptions options = Options();
  options.warmup_steps = 3;
  options.steps = 10'000;  // so that an asynchronous rank does not finish before the failure reaches it
  // With Gloo only neighbors are sure to see a closed connection; the others may wait for their timeout.
  if (name() == "gloo") options.timeout_s = 5;
  const MonotonicTime begin = MonotonicNow();
  const auto outcomes = RunRanks(options, workers(), SmallData(), [&](Worker& worker) {
    // Workers of a server wait at the server.
    if (worker.client != nullptr && worker.rank == failing) {
      worker.on_step = [client = worker.client](const StepRecord& record) {
        if (record.step == 2) client->Abort(absl::InternalError("the disk is full"));
      };
      return;
    }
    // The second barrier comes before step 3.
    worker.barrier = [calls = 0, fails = worker.rank == failing]() mutable {
      return fails && ++calls == 2 ? absl::InternalError("the disk is full") : absl::OkStatus();
    };
  });
  EXPECT_LT(MonotonicNow() - begin, absl::Seconds(25)) << "before any timeout";
  for (int rank = 0; rank < workers(); ++rank) {
    ASSERT_FALSE(outcomes[rank].result.ok()) << "rank " << rank;
    const std::string message(outcomes[rank].result.status().message());
    if (rank == failing) {
      EXPECT_THAT(message, testing::EndsWith("the disk is full"));
    } else {
      // Other libraries see a closed connection and do not know the cause.
      const std::string other = row().backend != "native" ? row().backend : "the disk is full";
      EXPECT_THAT(message,
                  testing::AnyOf(Has(absl::StrCat("rank ", failing)), Has(absl::StrCat("worker ", failing)),
                                 Has("the disk is full"), Has(other)))
          << "rank " << rank;
      EXPECT_THAT(message, Has("step "));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Strategies, Conformance,
                         testing::ValuesIn(Settings([](const Setting&) { return true; })), SettingName);

INSTANTIATE_TEST_SUITE_P(Strategies, Dependence, testing::ValuesIn(Settings([](const Setting& s) {
                           return s.row->communicates() && s.workers > 1;
                         })),
                         SettingName);

// zero1 sends gradients in 16 bits and weights in 32.
TEST_P(SynchronousConformance, With16BitsItIsCloseToFloat32AndSendsHalf) {
  if (!row().uses_group || workers() == 1) GTEST_SKIP() << "no all-reduce";
  if (row().shards_gradients) GTEST_SKIP() << "float32 only";
  for (const auto& [wire, clip_norm, tolerance] :
       {std::tuple{"bfloat16", 0.0, 5e-3}, {"float16", kClipNorm, 1e-3}}) {
    TrainingOptions options = Options();
    options.clip_norm = clip_norm;
    const auto full = Train(options);
    options.wire = wire;
    const auto half = Train(options);
    for (int rank = 0; rank < workers(); ++rank) {
      EXPECT_EQ(half[rank].weights, half[0].weights);
      // Up to the rounding of chunks.
      const double part = name() == "zero1" ? .75 : .5;
      EXPECT_NEAR(static_cast<double>(half[rank].steps[5].payload_tx_bytes),
                  part * static_cast<double>(full[rank].steps[5].payload_tx_bytes), 2 * 4 * 3);
    }
    EXPECT_LE(RelativeL2(half[0].weights, full[0].weights), tolerance) << wire;
    EXPECT_NE(half[0].weights, full[0].weights);
  }
}

}  // namespace
}  // namespace psring
