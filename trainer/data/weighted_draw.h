// Draws of numbers with given weights.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace psring {

// Numbers 0 ... n - 1. A draw takes constant time on average (Chen & Asau 1974): a search begins at one of
// many equally probable positions. Thread-safe.
class WeightedDraw {
 public:
  // `cumulative[i]`: the sum of the weights of the numbers 0 ... i, finite and above 0. At least one.
  explicit WeightedDraw(std::vector<double> cumulative) : cumulative_(std::move(cumulative)) {
    guide_.reserve(kGuides);
    int32_t number = 0;
    for (size_t i = 0; i < kGuides; ++i) {
      number = Search(number, static_cast<double>(i) / kGuides);
      guide_.push_back(number);
    }
  }

  // The first number whose cumulative weight is above this part of all weights, or the last number. `part` is
  // at least 0 and below 1.
  int32_t At(double part) const {
    // part >= i / kGuides, and products are rounded monotonically: the guide's number is not above the
    // result.
    const size_t i = static_cast<size_t>(part * kGuides);
    return Search(guide_[i], part);
  }

 private:
  static constexpr int kGuides = 1 << 14;

  int32_t Search(int32_t from, double part) const {
    const double sum = part * cumulative_.back();
    size_t number = static_cast<size_t>(from);
    while (number + 1 < cumulative_.size() && cumulative_[number] <= sum) ++number;
    return static_cast<int32_t>(number);
  }

  std::vector<double> cumulative_;
  std::vector<int32_t> guide_;  // the number at part i / kGuides
};

}  // namespace psring
