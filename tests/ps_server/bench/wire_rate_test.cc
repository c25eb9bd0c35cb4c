#include "ps_server/bench/wire_rate.h"

#include <gtest/gtest.h>

#include "common/base/deadline.h"

namespace psring {
namespace {

TEST(WireRate, IsThatOfAllWorkersTogetherForEachWire) {
  for (const char* wire : {"grpc", "stream"}) {
    for (const int workers : {1, 3}) {
      SCOPED_TRACE(testing::Message() << wire << ", " << workers << " workers");
      const MonotonicTime begin = MonotonicNow();
      const absl::StatusOr<double> rate = MeasureWireRate(wire, workers, absl::ZeroDuration());
      ASSERT_TRUE(rate.ok()) << rate.status();
      // Three rounds of 8 MiB per worker were timed within the call.
      const double bytes = 3 * 8.0 * (1 << 20) * workers;
      EXPECT_GE(*rate, bytes / absl::ToDoubleSeconds(MonotonicNow() - begin));
      EXPECT_LT(*rate, 1e12);
    }
  }
}

TEST(WireRate, MeasuresAsLongAsRequested) {
  const MonotonicTime begin = MonotonicNow();
  ASSERT_TRUE(MeasureWireRate("grpc", 1, absl::Milliseconds(50)).ok());
  EXPECT_GE(MonotonicNow() - begin, absl::Milliseconds(50));
}

}  // namespace
}  // namespace psring
