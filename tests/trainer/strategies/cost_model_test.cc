#include "trainer/strategies/table/cost_model.h"

#include <gtest/gtest.h>

namespace psring {
namespace {

constexpr double kGradientBytes = 100e6;
// Only bandwidth, with independent links: a gradient takes .1 s.
constexpr Wires kBandwidth{.bytes_per_s = 1e9};
constexpr Wires kLatency{.latency_s = 1e-3};
constexpr Wires kAdding{.add_s_per_byte = 1e-9};

double SecondsOf(const CommPattern& pattern, const Wires& wires = kBandwidth) {
  return ExchangeSeconds(pattern, kGradientBytes, wires);
}

double AllReduce(const char* schedule, int workers, const Wires& wires = kBandwidth) {
  return SecondsOf({.scheme = Scheme::AllReduce(schedule), .workers = workers}, wires);
}

double Ring(int workers, const Wires& wires = kBandwidth) { return AllReduce("ring", workers, wires); }

double Servers(int workers, int servers, ServerPlace place, bool pipelined, const Wires& wires = kBandwidth) {
  return SecondsOf({.scheme = Scheme::kServerSync,
                    .workers = workers,
                    .place = place,
                    .pipelined = pipelined,
                    .servers = servers},
                   wires);
}

TEST(CostModel, RingMovesTwiceTheBufferForAnyNumberOfWorkers) {
  EXPECT_DOUBLE_EQ(Ring(1), 0);
  EXPECT_DOUBLE_EQ(Ring(2), 0.1);
  EXPECT_DOUBLE_EQ(Ring(4), 0.15);
  EXPECT_NEAR(Ring(1000), 0.2, 1e-3);
}

TEST(CostModel, ADedicatedServerOverARingIsNSquaredOverNMinus1AndOnRank0N) {
  for (int n : {2, 3, 4, 8, 64}) {
    const double dedicated = double(n) * n / (n - 1);
    EXPECT_NEAR(Servers(n, 1, ServerPlace::kDedicated, false) / Ring(n), dedicated, 1e-9) << n;
    EXPECT_NEAR(Servers(n, 1, ServerPlace::kDedicated, true) / Ring(n), dedicated / 2, 1e-9) << n;
    EXPECT_NEAR(Servers(n, 1, ServerPlace::kRank0, false) / Ring(n), n, 1e-9) << n;
    EXPECT_NEAR(Servers(n, 1, ServerPlace::kRank0, true) / Ring(n), n / 2.0, 1e-9) << n;
    EXPECT_NEAR(AllReduce("star", n) / Ring(n), n, 1e-9) << n;
  }
}

TEST(CostModel, OtherAllReducesMoveTheBytesOfARingInFewerRounds) {
  for (const char* schedule : {"direct", "halving-doubling", "double-binary-tree"}) {
    EXPECT_DOUBLE_EQ(AllReduce(schedule, 1), 0);
    EXPECT_DOUBLE_EQ(
        PayloadBytesPerWorker({.scheme = Scheme::AllReduce(schedule), .workers = 3}, kGradientBytes),
        4.0 / 3 * kGradientBytes);
  }
  EXPECT_DOUBLE_EQ(AllReduce("direct", 8), Ring(8));
  EXPECT_DOUBLE_EQ(AllReduce("direct", 8, kLatency), 2e-3);
  EXPECT_DOUBLE_EQ(AllReduce("halving-doubling", 8), Ring(8));
  EXPECT_DOUBLE_EQ(AllReduce("halving-doubling", 8, kLatency), 6e-3);
  EXPECT_DOUBLE_EQ(AllReduce("double-binary-tree", 8), 0.2);
  EXPECT_DOUBLE_EQ(AllReduce("double-binary-tree", 8, kLatency), 6e-3);
  EXPECT_DOUBLE_EQ(AllReduce("double-binary-tree", 5, kLatency), 6e-3);
}

TEST(CostModel, HalvingDoublingFoldsTheRanksBeyondAPowerOfTwo) {
  EXPECT_DOUBLE_EQ(AllReduce("halving-doubling", 5, kLatency),
                   AllReduce("halving-doubling", 4, kLatency) + 2e-3);
  EXPECT_DOUBLE_EQ(AllReduce("halving-doubling", 5), AllReduce("halving-doubling", 4) + 0.2);
}

TEST(CostModel, SeveralServersShareTheLoadOnlyIfTheyHaveTheirOwnLinks) {
  EXPECT_DOUBLE_EQ(Servers(4, 1, ServerPlace::kDedicated, true), .4);
  EXPECT_DOUBLE_EQ(Servers(4, 2, ServerPlace::kDedicated, true), .2);
  EXPECT_DOUBLE_EQ(Servers(4, 2, ServerPlace::kDedicated, false), .4);
  EXPECT_DOUBLE_EQ(Servers(4, 8, ServerPlace::kDedicated, true), .1) << "then a worker's own link is full";
  EXPECT_DOUBLE_EQ(Servers(8, 2, ServerPlace::kDedicated, true), .4);
  EXPECT_DOUBLE_EQ(Servers(8, 16, ServerPlace::kDedicated, true), .1);
  EXPECT_DOUBLE_EQ(Servers(4, 3, ServerPlace::kRank0, true), .3) << "rank 0's host has one link";
  // Each adds its share.
  EXPECT_NEAR(Servers(4, 2, ServerPlace::kRank0, true, kAdding), .2, 1e-12);
  EXPECT_NEAR(Servers(8, 4, ServerPlace::kRank0, false, kAdding), .2, 1e-12);
}

// As a direct all-reduce: a host sends what its worker pushes and what its server answers.
TEST(CostModel, ServersBesideAllWorkersEqualTheDirectAllReduce) {
  for (int n : {2, 3, 4, 8}) {
    for (const bool pipelined : {true, false}) {
      EXPECT_DOUBLE_EQ(Servers(n, n, ServerPlace::kColocated, pipelined), AllReduce("direct", n));
    }
  }
  // One server next to one of eight workers: the same as on rank 0's host.
  EXPECT_DOUBLE_EQ(Servers(8, 1, ServerPlace::kColocated, true), Servers(8, 1, ServerPlace::kRank0, true));
  // Two next to eight: each host receives 7 pushes of one half, and half of the weights.
  EXPECT_DOUBLE_EQ(Servers(8, 2, ServerPlace::kColocated, true), 0.4);
}

TEST(CostModel, AnAsynchronousWorkerBesideItsServerNeedsNoLink) {
  const auto seconds = [](int workers, ServerPlace place, bool pipelined) {
    return SecondsOf(
        {.scheme = Scheme::kServerAsync, .workers = workers, .place = place, .pipelined = pipelined},
        {.latency_s = 1, .bytes_per_s = 1e9});
  };
  EXPECT_DOUBLE_EQ(seconds(1, ServerPlace::kRank0, true), 0);
  EXPECT_DOUBLE_EQ(seconds(4, ServerPlace::kRank0, true), 0.75 * (2 + .1));
  EXPECT_DOUBLE_EQ(seconds(4, ServerPlace::kRank0, false), 0.75 * (2 + 2 * .1));
  EXPECT_DOUBLE_EQ(seconds(4, ServerPlace::kDedicated, true), 2 + .1);
}

TEST(CostModel, Gradients16BitHalveThePushAndNotThePull) {
  CommPattern server{
      .scheme = Scheme::kServerSync, .workers = 4, .place = ServerPlace::kDedicated, .pushed = .5};
  EXPECT_DOUBLE_EQ(SecondsOf(server), .4) << "the pull fills the link";
  server.pipelined = false;
  EXPECT_DOUBLE_EQ(SecondsOf(server), .6);
  EXPECT_DOUBLE_EQ(PayloadBytesPerWorker(server, kGradientBytes), kGradientBytes / 2);
}

TEST(CostModel, LatencyIsPaidPerRoundAndARingDividesTheAddingThatAServerDoesAlone) {
  EXPECT_DOUBLE_EQ(Ring(4, kLatency), 6e-3);
  EXPECT_DOUBLE_EQ(Servers(4, 1, ServerPlace::kDedicated, false, kLatency), 2e-3);
  EXPECT_NEAR(Ring(4, kAdding), 0.075, 1e-12);
  EXPECT_NEAR(Servers(4, 1, ServerPlace::kDedicated, false, kAdding), 0.4, 1e-12);
}

TEST(CostModel, OneLoopbackCarriesTheBytesOfAllRanks) {
  // Links of 1 GB/s would allow a ring of 4 in 0.15 s; 6 * 100 MB over a loopback of 2 GB/s take 0.3 s, as if
  // every link had 2 GB/s / 4.
  const Wires wires{.bytes_per_s = 1e9, .medium_bytes_per_s = 2e9};
  EXPECT_DOUBLE_EQ(Ring(4, wires), 0.3);
  EXPECT_DOUBLE_EQ(Ring(4, wires), Ring(4, {.bytes_per_s = 2e9 / 4}));
}

TEST(CostModel, BucketsAddUp) {
  const CommPattern ring{.scheme = Scheme::AllReduce("ring"), .workers = 4};
  const Wires wires{.latency_s = 1e-3, .bytes_per_s = 1e9};
  EXPECT_DOUBLE_EQ(ExchangeSeconds(ring, std::vector<double>{60e6, 40e6}, wires),
                   ExchangeSeconds(ring, kGradientBytes, wires) + 6e-3);
}

TEST(CostModel, PayloadOfARingIsTwoNMinus1OverNAndOfAServerOneGradient) {
  for (int n : {1, 2, 4}) {
    EXPECT_DOUBLE_EQ(
        PayloadBytesPerWorker({.scheme = Scheme::AllReduce("ring"), .workers = n}, kGradientBytes),
        2.0 * (n - 1) / n * kGradientBytes);
    EXPECT_DOUBLE_EQ(PayloadBytesPerWorker({.scheme = Scheme::kServerAsync, .workers = n}, kGradientBytes),
                     kGradientBytes);
  }
  EXPECT_DOUBLE_EQ(PayloadBytesPerWorker({.scheme = Scheme::kNone, .workers = 4}, kGradientBytes), 0);
}

// 2 machines of 4 workers: on the network 2 workers, plus an all-reduce and a broadcast in the machine.
TEST(CostModel, LocalAggregationMakesAMachineOneWorker) {
  const CommPattern separate{.scheme = Scheme::kServerSync, .workers = 2};
  CommPattern together = separate;
  together.per_machine = 4;
  const Wires wires{.latency_s = 1e-5, .bytes_per_s = 1e9, .add_s_per_byte = 1e-10};
  // 3/4 of the bytes: added and copied once each, then copied twice.
  const double inside = 3.0 / 4 * kGradientBytes * 4e-10;
  EXPECT_DOUBLE_EQ(LocalSeconds(together, kGradientBytes, wires), inside);
  EXPECT_EQ(LocalSeconds(separate, kGradientBytes, wires), 0);
  EXPECT_NEAR(ExchangeSeconds(together, kGradientBytes, wires),
              ExchangeSeconds(separate, kGradientBytes, wires) + inside, 1e-12);
  const std::vector<double> buckets = {kGradientBytes / 4, 3 * kGradientBytes / 4};
  EXPECT_NEAR(ExchangeSeconds(together, buckets, wires), ExchangeSeconds(separate, buckets, wires) + inside,
              1e-12);
  EXPECT_NEAR(MeanExchangeSeconds(together, buckets, wires),
              MeanExchangeSeconds(separate, buckets, wires) + inside, 1e-12);
  // One push for four workers; three gradients for the sum's parts, three for the sum, three for the weights.
  EXPECT_DOUBLE_EQ(PayloadBytesPerWorker(together, kGradientBytes), 10.0 / 4 * kGradientBytes);
}

TEST(CostModel, NothingIsFasterThanTheLowerBound) {
  // Patarasuk & Yuan 2009.
  for (const char* schedule : {"ring", "star", "direct", "halving-doubling", "double-binary-tree"}) {
    for (int n : {2, 3, 4, 7, 64}) EXPECT_GE(AllReduce(schedule, n) + 1e-12, 2.0 * (n - 1) / n * .1);
  }
}

TEST(CostModel, BucketsOverlapTheBackwardPass) {
  // The second waits for the first exchange, the third for its gradient.
  const Overlap overlap = OverlapBuckets({1, 2, 10}, {4, 3, 2}, 11);
  EXPECT_EQ(overlap.ends, (std::vector<double>{5, 8, 12}));
  EXPECT_DOUBLE_EQ(overlap.busy, 9);
  EXPECT_DOUBLE_EQ(overlap.exposed, 1);
  EXPECT_DOUBLE_EQ(OverlapBuckets({1}, {2}, 11).exposed, 0);
}

TEST(CostModel, UnknownAlgorithmsHaveNoScheme) {
  const auto scheme = [](const char* strategy) { return SchemeOf(*FindStrategy(strategy)); };
  EXPECT_FALSE(scheme("nccl").has_value());
  EXPECT_FALSE(scheme("ps-backup:1").has_value());
  EXPECT_EQ(scheme("ps-async"), Scheme::kServerAsync);
  EXPECT_EQ(scheme("gloo"), Scheme::AllReduce("ring"));
  EXPECT_EQ(scheme("hybrid"), Scheme::AllReduce("ring")) << "of what is outside of the tables";
}

// Wires of a run on 1 Gbit/s links: a burst covers all of a bucket, and the product of its time and its rate
// is above its bytes.
TEST(CostModel, RoundingMakesNoTransferNegative) {
  const Wires wires = {.latency_s = 35.749e-6,
                       .bytes_per_s = 119.51579403807587e6,
                       .add_s_per_byte = 1 / 11.099808772867481e9,
                       .update_s_per_byte = 1 / 5.86835728985811e9,
                       .burst_bytes = 131072};
  const CommPattern one_worker = {.scheme = Scheme::kServerSync};
  const double seconds = ExchangeSeconds(one_worker, std::vector<double>{4239400, 3215360}, wires);
  EXPECT_GE(seconds, 7454760 * wires.update_s_per_byte);
  EXPECT_LT(seconds, 0.01);
}

TEST(CostModel, AServersHostMovesPushesAndPullsAtTheRateOfItsWire) {
  // As fast as a link in both directions together: .1 s for each push and each pull that crosses the network.
  constexpr Wires wires{.bytes_per_s = 1e9, .server_bytes_per_s = 1e9};
  EXPECT_DOUBLE_EQ(Servers(4, 1, ServerPlace::kDedicated, true, wires), 0.8);
  EXPECT_DOUBLE_EQ(Servers(4, 1, ServerPlace::kRank0, true, wires), 0.6);
  EXPECT_DOUBLE_EQ(Servers(4, 2, ServerPlace::kDedicated, true, wires), 0.4);
  EXPECT_DOUBLE_EQ(Servers(4, 4, ServerPlace::kColocated, true, wires), 0.15);
  EXPECT_DOUBLE_EQ(Servers(4, 1, ServerPlace::kDedicated, false, wires), 0.8) << "serial: the links' time";
  const CommPattern sync{.scheme = Scheme::kServerSync, .workers = 4, .place = ServerPlace::kDedicated};
  EXPECT_NEAR(ExchangeSeconds(sync, std::vector<double>(1000, kGradientBytes / 1000), wires), 0.8, 0.01);
  CommPattern async = sync;
  async.scheme = Scheme::kServerAsync;
  EXPECT_DOUBLE_EQ(SecondsOf(async, wires), 0.2) << "one worker at a time";
  EXPECT_DOUBLE_EQ(GradientsAtServer(async), 1);
}

}  // namespace
}  // namespace psring
