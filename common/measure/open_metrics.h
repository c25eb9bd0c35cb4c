// Metrics in the text format of OpenMetrics 1.0, which Prometheus reads. Pure. prometheus-cpp is not used:
// its registry keeps live counters, so exporting our snapshots would take a collector and a family per
// metric, which is more code than this file.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace psring {

inline constexpr char kOpenMetricsType[] = "application/openmetrics-text; version=1.0.0; charset=utf-8";

// Families appear in the order of the calls; names must be distinct.
class OpenMetrics {
 public:
  using Labels = std::vector<std::pair<std::string, std::string>>;

  // `labels`: of all samples (such as "rank").
  explicit OpenMetrics(Labels labels) : labels_(std::move(labels)) {}

  // `unit`: "seconds", "bytes", or empty. The format requires family names to end with their unit; `name` is
  // given without it. A counter's sample is named <family>_total.
  void Counter(const std::string& name, const std::string& unit, const std::string& help, double value);
  void Gauge(const std::string& name, const std::string& unit, const std::string& help, double value);
  // `counts`: the number of values up to each bound and above the previous one, then of those above the last
  // bound.
  void Histogram(const std::string& name, const std::string& unit, const std::string& help,
                 const std::vector<double>& bounds, const std::vector<uint64_t>& counts, double sum);

  // The complete text, with the format's end marker.
  std::string Text() const { return text_ + "# EOF\n"; }

 private:
  std::string Family(const std::string& name, const std::string& unit, const char* type,
                     const std::string& help);
  void Sample(const std::string& name, const std::string& le, const std::string& value);

  const Labels labels_;
  std::string text_;
};

}  // namespace psring
