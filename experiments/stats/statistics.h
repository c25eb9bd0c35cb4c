// Statistics over a few rounds. Pure and deterministic.
//
// The unit is always a *round* (one launch of every configuration), never a step: steps of one launch are
// correlated, so an interval over steps would be far too narrow.
#pragma once

#include <optional>
#include <vector>

namespace psring {

struct Interval {
  double low = 0;
  double high = 0;
};

double Mean(const std::vector<double>& values);  // 0 if empty

// 0 if `values` is empty or has a value that is not positive.
double GeometricMean(const std::vector<double>& values);

// Interpolates linearly between order statistics; `fraction` is from 0 to 1. 0 if empty.
double Quantile(std::vector<double> values, double fraction);

// Half the width of a 95% interval in standard errors: the 97.5% quantile of Student's t distribution.
// Infinity for fewer than 1 degree of freedom.
double StudentsTFactor(int degrees_of_freedom);

// 95% intervals by Student's t (Student 1908). Empty for fewer than two values. GeometricMeanInterval uses
// the logarithms, so it is also empty if a value is not positive.
std::optional<Interval> MeanInterval(const std::vector<double>& values);
std::optional<Interval> GeometricMeanInterval(const std::vector<double>& values);

// Two configurations measured in the same rounds: first[i] and second[i] come from one round.
struct PairedComparison {
  double ratio = 1;                  // geometric mean of first[i] / second[i]
  std::optional<Interval> interval;  // 95%, of the ratio
  double p_value = 1;                // of Student's t test that the ratio is 1, two-sided
};
// Both vectors have the same size. Without a second pair there is no interval and the p value is 1.
PairedComparison ComparePairs(const std::vector<double>& first, const std::vector<double>& second);

// Which hypotheses to reject so that the probability of rejecting any true one is at most `level` (Holm's
// step-down procedure, 1979).
std::vector<bool> HolmRejected(const std::vector<double>& p_values, double level);

// Which of the comparisons made in one run show a difference: p values at kWinnerLevel after Holm's
// correction, and a 95% interval beyond kSmallestDifference. The level is 1% so that equal strategies rarely
// have a winner over many runs. Smaller differences are not reported: the order of launches can cause them.
inline constexpr double kWinnerLevel = 0.01;
inline constexpr double kSmallestDifference = 0.02;
std::vector<bool> ShowDifference(const std::vector<PairedComparison>& comparisons);

}  // namespace psring
