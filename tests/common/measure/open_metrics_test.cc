// The text format, and that its histograms are sums.
#include "common/measure/open_metrics.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace psring {
namespace {

TEST(OpenMetrics, HasTypeUnitAndHelpOfEachFamilyAndTheEndMarker) {
  OpenMetrics metrics(OpenMetrics::Labels{{"rank", "3"}});
  metrics.Counter("psring_sent", "bytes", "Payload.", 12345678901);
  metrics.Gauge("psring_loss", "", "Of the last step.", 0.25);
  EXPECT_EQ(
      metrics.Text(),
      "# TYPE psring_sent_bytes counter\n# UNIT psring_sent_bytes bytes\n# HELP psring_sent_bytes Payload.\n"
      "psring_sent_bytes_total{rank=\"3\"} 12345678901\n"
      "# TYPE psring_loss gauge\n# HELP psring_loss Of the last step.\npsring_loss{rank=\"3\"} 0.25\n# "
      "EOF\n");
}

TEST(OpenMetrics, HistogramBucketsAreCumulative) {
  OpenMetrics metrics(OpenMetrics::Labels{});
  metrics.Histogram("psring_step", "seconds", "Steps.", {0.001, 1}, {2, 0, 3}, 9.5);
  EXPECT_EQ(
      metrics.Text(),
      "# TYPE psring_step_seconds histogram\n# UNIT psring_step_seconds seconds\n"
      "# HELP psring_step_seconds Steps.\n"
      "psring_step_seconds_bucket{le=\"0.001\"} 2\npsring_step_seconds_bucket{le=\"1.0\"} 2\n"
      "psring_step_seconds_bucket{le=\"+Inf\"} 5\npsring_step_seconds_count 5\npsring_step_seconds_sum 9.5\n"
      "# EOF\n");
}

TEST(OpenMetrics, EscapesTextsAndFormatsNumbers) {
  OpenMetrics metrics(OpenMetrics::Labels{{"a", "x\"\\\n"}});
  metrics.Gauge("g", "", "two\nlines", std::nan(""));
  EXPECT_EQ(metrics.Text(), "# TYPE g gauge\n# HELP g two\\nlines\ng{a=\"x\\\"\\\\\\n\"} NaN\n# EOF\n");
  OpenMetrics infinite(OpenMetrics::Labels{});
  infinite.Gauge("g", "", "", -std::numeric_limits<double>::infinity());
  EXPECT_NE(infinite.Text().find("g -Inf\n"), std::string::npos);
}

TEST(OpenMetrics, WithoutMetricsIsOnlyTheEndMarker) {
  EXPECT_EQ(OpenMetrics(OpenMetrics::Labels{}).Text(), "# EOF\n");
}

}  // namespace
}  // namespace psring
