#include "trainer/data/weighted_draw.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "common/base/random.h"

namespace psring {
namespace {

// By a search among all numbers.
int32_t Expected(const std::vector<double>& cumulative, double part) {
  const auto above = std::upper_bound(cumulative.begin(), cumulative.end() - 1, part * cumulative.back());
  return static_cast<int32_t>(above - cumulative.begin());
}

std::vector<double> Cumulative(const std::vector<double>& weights) {
  std::vector<double> sums;
  double sum = 0;
  for (const double weight : weights) sums.push_back(sum += weight);
  return sums;
}

TEST(WeightedDraw, FindsTheSameNumberAsASearchAmongAll) {
  Random random(1);
  std::vector<double> irregular, many(3000, 1e-9);
  for (int i = 0; i < 3000; ++i) irregular.push_back(std::pow(random.Below(100'000), .75));
  many[123] = 1;  // few positions of the guide for nearly all numbers
  for (const auto& weights : std::vector<std::vector<double>>{{5.}, {1., 0., 2.}, irregular, many}) {
    SCOPED_TRACE(testing::Message() << weights.size() << " weights");
    const std::vector<double> cumulative = Cumulative(weights);
    const WeightedDraw draw(cumulative);
    std::vector<double> parts = {0, 1 - 0x1p-53};
    for (int i = 0; i < 20'000; ++i) parts.push_back(static_cast<double>(random.Next() >> 11) * 0x1p-53);
    // Where a number or a position of the guide begins, and beside it.
    for (size_t i = 0; i + 1 < cumulative.size(); ++i) parts.push_back(cumulative[i] / cumulative.back());
    for (int i = 0; i < 1 << 14; ++i) parts.push_back(i * 0x1p-14);
    for (size_t i = parts.size(); i-- > 20'002;) {
      parts.push_back(std::nextafter(parts[i], 0));
      parts.push_back(std::nextafter(parts[i], 1));
    }
    std::erase_if(parts, [](double part) { return part >= 1; });
    for (const double part : parts) ASSERT_EQ(draw.At(part), Expected(cumulative, part)) << part;
  }
}

}  // namespace
}  // namespace psring
