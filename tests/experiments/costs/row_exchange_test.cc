#include "experiments/costs/row_exchange.h"

#include <gtest/gtest.h>

namespace psring {
namespace {

constexpr Wires kWires{.latency_s = .001, .bytes_per_s = 1000};

TEST(RowExchange, AnAllGatherSendsEveryRanksRowsToAllOthers) {
  const RowFigures rows{.gathered_bytes = 500};
  const CommPattern ring{.scheme = Scheme::AllReduce("ring"), .workers = 4};
  EXPECT_DOUBLE_EQ(RowExchangeOf(ring, rows, kWires)->payload_bytes, 1500);
  EXPECT_DOUBLE_EQ(RowExchangeOf(ring, rows, kWires)->seconds, 6 * .001 + 1.5);
  const CommPattern direct{.scheme = Scheme::AllReduce("direct"), .workers = 4};
  EXPECT_DOUBLE_EQ(RowExchangeOf(direct, rows, kWires)->seconds, 2 * .001 + 1.5);
  const CommPattern one{.scheme = Scheme::AllReduce("ring"), .workers = 1};
  EXPECT_EQ(RowExchangeOf(one, rows, kWires)->payload_bytes, 0);
  const CommPattern tree{.scheme = Scheme::AllReduce("double-binary-tree"), .workers = 4};
  EXPECT_FALSE(RowExchangeOf(tree, rows, kWires).has_value());
}

TEST(RowExchange, ATableThatIsReducedAsAWholeCostsAnAllReduce) {
  const CommPattern ring{.scheme = Scheme::AllReduce("ring"), .workers = 4};
  const auto exchange = RowExchangeOf(ring, {.gathered_bytes = 4, .reduced_bytes = 4000}, kWires);
  EXPECT_DOUBLE_EQ(exchange->payload_bytes, 3 * 4 + 2 * .75 * 4000);
  EXPECT_DOUBLE_EQ(exchange->seconds, 6 * .001 + .012 + ExchangeSeconds(ring, 4000, kWires));
}

TEST(RowExchange, AServersLinkCarriesTheRowsOfAllRemoteWorkers) {
  const RowFigures rows{.pushed_bytes = 600, .asked_bytes = 40, .pulled_bytes = 560};
  CommPattern servers{.scheme = Scheme::kServerSync, .workers = 4, .place = ServerPlace::kDedicated};
  EXPECT_DOUBLE_EQ(RowExchangeOf(servers, rows, kWires)->payload_bytes, 640);
  EXPECT_DOUBLE_EQ(RowExchangeOf(servers, rows, kWires)->seconds, .002 + 4 * (.56 + .64));
  servers.servers = 4;
  EXPECT_DOUBLE_EQ(RowExchangeOf(servers, rows, kWires)->seconds, .002 + .56 + .64);
  servers.place = ServerPlace::kColocated;
  EXPECT_DOUBLE_EQ(RowExchangeOf(servers, rows, kWires)->seconds, .002 + .75 * (.56 + .64));
  servers = {.scheme = Scheme::kServerSync, .workers = 4};
  EXPECT_DOUBLE_EQ(RowExchangeOf(servers, rows, kWires)->seconds, .002 + 3 * (.56 + .64));
}

TEST(RowExchange, AServersHostMovesRowsAtTheRateOfItsWire) {
  const RowFigures rows{.pushed_bytes = 600, .asked_bytes = 40, .pulled_bytes = 560};
  const CommPattern servers{.scheme = Scheme::kServerSync, .workers = 4, .place = ServerPlace::kDedicated};
  Wires wires = kWires;
  wires.server_bytes_per_s = 500;
  EXPECT_DOUBLE_EQ(RowExchangeOf(servers, rows, wires)->seconds, .002 + 8 * (.56 + .64));
}

// Kim et al. 2019: a worker's bytes are those of the ring and of its rows.
TEST(RowExchange, OfHybridIsThatOfServersBesideItsRing) {
  const RowFigures rows{.pushed_bytes = 600, .asked_bytes = 40, .pulled_bytes = 560};
  CommPattern hybrid{
      .scheme = Scheme::AllReduce("ring"), .workers = 4, .place = ServerPlace::kDedicated, .servers = 2};
  const CommPattern servers{
      .scheme = Scheme::kServerSync, .workers = 4, .place = ServerPlace::kDedicated, .servers = 2};
  EXPECT_DOUBLE_EQ(RowExchangeOf(hybrid, rows, kWires)->payload_bytes, 640);
  EXPECT_DOUBLE_EQ(RowExchangeOf(hybrid, rows, kWires)->seconds, .002 + 2 * (.56 + .64));
  EXPECT_DOUBLE_EQ(RowExchangeOf(hybrid, rows, kWires)->seconds,
                   RowExchangeOf(servers, rows, kWires)->seconds);
  // One worker has no ring, but rows.
  hybrid = {.scheme = Scheme::AllReduce("ring"), .workers = 1};
  EXPECT_DOUBLE_EQ(RowExchangeOf(hybrid, rows, kWires)->payload_bytes, 640);
  EXPECT_DOUBLE_EQ(RowExchangeOf(hybrid, rows, kWires)->seconds, .002) << "they use no link";
}

}  // namespace
}  // namespace psring
