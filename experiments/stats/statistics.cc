#include "experiments/stats/statistics.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <random>

#include "common/base/check.h"

namespace psring {
namespace {

constexpr int kResamples = 10000;

// 95% interval of `statistic` over resampled indices of `count` rounds. The seed is fixed, and no library
// distribution is used, so the same numbers give the same interval everywhere.
Interval Bootstrap(size_t count, const std::function<double(const std::vector<size_t>&)>& statistic) {
  std::mt19937_64 random(20240229);
  std::vector<double> results(kResamples);
  std::vector<size_t> picked(count);
  for (double& result : results) {
    for (size_t& index : picked) index = random() % count;
    result = statistic(picked);
  }
  return {Quantile(results, 0.025), Quantile(results, 0.975)};
}

double MeanOf(const std::vector<double>& values, const std::vector<size_t>& picked) {
  double sum = 0;
  for (size_t index : picked) sum += values[index];
  return sum / static_cast<double>(picked.size());
}

}  // namespace

double Mean(const std::vector<double>& values) {
  if (values.empty()) return 0;
  double sum = 0;
  for (double value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

double Quantile(std::vector<double> values, double fraction) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const double position = fraction * static_cast<double>(values.size() - 1);
  const size_t below = static_cast<size_t>(position);
  const size_t above = std::min(below + 1, values.size() - 1);
  return values[below] + (position - static_cast<double>(below)) * (values[above] - values[below]);
}

std::optional<Interval> BootstrapMean(const std::vector<double>& values) {
  if (values.size() < 2) return std::nullopt;
  return Bootstrap(values.size(), [&](const std::vector<size_t>& picked) { return MeanOf(values, picked); });
}

std::optional<Interval> BootstrapRatio(const std::vector<double>& first, const std::vector<double>& second) {
  PSRING_CHECK(first.size() == second.size());
  if (first.size() < 2) return std::nullopt;
  return Bootstrap(first.size(), [&](const std::vector<size_t>& picked) {
    return MeanOf(first, picked) / MeanOf(second, picked);
  });
}

PairedComparison ComparePairs(const std::vector<double>& first, const std::vector<double>& second) {
  PairedComparison comparison;
  const double below = Mean(second);
  if (first.empty() || below == 0) return comparison;
  comparison.ratio = Mean(first) / below;
  comparison.interval = BootstrapRatio(first, second);
  const bool excludes_1 =
      comparison.interval && (comparison.interval->low > 1 || comparison.interval->high < 1);
  const bool enough = static_cast<int>(first.size()) >= kRoundsToNameAWinner;
  comparison.differs = excludes_1 && enough;
  comparison.too_few_rounds = excludes_1 && !enough;
  return comparison;
}

}  // namespace psring
