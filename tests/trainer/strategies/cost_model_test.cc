#include "trainer/strategies/table/cost_model.h"

#include <gtest/gtest.h>

namespace psring {
namespace {

constexpr double kGradientBytes = 100e6;
// Only bandwidth, with independent links.
constexpr Wires kBandwidth{.bytes_per_s = 1e9};

double Seconds(Scheme scheme, int workers, ServerPlace place, bool pipelined,
               const Wires& wires = kBandwidth) {
  return ExchangeSeconds({.scheme = scheme, .workers = workers, .place = place, .pipelined = pipelined},
                         kGradientBytes, wires);
}

double Ring(int workers, const Wires& wires = kBandwidth) {
  return Seconds(Scheme::AllReduce("ring"), workers, ServerPlace::kRank0, true, wires);
}

TEST(CostModel, RingMovesTwiceTheBufferForAnyNumberOfWorkers) {
  EXPECT_DOUBLE_EQ(Ring(1), 0);
  EXPECT_DOUBLE_EQ(Ring(2), 0.1);
  EXPECT_DOUBLE_EQ(Ring(4), 0.15);
  EXPECT_NEAR(Ring(1000), 0.2, 1e-3);
}

TEST(CostModel, DedicatedServerOverRingIsNSquaredOverNMinus1) {
  for (int n : {2, 3, 4, 8, 64}) {
    const double serial = Seconds(Scheme::kServerSync, n, ServerPlace::kDedicated, false);
    const double pipelined = Seconds(Scheme::kServerSync, n, ServerPlace::kDedicated, true);
    EXPECT_NEAR(serial / Ring(n), double(n) * n / (n - 1), 1e-9) << n;
    EXPECT_NEAR(pipelined / Ring(n), double(n) * n / (n - 1) / 2, 1e-9) << n;
  }
}

TEST(CostModel, ServerOnRank0OverRingIsN) {
  for (int n : {2, 3, 4, 8, 64}) {
    EXPECT_NEAR(Seconds(Scheme::kServerSync, n, ServerPlace::kRank0, false) / Ring(n), n, 1e-9) << n;
    EXPECT_NEAR(Seconds(Scheme::kServerSync, n, ServerPlace::kRank0, true) / Ring(n), n / 2.0, 1e-9) << n;
    EXPECT_NEAR(Seconds(Scheme::AllReduce("star"), n, ServerPlace::kRank0, true) / Ring(n), n, 1e-9) << n;
  }
}

TEST(CostModel, OtherAllReducesMoveTheBytesOfARingInFewerRounds) {
  const Wires latency{.latency_s = 1e-3};
  const auto seconds = [](Scheme scheme, int workers, const Wires& wires) {
    return Seconds(scheme, workers, ServerPlace::kRank0, true, wires);
  };
  for (const char* schedule : {"direct", "halving-doubling", "double-binary-tree"}) {
    const Scheme scheme = Scheme::AllReduce(schedule);
    EXPECT_DOUBLE_EQ(seconds(scheme, 1, kBandwidth), 0);
    EXPECT_DOUBLE_EQ(PayloadBytesPerWorker({.scheme = scheme, .workers = 3}, kGradientBytes),
                     4.0 / 3 * kGradientBytes);
  }
  EXPECT_DOUBLE_EQ(seconds(Scheme::AllReduce("direct"), 8, kBandwidth), Ring(8));
  EXPECT_DOUBLE_EQ(seconds(Scheme::AllReduce("direct"), 8, latency), 2e-3);
  EXPECT_DOUBLE_EQ(seconds(Scheme::AllReduce("halving-doubling"), 8, kBandwidth), Ring(8));
  EXPECT_DOUBLE_EQ(seconds(Scheme::AllReduce("halving-doubling"), 8, latency), 6e-3);
  EXPECT_DOUBLE_EQ(seconds(Scheme::AllReduce("double-binary-tree"), 8, kBandwidth), 0.2);
  EXPECT_DOUBLE_EQ(seconds(Scheme::AllReduce("double-binary-tree"), 8, latency), 6e-3);
  EXPECT_DOUBLE_EQ(seconds(Scheme::AllReduce("double-binary-tree"), 5, latency), 6e-3);
}

TEST(CostModel, HalvingDoublingFoldsTheRanksBeyondAPowerOfTwo) {
  const auto seconds = [](int workers, const Wires& wires) {
    return Seconds(Scheme::AllReduce("halving-doubling"), workers, ServerPlace::kRank0, true, wires);
  };
  EXPECT_DOUBLE_EQ(seconds(5, {.latency_s = 1e-3}), seconds(4, {.latency_s = 1e-3}) + 2e-3);
  EXPECT_DOUBLE_EQ(seconds(5, kBandwidth), seconds(4, kBandwidth) + 0.2);
}

TEST(CostModel, SeveralServersShareTheLoadOnlyIfTheyHaveTheirOwnLinks) {
  const Wires wires{.bytes_per_s = 1e9};
  const auto seconds = [&](int servers, ServerPlace place, bool pipelined) {
    return ExchangeSeconds({.scheme = Scheme::kServerSync,
                            .workers = 4,
                            .place = place,
                            .pipelined = pipelined,
                            .servers = servers},
                           kGradientBytes, wires);
  };
  const double one_gradient = kGradientBytes / 1e9;
  EXPECT_DOUBLE_EQ(seconds(1, ServerPlace::kDedicated, true), 4 * one_gradient);
  EXPECT_DOUBLE_EQ(seconds(2, ServerPlace::kDedicated, true), 2 * one_gradient);
  EXPECT_DOUBLE_EQ(seconds(2, ServerPlace::kDedicated, false), 4 * one_gradient);
  EXPECT_DOUBLE_EQ(seconds(8, ServerPlace::kDedicated, true), one_gradient)
      << "then a worker's own link is full";
  EXPECT_DOUBLE_EQ(seconds(3, ServerPlace::kRank0, true), 3 * one_gradient) << "rank 0's host has one link";
  // As a direct all-reduce: a host sends what its worker pushes and what its server answers.
  for (const bool pipelined : {true, false})
    EXPECT_DOUBLE_EQ(seconds(4, ServerPlace::kColocated, pipelined), 1.5 * one_gradient);
  // Each adds its share.
  EXPECT_DOUBLE_EQ(ExchangeSeconds({.scheme = Scheme::kServerSync, .workers = 4, .servers = 2},
                                   kGradientBytes, {.add_s_per_byte = 1e-9}),
                   2 * one_gradient);
}

TEST(CostModel, AnAsynchronousWorkerBesideItsServerNeedsNoLink) {
  const Wires wires{.latency_s = 1, .bytes_per_s = 1e9};
  const double one_gradient = kGradientBytes / 1e9;
  const auto seconds = [&](int workers, ServerPlace place, bool pipelined) {
    return ExchangeSeconds(
        {.scheme = Scheme::kServerAsync, .workers = workers, .place = place, .pipelined = pipelined},
        kGradientBytes, wires);
  };
  EXPECT_DOUBLE_EQ(seconds(1, ServerPlace::kRank0, true), 0);
  EXPECT_DOUBLE_EQ(seconds(4, ServerPlace::kRank0, true), 0.75 * (2 + one_gradient));
  EXPECT_DOUBLE_EQ(seconds(4, ServerPlace::kRank0, false), 0.75 * (2 + 2 * one_gradient));
  EXPECT_DOUBLE_EQ(seconds(4, ServerPlace::kDedicated, true), 2 + one_gradient);
}

TEST(CostModel, Gradients16BitHalveThePushAndNotThePull) {
  const Wires wires{.bytes_per_s = 1e9};
  CommPattern server{
      .scheme = Scheme::kServerSync, .workers = 4, .place = ServerPlace::kDedicated, .pushed = .5};
  EXPECT_DOUBLE_EQ(ExchangeSeconds(server, kGradientBytes, wires), 4 * kGradientBytes / 1e9)
      << "the pull fills the link";
  server.pipelined = false;
  EXPECT_DOUBLE_EQ(ExchangeSeconds(server, kGradientBytes, wires), 6 * kGradientBytes / 1e9);
  EXPECT_DOUBLE_EQ(PayloadBytesPerWorker(server, kGradientBytes), kGradientBytes / 2);
}

TEST(CostModel, LatencyIsPaidPerRound) {
  const Wires wires{.latency_s = 1e-3};
  EXPECT_DOUBLE_EQ(Ring(4, wires), 6e-3);
  EXPECT_DOUBLE_EQ(Seconds(Scheme::kServerSync, 4, ServerPlace::kDedicated, false, wires), 2e-3);
}

TEST(CostModel, ARingDividesTheAddingThatAServerDoesAlone) {
  const Wires wires{.add_s_per_byte = 1e-9};
  EXPECT_NEAR(Ring(4, wires), 0.075, 1e-12);
  EXPECT_NEAR(Seconds(Scheme::kServerSync, 4, ServerPlace::kDedicated, false, wires), 0.4, 1e-12);
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

double Servers(int workers, int servers, ServerPlace place, bool pipelined) {
  return ExchangeSeconds({.scheme = Scheme::kServerSync,
                          .workers = workers,
                          .place = place,
                          .pipelined = pipelined,
                          .servers = servers},
                         kGradientBytes, kBandwidth);
}

TEST(CostModel, SeveralDedicatedServersShareTheLoadUntilAWorkersOwnLinkIsFull) {
  EXPECT_DOUBLE_EQ(Servers(8, 2, ServerPlace::kDedicated, true), 0.4);
  EXPECT_DOUBLE_EQ(Servers(8, 2, ServerPlace::kDedicated, false), 0.8);
  EXPECT_DOUBLE_EQ(Servers(8, 8, ServerPlace::kDedicated, true), 0.1);
  EXPECT_DOUBLE_EQ(Servers(8, 16, ServerPlace::kDedicated, true), 0.1);
}

TEST(CostModel, ServersBesideAllWorkersEqualTheDirectAllReduce) {
  for (int n : {2, 3, 8}) {
    const double direct = Seconds(Scheme::AllReduce("direct"), n, ServerPlace::kRank0, true);
    EXPECT_DOUBLE_EQ(Servers(n, n, ServerPlace::kColocated, true), direct);
    EXPECT_DOUBLE_EQ(Servers(n, n, ServerPlace::kColocated, false), direct);
  }
  // One server next to one of eight workers: the same as on rank 0's host.
  EXPECT_DOUBLE_EQ(Servers(8, 1, ServerPlace::kColocated, true), Servers(8, 1, ServerPlace::kRank0, true));
  // Two next to eight: each host receives 7 pushes of one half, and half of the weights.
  EXPECT_DOUBLE_EQ(Servers(8, 2, ServerPlace::kColocated, true), 0.4);
}

TEST(CostModel, ServersOnOneHostShareItsLinkAndSplitTheAdding) {
  EXPECT_DOUBLE_EQ(Servers(8, 4, ServerPlace::kRank0, true), Servers(8, 1, ServerPlace::kRank0, true));
  const CommPattern pattern{.scheme = Scheme::kServerSync, .workers = 8, .pipelined = false, .servers = 4};
  EXPECT_NEAR(ExchangeSeconds(pattern, kGradientBytes, {.add_s_per_byte = 1e-9}), 0.2, 1e-12);
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
    const Scheme scheme = Scheme::AllReduce(schedule);
    for (int n : {2, 3, 4, 7, 64})
      EXPECT_GE(Seconds(scheme, n, ServerPlace::kRank0, true) + 1e-12,
                2.0 * (n - 1) / n * kGradientBytes / kBandwidth.bytes_per_s);
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

}  // namespace
}  // namespace psring
