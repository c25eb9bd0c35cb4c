// A server's counts as metrics.
#include "ps_server/server/server_metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace psring {
namespace {

using testing::HasSubstr;

TEST(ServerMetrics, EqualTheServersStatistics) {
  ServerStats stats;
  stats.pushes = 7;
  stats.payload = {.payload_tx_bytes = 30, .payload_rx_bytes = 40};
  stats.staleness_histogram = {2, 0, 0, 0, 0, 4};  // 4 at a staleness of 5
  stats.staleness_histogram.resize(201);
  stats.staleness_histogram[200] = 1;
  stats.lost_workers = {1};
  const std::string text = ServerMetricsText(3, stats);
  EXPECT_THAT(text, HasSubstr("psring_server_pushes_total{server=\"3\"} 7\n"));
  EXPECT_THAT(text, HasSubstr("psring_server_received_bytes_total{server=\"3\"} 40\n"));
  EXPECT_THAT(text, HasSubstr("psring_server_sent_bytes_total{server=\"3\"} 30\n"));
  EXPECT_THAT(text, HasSubstr("psring_server_lost_workers{server=\"3\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("{server=\"3\",le=\"0.0\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("{server=\"3\",le=\"4.0\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("{server=\"3\",le=\"6.0\"} 6\n"));
  EXPECT_THAT(text, HasSubstr("{server=\"3\",le=\"128.0\"} 6\n"));
  EXPECT_THAT(text, HasSubstr("{server=\"3\",le=\"+Inf\"} 7\n"));
  EXPECT_THAT(text, HasSubstr("psring_server_staleness_sum{server=\"3\"} 220\n"));
}

TEST(ServerMetrics, AllFamiliesExistBeforeTheFirstPush) {
  const std::string text = ServerMetricsText(0, {});
  EXPECT_THAT(text, HasSubstr("psring_server_pushes_total{server=\"0\"} 0\n"));
  EXPECT_THAT(text, testing::EndsWith("# EOF\n"));
}

}  // namespace
}  // namespace psring
