#include "experiments/costs/machine_profile.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "trainer/strategies/table/cost_model.h"

namespace psring {
namespace {

TEST(MachineProfile, FieldsOfAnotherTypeAreErrors) {
  for (
      const char* text :
      {"[]", "{}", R"({"results":[]})", R"({"results": [1, "two"], "config": 3})",
       R"({"results": [{"collective": 7, "backend": null}]})",
       R"({"results": [{"collective": "all_reduce", "backend": "native", "type": "float", "algorithm": "ring",
            "transport": "tcp", "workers": 4294967298, "size": 8}]})"}) {
    EXPECT_FALSE(ProfileOfBench("bench.json", text).ok()) << text;
  }
}

TEST(MachineProfile, RecoversTheParametersOfSyntheticTimes) {
  // Over links of their own moving and adding grow alike; over one medium they do not.
  const Wires truth{.latency_s = 30e-6, .add_s_per_byte = 0.2e-9, .medium_bytes_per_s = 2e9};
  std::vector<ProfilePoint> points;
  for (const char* schedule : {"ring", "star"}) {
    const Scheme scheme = Scheme::AllReduce(schedule);
    for (const int workers : {2, 4}) {
      for (double bytes = 4096; bytes < 1e8; bytes *= 8)
        points.push_back(
            {scheme, workers, bytes, ExchangeSeconds({.scheme = scheme, .workers = workers}, bytes, truth)});
    }
  }
  auto profile = FitProfile(points, true);
  ASSERT_TRUE(profile.ok()) << profile.status();
  EXPECT_NEAR(profile->latency_s.value, 30e-6, 1e-9);
  EXPECT_NEAR(profile->bytes_per_s.value, 2e9, 1e5);
  EXPECT_NEAR(profile->add_s_per_byte.value, 0.2e-9, 1e-13);
  EXPECT_NEAR(profile->r_squared, 1, 1e-9);
  // 5% off, up and down: the intervals widen and still hold the truth.
  for (size_t i = 0; i < points.size(); ++i) points[i].seconds *= i % 3 == 0 ? 1.05 : 0.975;
  profile = FitProfile(points, true);
  ASSERT_TRUE(profile.ok());
  EXPECT_LT(profile->bytes_per_s.interval.low, 2e9);
  EXPECT_GT(profile->bytes_per_s.interval.high, 2e9);
  EXPECT_LT(profile->r_squared, 1);
}

TEST(MachineProfile, OneNumberOfWorkersCannotSeparateAddingFromTransfers) {
  std::vector<ProfilePoint> points;
  for (double bytes = 4096; bytes < 1e8; bytes *= 8)
    points.push_back({Scheme::AllReduce("ring"), 2, bytes, 1e-4 + bytes / 1e9});
  const auto profile = FitProfile(points, true).value();
  EXPECT_EQ(profile.undetermined, (std::vector<std::string>{"g"}));
  EXPECT_NEAR(profile.latency_s.value, 0.5e-4, 1e-9);
  EXPECT_NEAR(profile.bytes_per_s.value, 2e9, 1e5);  // 2(N-1)M over the medium
}

TEST(MachineProfile, KeepsTheRateIfNoiseWouldAttributeEverythingToAdding) {
  // More workers take longer than their bytes: the best fit would have a negative rate.
  std::vector<ProfilePoint> points;
  for (double bytes = 4096; bytes < 1e8; bytes *= 8) {
    points.push_back({Scheme::AllReduce("ring"), 2, bytes, 1e-4 + bytes / 1e9});
    points.push_back({Scheme::AllReduce("ring"), 3, bytes, 1e-4 + 1.2 * bytes / 1e9});
  }
  const auto profile = FitProfile(points, true).value();
  EXPECT_GT(profile.bytes_per_s.value, 1e9);
  EXPECT_EQ(profile.undetermined, (std::vector<std::string>{"g"}));
}

TEST(MachineProfile, IsMadeFromABenchmark) {
  std::string rows;
  for (const int size : {1 << 12, 1 << 16, 1 << 20, 1 << 24, 1 << 26}) {
    absl::StrAppendFormat(
        &rows,
        "%s{\"collective\":\"all_reduce\",\"backend\":\"native\",\"type\":\"float\",\"algorithm\":\"ring\","
        "\"transport\":\"tcp\",\"workers\":2,\"size\":%d,\"out_of_place\":{\"time\":%g}}",
        rows.empty() ? "" : ",", size, 100 + size * 1e-3);
  }
  const MachineProfile profile = ProfileOfBench("bench.json", "{\"results\":[" + rows + "]}").value();
  EXPECT_NEAR(profile.latency_s.value, 50e-6, 1e-9);
  EXPECT_EQ(profile.transport, "tcp");
}

}  // namespace
}  // namespace psring
