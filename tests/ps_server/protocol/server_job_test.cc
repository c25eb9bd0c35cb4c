#include "ps_server/protocol/server_job.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/device/counting_device.h"
#include "ps_server/protocol/messages.h"
#include "ps_server/shard/job_memory.h"

namespace psring {
namespace {

using ::testing::HasSubstr;

ServerJob Job() {
  ServerJob job{.workers = 2, .parameters = 10};
  job.buckets = {{.index = 0, .first = 6, .count = 4}, {.index = 1, .first = 0, .count = 6}};
  return job;
}

TEST(ServerJobTest, NamesTheFieldAndTheWorkerThatDiffer) {
  struct Case {
    const char* field;
    std::function<void(ServerJob&)> change;
  };
  const std::vector<Case> cases = {
      {"workers", [](ServerJob& job) { job.workers = 3; }},
      {"consistency", [](ServerJob& job) { job.consistency = "async"; }},
      {"deterministic", [](ServerJob& job) { job.deterministic = true; }},
      {"serial", [](ServerJob& job) { job.serial = true; }},
      {"server", [](ServerJob& job) { job.server = 1; }},
      {"number of servers", [](ServerJob& job) { job.servers = 2; }},
      {"clip_norm", [](ServerJob& job) { job.clip_norm = 1; }},
      {"staleness_lr", [](ServerJob& job) { job.staleness_lr = true; }},
      {"wire", [](ServerJob& job) { job.wire = DType::kFloat16; }},
      {"parameters", [](ServerJob& job) { job.parameters = 11; }},
      {"number of buckets", [](ServerJob& job) { job.buckets.pop_back(); }},
      {"bucket plan", [](ServerJob& job) { job.buckets[1].count = 5; }},
      {"number of tables", [](ServerJob& job) { job.tables.push_back({.rows = 1, .width = 1}); }},
      {"seed of tables", [](ServerJob& job) { job.table_seed = 1; }},
      {"row_arrays", [](ServerJob& job) { job.row_arrays = 1; }},
      {"optimizer", [](ServerJob& job) { job.optimizer.kind = OptimizerKind::kAdam; }},
      {"momentum", [](ServerJob& job) { job.optimizer.momentum = 0.5; }},
      {"beta1", [](ServerJob& job) { job.optimizer.beta1 = 0.5; }},
      {"beta2", [](ServerJob& job) { job.optimizer.beta2 = 0.5; }},
      {"epsilon", [](ServerJob& job) { job.optimizer.epsilon = 0.5; }},
      {"weight decay", [](ServerJob& job) { job.optimizer.weight_decay = 0.5; }},
      {"weights without decay",
       [](ServerJob& job) {
         job.optimizer.no_decay = {{2, 3}};
       }},
      {"decay", [](ServerJob& job) { job.schedule.decay = LrDecay::kLinear; }},
      {"learning rate", [](ServerJob& job) { job.schedule.base = 1; }},
      {"scale", [](ServerJob& job) { job.schedule.scale = 2; }},
      {"warm-up", [](ServerJob& job) { job.schedule.warmup_samples = 2; }},
      {"total samples", [](ServerJob& job) { job.schedule.total_samples = 2; }},
  };
  EXPECT_TRUE(RequireSameJob(Job(), Job(), 1).ok());
  for (const Case& c : cases) {
    ServerJob other = Job();
    c.change(other);
    const absl::Status status = RequireSameJob(Job(), other, 7);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find(c.field), std::string::npos) << status;
    EXPECT_NE(status.message().find("worker 7"), std::string::npos) << status;
  }
}

TEST(ServerJobTest, TablesAreBounded) {
  const auto valid = [](const Table& table, const std::function<void(ServerJob&)>& change = nullptr) {
    ServerJob job = Job();
    job.optimizer.kind = OptimizerKind::kSgd;
    job.tables = {{.rows = 1, .width = 1}, table};
    if (change) change(job);
    return ValidateServerJob(job).ok();
  };
  const Table sound{.rows = 1 << 30, .width = 65536, .bound = 1};
  EXPECT_TRUE(valid(sound));
  EXPECT_FALSE(valid({.rows = 0, .width = 1}));
  EXPECT_FALSE(valid({.rows = -1, .width = 1}));
  EXPECT_FALSE(valid({.rows = (1 << 30) + 1, .width = 1}));
  EXPECT_FALSE(valid({.rows = 1, .width = 0}));
  EXPECT_FALSE(valid({.rows = 1, .width = 65537}));
  EXPECT_FALSE(valid({.rows = 1, .width = 1, .bound = std::nanf("")}));
  EXPECT_FALSE(valid(sound, [](ServerJob& job) { job.tables.resize(4097, {.rows = 1, .width = 1}); }));
  EXPECT_FALSE(valid(sound, [](ServerJob& job) { job.optimizer.kind = OptimizerKind::kMomentum; }));
  EXPECT_FALSE(valid(sound, [](ServerJob& job) { job.clip_norm = 1; }));
  EXPECT_TRUE(valid(sound, [](ServerJob& job) { job.start_step = 1; }));
  EXPECT_TRUE(valid(sound, [](ServerJob& job) { job.row_arrays = 1; }));
  EXPECT_FALSE(valid(sound, [](ServerJob& job) { job.row_arrays = -1; }));
  EXPECT_FALSE(valid(sound, [](ServerJob& job) { job.row_arrays = 2; })) << "sgd has no state";
  const auto adam = [&](int arrays) {
    return valid(sound, [&](ServerJob& job) {
      job.optimizer.kind = OptimizerKind::kAdam;
      job.row_arrays = arrays;
    });
  };
  EXPECT_TRUE(adam(1) && adam(3));
  EXPECT_FALSE(adam(2) || adam(4));
  EXPECT_FALSE(valid(sound, [](ServerJob& job) { job.tables.clear(), job.row_arrays = 1; }));
}

TEST(ServerJobTest, BucketsMustCoverEveryParameterOnce) {
  EXPECT_TRUE(ValidateServerJob(Job()).ok());
  EXPECT_TRUE(ValidateServerJob({.workers = 1}).ok());
  const auto refuses = [](const std::function<void(ServerJob&)>& change) {
    ServerJob job = Job();
    change(job);
    return !ValidateServerJob(job).ok();
  };
  EXPECT_TRUE(refuses([](ServerJob& job) { job.workers = 0; }));
  EXPECT_TRUE(refuses([](ServerJob& job) { job.consistency = "eventual"; }));
  EXPECT_TRUE(refuses([](ServerJob& job) { job.parameters = -1; }));
  EXPECT_TRUE(refuses([](ServerJob& job) { job.server = 1; }));  // of one
  EXPECT_TRUE(refuses([](ServerJob& job) { job.clip_norm = -1; }));
  EXPECT_TRUE(refuses([](ServerJob& job) { job.clip_norm = 1, job.consistency = "async"; }));
  EXPECT_TRUE(refuses([](ServerJob& job) { job.staleness_lr = true; }));  // synchronous
  EXPECT_TRUE(refuses([](ServerJob& job) { job.parameters = 11; }));
  EXPECT_TRUE(refuses([](ServerJob& job) { job.buckets[1].count = 5; }));                   // a gap
  EXPECT_TRUE(refuses([](ServerJob& job) { job.buckets[1].count = 7; }));                   // an overlap
  EXPECT_TRUE(refuses([](ServerJob& job) { job.buckets[0].count = ~size_t{0}; }));          // an overflow
  EXPECT_TRUE(refuses([](ServerJob& job) { std::swap(job.buckets[0], job.buckets[1]); }));  // out of order
}

TEST(ServerJobTest, BucketsMayBeEmptyOnlyWithSeveralServers) {
  ServerJob job = Job();
  job.buckets.push_back({.index = 2, .first = 6, .count = 0});
  EXPECT_THAT(std::string(ValidateServerJob(job).message()),
              HasSubstr("bucket 2 at 6 + 0 has no parameters"));
  job.servers = 2;
  EXPECT_EQ(ValidateServerJob(job), absl::OkStatus());
}

TEST(ServerJobTest, TheNumberOfBucketsIsBounded) {
  ServerJob job{.workers = 1, .servers = 2};
  job.buckets.resize(kMaxBuckets);
  for (size_t i = 0; i < job.buckets.size(); ++i) job.buckets[i].index = static_cast<int>(i);
  EXPECT_EQ(ValidateServerJob(job), absl::OkStatus());
  job.buckets.push_back({.index = static_cast<int>(kMaxBuckets)});
  EXPECT_THAT(std::string(ValidateServerJob(job).message()),
              HasSubstr("the job has 65537 buckets, and at most 65536 are possible"));
}

TEST(ServerJobTest, NumbersMustBePossible) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  struct Case {
    const char* error;
    std::function<void(ServerJob&)> change;
  };
  const std::vector<Case> cases = {
      {"momentum is nan", [](ServerJob& job) { job.optimizer.momentum = kNan; }},
      {"beta1 is nan", [](ServerJob& job) { job.optimizer.beta1 = kNan; }},
      {"beta2 is inf", [](ServerJob& job) { job.optimizer.beta2 = kInfinity; }},
      {"beta1 is 1; it must be below 1", [](ServerJob& job) { job.optimizer.beta1 = 1; }},
      {"beta2 is -0.5", [](ServerJob& job) { job.optimizer.beta2 = -0.5; }},
      {"momentum is -0.5; it must be finite, and at least 0",
       [](ServerJob& job) { job.optimizer.momentum = -0.5; }},
      {"weight decay is nan", [](ServerJob& job) { job.optimizer.weight_decay = kNan; }},
      {"weights without decay at 5 + 6",
       [](ServerJob& job) {
         job.optimizer.no_decay = {{0, 1}, {5, 6}};
       }},
      {"weights without decay at 2 + 1",
       [](ServerJob& job) {
         job.optimizer.no_decay = {{0, 3}, {2, 1}};
       }},
      {"weights without decay at 18446744073709551615 + 2",
       [](ServerJob& job) {
         job.optimizer.no_decay = {{size_t{0} - 1, 2}};
       }},
      {"epsilon is nan", [](ServerJob& job) { job.optimizer.epsilon = kNan; }},
      {"epsilon is -1e-08", [](ServerJob& job) { job.optimizer.epsilon = -1e-8; }},
      {"learning rate is -1", [](ServerJob& job) { job.schedule.base = -1; }},
      {"scale is -1", [](ServerJob& job) { job.schedule.scale = -1; }},
      {"learning rate is inf", [](ServerJob& job) { job.schedule.base = kInfinity; }},
      {"scale is nan", [](ServerJob& job) { job.schedule.scale = kNan; }},
      {"clip_norm is inf", [](ServerJob& job) { job.clip_norm = kInfinity; }},
      {"clip_norm nan", [](ServerJob& job) { job.clip_norm = kNan; }},
      {"warm-up is -1", [](ServerJob& job) { job.schedule.warmup_samples = -1; }},
      {"of -9223372036854775808", [](ServerJob& job) { job.schedule.total_samples = INT64_MIN; }},
      {"start_step is 1099511627777", [](ServerJob& job) { job.start_step = kMaxWireCount + 1; }},
      {"start_samples -1", [](ServerJob& job) { job.start_samples = -1; }},
      {"earlier_updates is -1 in a job that starts with update 0",
       [](ServerJob& job) { job.optimizer.earlier_updates = -1; }},
      {"earlier_updates is -8 in a job that starts with update 7",
       [](ServerJob& job) { job.start_step = 7, job.optimizer.earlier_updates = -8; }},
      {"earlier_updates is 9223372036854775807",
       [](ServerJob& job) { job.optimizer.earlier_updates = INT64_MAX; }},
  };
  for (const Case& c : cases) {
    ServerJob job = Job();
    c.change(job);
    EXPECT_THAT(std::string(ValidateServerJob(job).message()), HasSubstr(c.error));
  }
}

// A device with this much free memory.
class SmallDevice : public CountingDevice {
 public:
  SmallDevice(Device& real, size_t free) : CountingDevice(real), free_(free) {}
  std::optional<Memory> memory() const override { return Memory{.free = free_, .total = free_}; }

 private:
  const size_t free_;
};

TEST(JobMemoryTest, IncludesWeightsSumStateAndTransfers) {
  ServerJob job{.workers = 2, .parameters = 1000};
  job.optimizer.kind = OptimizerKind::kAdam;
  EXPECT_EQ(MemoryOf(job, /*device_is_host=*/true).on_device, 4000 * (1 + 1 + 2 + 1));
  EXPECT_EQ(MemoryOf(job, /*device_is_host=*/true).on_host, 0);
  EXPECT_EQ(MemoryOf(job, /*device_is_host=*/false).on_device, 4000 * (1 + 1 + 2));
  EXPECT_EQ(MemoryOf(job, /*device_is_host=*/false).on_host, 4000 * 2);
  job.consistency = "async";
  job.optimizer.kind = OptimizerKind::kSgd;
  EXPECT_EQ(MemoryOf(job, /*device_is_host=*/true).on_device, 4000 * (1 + 1));
  const double before = MemoryOf(job, true).on_device;
  job.buckets.resize(3);
  EXPECT_GE(MemoryOf(job, true).on_device, before + 3 * 2 * sizeof(void*));
}

TEST(JobMemoryTest, IncludesPushesThatAreStagedAtTheSameTime) {
  const auto bytes = [](const ServerJob& job) { return MemoryOf(job, /*device_is_host=*/false).on_device; };
  ServerJob job{.workers = 3, .parameters = 1000};
  job.optimizer.kind = OptimizerKind::kSgd;
  EXPECT_EQ(bytes(job), 4000 * 2) << "weights and sum";
  job.deterministic = true;
  EXPECT_EQ(bytes(job), 4000 * (1 + 3)) << "the gradient of every worker";
  job.deterministic = false;
  job.consistency = "async";
  job.buckets = {{.index = 0, .first = 0, .count = 400}, {.index = 1, .first = 400, .count = 600}};
  EXPECT_EQ(bytes(job), 4000 + 2400) << "one push";
  job.serial = true;
  EXPECT_EQ(bytes(job), 4000 * 2) << "the pushes of one step";
}

TEST(JobMemoryTest, AJobThatDoesNotFitIsRejectedWithTheAvailableMemory) {
  const std::unique_ptr<Device> cpu = MakeCpuDevice();
  const SmallDevice device(*cpu, size_t{80} << 20);  // of which 70 MiB may be used
  ServerJob job{.workers = 1, .parameters = 5 << 20};
  job.optimizer.kind = OptimizerKind::kSgd;
  EXPECT_EQ(RequireMemory(job, device), absl::OkStatus());
  job.parameters = 6 << 20;
  const absl::Status refused = RequireMemory(job, device);
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(
      refused.message(),
      "the parameter server needs 72.0 MiB for 6291456 parameters (weights, sum, 0 x optimizer state) in "
      "0 buckets, and 70.0 MiB are available on cpu; use a smaller model or more servers");
  for (const int64_t parameters : {int64_t{1} << 59, int64_t{1} << 62, INT64_MAX}) {
    job.parameters = parameters;
    EXPECT_EQ(RequireMemory(job, *cpu).code(), absl::StatusCode::kResourceExhausted);
  }
}

TEST(JobMemoryTest, IncludesBookkeepingPerBucketAndWorker) {
  const std::unique_ptr<Device> cpu = MakeCpuDevice();
  ServerJob job{.workers = 65536};
  job.buckets.resize(kMaxBuckets);
  EXPECT_EQ(RequireMemory(job, SmallDevice(*cpu, size_t{64} << 30)).code(),
            absl::StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace psring
