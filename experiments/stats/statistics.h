// Statistics over a few repeats. Pure and deterministic.
//
// The resampled unit is always a *round* (one launch of every configuration), never a step: steps of one
// launch are correlated, so an interval over steps would be far too narrow.
#pragma once

#include <optional>
#include <vector>

namespace psring {

struct Interval {
  double low = 0;
  double high = 0;
};

double Mean(const std::vector<double>& values);  // 0 if empty

// Interpolates linearly between order statistics; `fraction` is from 0 to 1. 0 if empty.
double Quantile(std::vector<double> values, double fraction);

// 95% percentile bootstrap interval of the mean (Efron 1979). Empty for fewer than two values.
std::optional<Interval> BootstrapMean(const std::vector<double>& values);

// The same for mean(first) / mean(second); first[i] and second[i] come from one round and are resampled
// together.
std::optional<Interval> BootstrapRatio(const std::vector<double>& first, const std::vector<double>& second);

// If two strategies are equal, n rounds all favour one of them with probability 2^(1-n), and the interval
// then excludes 1: 1/4 for three rounds, 1/16 for five.
inline constexpr int kRoundsToNameAWinner = 5;

struct PairedComparison {
  double ratio = 1;  // mean(first) / mean(second)
  std::optional<Interval> interval;
  bool differs = false;         // the interval excludes 1, over enough rounds
  bool too_few_rounds = false;  // the interval excludes 1, over fewer than kRoundsToNameAWinner rounds
};
PairedComparison ComparePairs(const std::vector<double>& first, const std::vector<double>& second);

}  // namespace psring
