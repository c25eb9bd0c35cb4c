// The metrics of hand-made steps.
#include "trainer/process/worker_metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

namespace psring {
namespace {

using testing::HasSubstr;

StepRecord Step() {
  StepRecord step;
  step.samples = 128;
  step.step_ms = 4;
  step.compute_ms = 3;
  step.exposed_comm_ms = 0.5;
  step.payload_tx_bytes = 1000;
  step.payload_rx_bytes = 2000;
  step.loss = 1.5;
  step.buckets = {{.staleness = 0}, {.staleness = 5}, {.staleness = -1}};
  return step;
}

TEST(WorkerMetrics, SumsOverSteps) {
  WorkerMetrics metrics(2, "ps-async");
  metrics.Count(Step());
  metrics.Count(Step());
  const std::string text = metrics.Text();
  const std::string labels = "{rank=\"2\",strategy=\"ps-async\"}";
  EXPECT_THAT(text, HasSubstr("psring_steps_total" + labels + " 2\n"));
  EXPECT_THAT(text, HasSubstr("psring_samples_total" + labels + " 256\n"));
  EXPECT_THAT(text, HasSubstr("psring_sent_bytes_total" + labels + " 2000\n"));
  EXPECT_THAT(text, HasSubstr("psring_received_bytes_total" + labels + " 4000\n"));
  EXPECT_THAT(text, HasSubstr("psring_wait_seconds_total" + labels + " 0.001\n"));
  EXPECT_THAT(text, HasSubstr("psring_loss" + labels + " 1.5\n"));
  EXPECT_THAT(text, HasSubstr("psring_step_seconds_count" + labels + " 2\n"));
  EXPECT_THAT(text, HasSubstr("le=\"0.005\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("le=\"0.002\"} 0\n"));
  // Buckets that no server answered have no staleness.
  EXPECT_THAT(text, HasSubstr("psring_staleness_count" + labels + " 4\n"));
  EXPECT_THAT(text, HasSubstr("psring_staleness_sum" + labels + " 10\n"));
  EXPECT_THAT(text, HasSubstr("psring_staleness_bucket{rank=\"2\",strategy=\"ps-async\",le=\"0.0\"} 2\n"));
  EXPECT_THAT(text, testing::EndsWith("# EOF\n"));
}

TEST(WorkerMetrics, CountsAStepLongerThanAllBounds) {
  WorkerMetrics metrics(0, "ring");
  StepRecord step = Step();
  step.step_ms = 1e6;
  metrics.Count(step);
  EXPECT_THAT(metrics.Text(), HasSubstr("le=\"20.0\"} 0\n"));
  EXPECT_THAT(metrics.Text(), HasSubstr("strategy=\"ring\",le=\"+Inf\"} 1\n"));
}

TEST(WorkerMetrics, CanBeReadWhileCounting) {
  WorkerMetrics metrics(0, "ring");
  std::thread reader([&] {
    for (int i = 0; i < 200; ++i) EXPECT_THAT(metrics.Text(), testing::EndsWith("# EOF\n"));
  });
  for (int i = 0; i < 5000; ++i) metrics.Count(Step());
  reader.join();
  EXPECT_THAT(metrics.Text(), HasSubstr("psring_steps_total{rank=\"0\",strategy=\"ring\"} 5000\n"));
}

}  // namespace
}  // namespace psring
