#include "common/cli/delays.h"

#include <gtest/gtest.h>

#include <cmath>

#include "common/measure/arrivals.h"
#include "common/measure/step_times.h"

namespace psring {
namespace {

TEST(Delays, TimesRoundTrip) {
  EXPECT_TRUE(ParseTimeDistribution("none")->is_zero());
  EXPECT_EQ(DrawMs(*ParseTimeDistribution("6.5"), 1, TimeUse::kCompute, 3, 7), 6.5);
  EXPECT_EQ(ParseTimeDistribution("exp:20")->mean_ms(), 20);
  EXPECT_DOUBLE_EQ(ParseTimeDistribution("lognormal:20:0.5")->mean_ms(), 20 * std::exp(.125));
  for (const char* wrong : {"", "soon", "-1", "nan", "exp", "exp:", "exp:-2", "lognormal:20",
                            "lognormal:20:99", "normal:1", "1:2", "1e9", "exp:1:2"}) {
    EXPECT_FALSE(ParseTimeDistribution(wrong).ok()) << wrong;
  }
}

TEST(Delays, ADrawnTimeDependsOnlyOnSeedUseWorkerAndStep) {
  const TimeDistribution jitter = *ParseTimeDistribution("exp:20");
  const double drawn = DrawMs(jitter, 1, TimeUse::kJitter, 2, 3);
  (void)DrawMs(jitter, 1, TimeUse::kJitter, 0, 0);
  EXPECT_EQ(DrawMs(jitter, 1, TimeUse::kJitter, 2, 3), drawn);
  EXPECT_NE(DrawMs(jitter, 2, TimeUse::kJitter, 2, 3), drawn);
  EXPECT_NE(DrawMs(jitter, 1, TimeUse::kPush, 2, 3), drawn);
  EXPECT_NE(DrawMs(jitter, 1, TimeUse::kJitter, 3, 3), drawn);
  EXPECT_NE(DrawMs(jitter, 1, TimeUse::kJitter, 2, 4), drawn);
}

TEST(Delays, DrawnTimesHaveTheRequestedMeanAndSpread) {
  constexpr int kSteps = 20000;
  for (const char* text : {"exp:20", "lognormal:20:0.5"}) {
    const TimeDistribution distribution = *ParseTimeDistribution(text);
    double sum = 0, log_sum = 0, log_squares = 0;
    for (int step = 0; step < kSteps; ++step) {
      const double ms = DrawMs(distribution, 5, TimeUse::kJitter, step % 4, step / 4);
      ASSERT_GE(ms, 0);
      sum += ms;
      log_sum += std::log(ms);
      log_squares += std::log(ms) * std::log(ms);
    }
    EXPECT_NEAR(sum / kSteps, distribution.mean_ms(), .03 * distribution.mean_ms()) << text;
    if (distribution.kind != TimeDistribution::Kind::kLogNormal) continue;
    const double mean = log_sum / kSteps;
    EXPECT_NEAR(mean, std::log(20), .02);
    EXPECT_NEAR(std::sqrt(log_squares / kSteps - mean * mean), .5, .01);
  }
}

TEST(Delays, StragglersAreNamedOnceAndAreNotFaster) {
  const auto stragglers = *ParseStragglers("1:3,2:1.5");
  EXPECT_EQ(SlownessOf(stragglers, 0), 1);
  EXPECT_EQ(SlownessOf(stragglers, 1), 3);
  EXPECT_EQ(SlownessOf(stragglers, 2), 1.5);
  EXPECT_TRUE(ParseStragglers("none")->empty());
  for (const char* wrong : {"", "1", "1:", ":3", "1:0.5", "-1:2", "1:3,1:2", "1:3,", "1:nan"})
    EXPECT_FALSE(ParseStragglers(wrong).ok()) << wrong;
  EXPECT_TRUE(CheckStragglers("1:3", 2).ok());
  EXPECT_EQ(CheckStragglers("2:3", 2).message(),
            "--straggler 2:3: with 2 workers they are numbered 0 to 1; there is no worker 2");
}

TEST(StepTimes, RoundTrip) {
  const StepTimes times{.workers = {{{1, 2}, {.5, .25}, {3, 4}}, {{5}, {6}, {7}}}};
  const auto read = StepTimesFromJson(ToJson(times)).value();
  ASSERT_EQ(read.workers.size(), 2);
  EXPECT_EQ(read.workers[0].exchange_ms, times.workers[0].exchange_ms);
  EXPECT_EQ(read.workers[1].other_ms, times.workers[1].other_ms);
  for (const char* wrong : {"", "{}", R"({"workers":[]})", R"({"workers":[{"compute_ms":[1]}]})",
                            R"({"workers":[{"compute_ms":[1],"other_ms":[1,2],"exchange_ms":[1]}]})",
                            R"({"workers":[{"compute_ms":[-1],"other_ms":[1],"exchange_ms":[1]}]})"}) {
    EXPECT_FALSE(StepTimesFromJson(wrong).ok()) << wrong;
  }
  // Nanoseconds of such a time would overflow.
  EXPECT_EQ(StepTimesFromJson(R"({"workers":[{"compute_ms":[1e300],"other_ms":[1],"exchange_ms":[1]}]})")
                .status()
                .message(),
            "workers[0].compute_ms[0]: expected a number from 0 to 1e+09, found 1e+300");
}

TEST(StepTimes, WorkersUseTheirOwnStepsAndMoreWorkersShareThem) {
  const std::vector<double> ten(10, 1.0);
  const StepTimes times{.workers = {{ten, ten, ten}, {ten, ten, ten}}};
  EXPECT_EQ(MeasuredStepFor(times, 1, 3).worker, 1);
  EXPECT_EQ(MeasuredStepFor(times, 1, 3).step, 3);
  EXPECT_EQ(MeasuredStepFor(times, 1, 10).step, 1) << "the first is left out";
  EXPECT_EQ(MeasuredStepFor(times, 1, 13).step, 4);
  EXPECT_EQ(MeasuredStepFor(times, 3, 0).worker, 1);
  EXPECT_NE(MeasuredStepFor(times, 3, 1).step, 1) << "not in lockstep with worker 1";
  const StepTimes one{.workers = {{{1}, {1}, {1}}}};
  for (int worker = 0; worker < 3; ++worker) {
    for (int step = 0; step < 3; ++step) EXPECT_EQ(MeasuredStepFor(one, worker, step).step, 0);
  }
}

TEST(Arrivals, AreBoundedOverAllBuckets) {
  Arrivals arrivals{.consistency = "async", .workers = 2};
  arrivals.updates.resize(Arrivals::kMaxUpdates / 2);
  arrivals.updates[1] = {0};
  EXPECT_FALSE(arrivals.IsFull(1));
  arrivals.updates[1] = {0, 1};
  EXPECT_TRUE(arrivals.IsFull(1));
  EXPECT_FALSE(arrivals.IsFull(0));
}

TEST(Arrivals, RoundTripWithOneByteEach) {
  for (const int workers : {4, 256, 300}) {
    const Arrivals arrivals{.consistency = "ssp:2",
                            .workers = workers,
                            .updates = {{0, 3, 1, 2, static_cast<uint16_t>(workers - 1)}, {}, {1, 1}}};
    const std::string bytes = ToBytes(arrivals);
    const auto read = ArrivalsFromBytes(bytes).value();
    EXPECT_EQ(read.consistency, "ssp:2");
    EXPECT_EQ(read.workers, workers);
    EXPECT_EQ(read.updates, arrivals.updates);
    EXPECT_EQ(bytes.size() - bytes.find('\n') - 1, workers > 256 ? 14 : 7);
    EXPECT_FALSE(ArrivalsFromBytes(bytes.substr(0, bytes.size() - 1)).ok());
    EXPECT_FALSE(ArrivalsFromBytes(bytes + "x").ok());
  }
  EXPECT_FALSE(ArrivalsFromBytes("").ok());
  EXPECT_FALSE(ArrivalsFromBytes("{}\n").ok());
  const std::string format = R"({"format": "psring arrivals 1", "updates": [], )";
  EXPECT_TRUE(ArrivalsFromBytes(format + R"("consistency": "async", "workers": 2})" + "\n").ok());
  for (const char* rest :
       {R"("consistency": 5, "workers": 2})", R"("consistency": "async", "workers": "2"})",
        R"("consistency": "async", "workers": 0})", R"("consistency": "async", "workers": -3})",
        R"("consistency": "async", "workers": 4294967298})", R"("format": 7, "workers": 2})",
        R"("consistency": "async", "workers": 2, "updates": [18446744073709551615]})",
        R"("consistency": "async", "workers": 2, "updates": {}})"}) {
    EXPECT_FALSE(ArrivalsFromBytes(format + rest + "\n").ok()) << rest;
  }
  std::string bytes = ToBytes({.consistency = "async", .workers = 2, .updates = {{0, 1}}});
  bytes.back() = 2;
  EXPECT_EQ(ArrivalsFromBytes(bytes).status().message(), "the record of arrivals names worker 2 of 2");
}

}  // namespace
}  // namespace psring
