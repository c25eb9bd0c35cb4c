#include "common/measure/open_metrics.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "common/base/check.h"

namespace psring {
namespace {

std::string Escaped(const std::string& text) {
  return absl::StrReplaceAll(text, {{"\\", "\\\\"}, {"\"", "\\\""}, {"\n", "\\n"}});
}

std::string NumberText(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  if (value == std::floor(value) && std::abs(value) < 1e15) return absl::StrFormat("%.0f", value);
  return absl::StrFormat("%.12g", value);
}

// A bound must look like a float, and the same in every scrape.
std::string BoundText(double bound) {
  const std::string text = NumberText(bound);
  return text.find_first_of(".e") == std::string::npos ? absl::StrCat(text, ".0") : text;
}

}  // namespace

std::string OpenMetrics::Family(const std::string& name, const std::string& unit, const char* type,
                                const std::string& help) {
  const std::string family = unit.empty() ? name : absl::StrCat(name, "_", unit);
  absl::StrAppend(&text_, "# TYPE ", family, " ", type, "\n");
  if (!unit.empty()) absl::StrAppend(&text_, "# UNIT ", family, " ", unit, "\n");
  absl::StrAppend(&text_, "# HELP ", family, " ", Escaped(help), "\n");
  return family;
}

void OpenMetrics::Sample(const std::string& name, const std::string& le, const std::string& value) {
  std::string labels;
  for (const auto& [key, text] : labels_) {
    absl::StrAppend(&labels, labels.empty() ? "" : ",", key, "=\"", Escaped(text), "\"");
  }
  if (!le.empty()) absl::StrAppend(&labels, labels.empty() ? "" : ",", "le=\"", le, "\"");
  absl::StrAppend(&text_, name, labels.empty() ? "" : absl::StrCat("{", labels, "}"), " ", value, "\n");
}

void OpenMetrics::Counter(const std::string& name, const std::string& unit, const std::string& help,
                          double value) {
  Sample(absl::StrCat(Family(name, unit, "counter", help), "_total"), "", NumberText(value));
}

void OpenMetrics::Gauge(const std::string& name, const std::string& unit, const std::string& help,
                        double value) {
  Sample(Family(name, unit, "gauge", help), "", NumberText(value));
}

void OpenMetrics::Histogram(const std::string& name, const std::string& unit, const std::string& help,
                            const std::vector<double>& bounds, const std::vector<uint64_t>& counts,
                            double sum) {
  PSRING_CHECK(counts.size() == bounds.size() + 1);
  const std::string family = Family(name, unit, "histogram", help);
  uint64_t below = 0;
  for (size_t i = 0; i < bounds.size(); ++i) {
    below += counts[i];
    Sample(absl::StrCat(family, "_bucket"), BoundText(bounds[i]), absl::StrCat(below));
  }
  below += counts.back();
  Sample(absl::StrCat(family, "_bucket"), "+Inf", absl::StrCat(below));
  Sample(absl::StrCat(family, "_count"), "", absl::StrCat(below));
  Sample(absl::StrCat(family, "_sum"), "", NumberText(sum));
}

}  // namespace psring
