// What may be said of a handful of repeats. Pure and deterministic.
//
// The unit that is resampled is always a *round* (one launch of every configuration), never a step: steps of
// one launch share its luck, so an interval over steps would be far too narrow.
#pragma once

#include <optional>
#include <vector>

namespace psring {

struct Interval {
  double low = 0;
  double high = 0;
};

double Mean(const std::vector<double>& values);  // 0 where there are none

// Linear between order statistics; `fraction` from 0 to 1. 0 where there are none.
double Quantile(std::vector<double> values, double fraction);

// 95% percentile bootstrap interval of the mean (Efron 1979). Empty for fewer than two values.
std::optional<Interval> BootstrapMean(const std::vector<double>& values);

// The same for mean(first) / mean(second), where first[i] and second[i] come from one round and are resampled
// together.
std::optional<Interval> BootstrapRatio(const std::vector<double>& first, const std::vector<double>& second);

// With n rounds that all agree by chance, an interval excludes 1 once in 2^(n-1) times: one time in four for
// three rounds, one in sixteen for five. Below five nobody is called the winner.
inline constexpr int kRoundsToNameAWinner = 5;

struct PairedComparison {
  double ratio = 1;  // mean(first) / mean(second)
  std::optional<Interval> interval;
  bool differs = false;         // the interval excludes 1, over enough rounds
  bool too_few_rounds = false;  // it excludes 1, and over more rounds that would mean something
};
PairedComparison ComparePairs(const std::vector<double>& first, const std::vector<double>& second);

}  // namespace psring
