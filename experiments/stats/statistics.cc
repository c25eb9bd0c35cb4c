#include "experiments/stats/statistics.h"

#include <algorithm>
#include <boost/math/distributions/students_t.hpp>
#include <cmath>
#include <limits>
#include <numeric>

#include "common/base/check.h"

namespace psring {
namespace {

// The logarithms; empty if a value is not positive.
std::vector<double> Logarithms(const std::vector<double>& values) {
  std::vector<double> logarithms;
  for (const double value : values) {
    if (!(value > 0)) return {};
    logarithms.push_back(std::log(value));
  }
  return logarithms;
}

// Of the mean of at least two values.
double StandardError(const std::vector<double>& values) {
  const double mean = Mean(values), count = static_cast<double>(values.size());
  double squares = 0;
  for (const double value : values) squares += (value - mean) * (value - mean);
  return std::sqrt(squares / (count - 1) / count);
}

// Of Student's t test that the mean is 0, two-sided.
double PValue(const std::vector<double>& values) {
  if (values.size() < 2) return 1;
  const double mean = Mean(values), error = StandardError(values);
  if (mean == 0) return 1;
  if (error == 0) return 0;
  const boost::math::students_t distribution(static_cast<double>(values.size() - 1));
  return 2 * boost::math::cdf(boost::math::complement(distribution, std::abs(mean) / error));
}

}  // namespace

double Mean(const std::vector<double>& values) {
  if (values.empty()) return 0;
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

double GeometricMean(const std::vector<double>& values) {
  const std::vector<double> logarithms = Logarithms(values);
  return logarithms.empty() ? 0 : std::exp(Mean(logarithms));
}

double Quantile(std::vector<double> values, double fraction) {
  if (values.empty()) return 0;
  std::ranges::sort(values);
  const double position = fraction * static_cast<double>(values.size() - 1);
  const size_t below = position;
  const size_t above = std::min(below + 1, values.size() - 1);
  return values[below] + (position - static_cast<double>(below)) * (values[above] - values[below]);
}

double StudentsTFactor(int degrees_of_freedom) {
  if (degrees_of_freedom < 1) return std::numeric_limits<double>::infinity();
  return boost::math::quantile(boost::math::students_t(degrees_of_freedom), 0.975);
}

std::optional<Interval> MeanInterval(const std::vector<double>& values) {
  if (values.size() < 2) return std::nullopt;
  const double half = StudentsTFactor(static_cast<int>(values.size()) - 1) * StandardError(values);
  return Interval{Mean(values) - half, Mean(values) + half};
}

std::optional<Interval> GeometricMeanInterval(const std::vector<double>& values) {
  const std::optional<Interval> of_logarithms = MeanInterval(Logarithms(values));
  if (!of_logarithms) return std::nullopt;
  return Interval{std::exp(of_logarithms->low), std::exp(of_logarithms->high)};
}

PairedComparison ComparePairs(const std::vector<double>& first, const std::vector<double>& second) {
  PSRING_CHECK(first.size() == second.size());
  PairedComparison comparison;
  const std::vector<double> of_first = Logarithms(first), of_second = Logarithms(second);
  if (of_first.empty() || of_second.empty()) return comparison;
  std::vector<double> differences;
  for (size_t i = 0; i < of_first.size(); ++i) differences.push_back(of_first[i] - of_second[i]);
  comparison.ratio = std::exp(Mean(differences));
  if (const std::optional<Interval> interval = MeanInterval(differences)) {
    comparison.interval = Interval{std::exp(interval->low), std::exp(interval->high)};
  }
  comparison.p_value = PValue(differences);
  return comparison;
}

std::vector<bool> HolmRejected(const std::vector<double>& p_values, double level) {
  std::vector<size_t> order(p_values.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::sort(order, [&](size_t a, size_t b) { return p_values[a] < p_values[b]; });
  std::vector<bool> rejected(p_values.size(), false);
  for (size_t rank = 0; rank < order.size(); ++rank) {
    if (p_values[order[rank]] > level / static_cast<double>(order.size() - rank)) break;
    rejected[order[rank]] = true;
  }
  return rejected;
}

std::vector<bool> ShowDifference(const std::vector<PairedComparison>& comparisons) {
  std::vector<double> p_values;
  for (const PairedComparison& comparison : comparisons) p_values.push_back(comparison.p_value);
  std::vector<bool> shown = HolmRejected(p_values, kWinnerLevel);
  for (size_t i = 0; i < comparisons.size(); ++i) {
    const std::optional<Interval>& interval = comparisons[i].interval;
    shown[i] = shown[i] && interval &&
               (interval->low > 1 + kSmallestDifference || interval->high < 1 / (1 + kSmallestDifference));
  }
  return shown;
}

}  // namespace psring
