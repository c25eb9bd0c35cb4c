// Figures in the text format of OpenMetrics 1.0, which Prometheus and its kin read. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace psring {

inline constexpr char kOpenMetricsType[] = "application/openmetrics-text; version=1.0.0; charset=utf-8";

// Families in the order of their calls; a name once.
class OpenMetrics {
 public:
  using Labels = std::vector<std::pair<std::string, std::string>>;

  // Of all samples ("rank" of this process).
  explicit OpenMetrics(Labels labels) : labels_(std::move(labels)) {}

  // `unit`: "seconds", "bytes", or empty; names of families with a unit end with it, as the format wants, and
  // `name` is given without it. A counter's sample is called <family>_total.
  void Counter(const std::string& name, const std::string& unit, const std::string& help, double value);
  void Gauge(const std::string& name, const std::string& unit, const std::string& help, double value);
  // `counts`: of the values up to each of `bounds` and above the one before, then of those above the last.
  void Histogram(const std::string& name, const std::string& unit, const std::string& help,
                 const std::vector<double>& bounds, const std::vector<uint64_t>& counts, double sum);

  // All of it, with the format's end.
  std::string Text() const { return text_ + "# EOF\n"; }

 private:
  std::string Family(const std::string& name, const std::string& unit, const char* type,
                     const std::string& help);
  void Sample(const std::string& name, const std::string& le, const std::string& value);

  const Labels labels_;
  std::string text_;
};

}  // namespace psring
