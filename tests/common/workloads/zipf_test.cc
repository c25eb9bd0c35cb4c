#include "common/workloads/zipf.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace psring {
namespace {

TEST(Zipf, DrawsItemsWithTheirProbabilities) {
  for (const double alpha : {0.0, .5, 1.0, 1.05, 2.5}) {
    for (const int items : {1, 2, 20}) {
      constexpr int kDraws = 40'000;
      std::vector<int> counts(static_cast<size_t>(items) + 1);
      Random random(1);
      const Zipf zipf(items, alpha);
      for (int i = 0; i < kDraws; ++i) ++counts[static_cast<size_t>(zipf.Next(random))];
      double sum = 0;
      for (int k = 1; k <= items; ++k) sum += std::pow(k, -alpha);
      for (int k = 1; k <= items; ++k) {
        const double share = std::pow(k, -alpha) / sum;
        const double deviation = std::sqrt(share * (1 - share) / kDraws);
        EXPECT_NEAR(counts[static_cast<size_t>(k)] / double{kDraws}, share, 4 * deviation + 1e-9)
            << k << " of " << items << ", alpha " << alpha;
      }
    }
  }
}

TEST(Zipf, NamesAreChecked) {
  const auto name = ParseZipf("zipf:1000:1.05").value();
  EXPECT_EQ(name.rows, 1000);
  EXPECT_EQ(name.alpha, 1.05);
  for (const char* wrong : {"zipf", "zipf:1000", "zipf:0:1", "zipf:-3:1", "zipf:1e3:1", "zipf:1000:-1",
                            "zipf:1000:nan", "zipf:1000:", "zipf:1000:1:2", "zipf:999999999:1", "zopf:1:1"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ParseZipf(wrong).status())) << wrong;
  }
  EXPECT_EQ(ParseZipf("zipf:0:1").status().message(),
            "'zipf:0:1': ROWS must be a whole number from 1 to 100000000, the rows of each table");
}

}  // namespace
}  // namespace psring
