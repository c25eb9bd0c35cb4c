#include "ps_server/server_job.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>

namespace psring {
namespace {

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
      {"optimizer", [](ServerJob& job) { job.optimizer.kind = OptimizerKind::kAdam; }},
      {"momentum", [](ServerJob& job) { job.optimizer.momentum = 0.5; }},
      {"beta1", [](ServerJob& job) { job.optimizer.beta1 = 0.5; }},
      {"beta2", [](ServerJob& job) { job.optimizer.beta2 = 0.5; }},
      {"epsilon", [](ServerJob& job) { job.optimizer.epsilon = 0.5; }},
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
  // A bucket without elements may stand anywhere between two others.
  EXPECT_FALSE(refuses([](ServerJob& job) { job.buckets.push_back({.index = 2, .first = 6, .count = 0}); }));
}

}  // namespace
}  // namespace psring
