#include "experiments/simulator/fluid_network.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace psring {
namespace {

using Ends = std::vector<std::pair<double, int64_t>>;  // in order: (time, token)

Ends RunDry(FluidNetwork& network) {
  Ends ends;
  std::vector<int64_t> ended;
  while (network.NextEnd() < FluidNetwork::kUnlimited) {
    ended.clear();
    network.AdvanceTo(network.NextEnd(), ended);
    for (const int64_t token : ended) ends.emplace_back(network.now(), token);
  }
  return ends;
}

TEST(FluidNetwork, ASingleFlowGetsTheWholeLink) {
  FluidNetwork network;
  const size_t link = network.AddResource(10);
  const size_t kind = network.AddKind({{link, 1}});
  network.Start(kind, 30, 7);
  EXPECT_EQ(RunDry(network), (Ends{{3, 7}}));
  EXPECT_DOUBLE_EQ(network.BusySeconds(link), 3);
}

TEST(FluidNetwork, FlowsShareALinkAndSpeedUpWhenOthersEnd) {
  FluidNetwork network;
  const size_t kind = network.AddKind({{network.AddResource(10), 1}});
  network.Start(kind, 10, 1);
  network.Start(kind, 30, 2);
  // 5 each until 1 ends at 2; then 2 has 20 left at 10.
  EXPECT_EQ(RunDry(network), (Ends{{2, 1}, {4, 2}}));
}

TEST(FluidNetwork, AFlowLimitedElsewhereLeavesItsShareToOthers) {
  // The textbook's case: three flows over links of 10 and 4; the one over both gets 2, as does its neighbor
  // on the small link, and the third gets 8.
  FluidNetwork network;
  const size_t large = network.AddResource(10), small = network.AddResource(4);
  const size_t both = network.AddKind({{large, 1}, {small, 1}});
  const size_t on_small = network.AddKind({{small, 1}});
  const size_t on_large = network.AddKind({{large, 1}});
  network.Start(both, 2, 1);
  network.Start(on_small, 2, 2);
  network.Start(on_large, 8, 3);
  EXPECT_DOUBLE_EQ(network.NextEnd(), 1);
  std::vector<int64_t> ended;
  network.AdvanceTo(1, ended);
  EXPECT_EQ(ended, (std::vector<int64_t>{1, 2, 3}));
}

TEST(FluidNetwork, AFlowIsLimitedByItsOwnRate) {
  FluidNetwork network;
  const size_t link = network.AddResource(10);
  network.Start(network.AddKind({{link, 1}}, 2), 2, 1);
  network.Start(network.AddKind({{link, 1}}), 8, 2);
  EXPECT_DOUBLE_EQ(network.NextEnd(), 1);
}

TEST(FluidNetwork, LoadsMultiplyTheBytesOnALink) {
  FluidNetwork network;
  const size_t link = network.AddResource(8);
  network.Start(network.AddKind({{link, 3}}), 1, 1);
  network.Start(network.AddKind({{link, 0.5}}, 4), 4, 2);
  // Alike until 8 / 3.5 each.
  EXPECT_DOUBLE_EQ(network.NextEnd(), 3.5 / 8);
}

TEST(FluidNetwork, FlowsWithoutBytesOrLimitEndImmediately) {
  FluidNetwork network;
  const size_t kind = network.AddKind({{network.AddResource(10), 1}});
  const size_t free = network.AddKind({{network.AddResource(FluidNetwork::kUnlimited), 1}});
  network.Start(kind, 0, 1);
  network.Start(free, 100, 2);
  EXPECT_EQ(RunDry(network), (Ends{{0, 1}, {0, 2}}));
}

TEST(FluidNetwork, TheOrderOfStartsAtOneTimeDoesNotMatter) {
  std::mt19937 random(1);
  Ends first;
  for (int turn = 0; turn < 20; ++turn) {
    FluidNetwork network;
    std::vector<size_t> kinds, links;
    for (int i = 0; i < 6; ++i) links.push_back(network.AddResource(1.0 + i / 3.0));
    for (int i = 0; i < 12; ++i)
      kinds.push_back(network.AddKind({{links[i % 6], 1}, {links[(i * 5 + 1) % 6], 0.7}}));
    std::vector<int> order;
    for (int i = 0; i < 60; ++i) order.push_back(i);
    std::shuffle(order.begin(), order.end(), random);
    for (const int i : order) network.Start(kinds[i % 12], 1 + i % 7, i);
    const auto ends = RunDry(network);
    if (turn == 0) first = ends;
    ASSERT_EQ(ends.size(), first.size());
    for (size_t i = 0; i < ends.size(); ++i) {
      EXPECT_EQ(ends[i].second, first[i].second);
      EXPECT_DOUBLE_EQ(ends[i].first, first[i].first);
    }
  }
}

TEST(FluidNetwork, ABurstIsUnlimitedAndRefillsInAPause) {
  FluidNetwork network;
  const size_t link = network.AddResource(1e6, {.bytes = 1e5, .tokens = 1e5, .full_bytes_per_s = 1.1e7});
  const size_t kind = network.AddKind({{link, 1}});
  // Tokens go at 1e7 a second more than they come: 0.01 s and 1.1e5 bytes. The other 2e5 take 0.2 s.
  network.Start(kind, 3.1e5, 1);
  Ends ends = RunDry(network);
  ASSERT_EQ(ends.size(), 1);
  EXPECT_NEAR(ends[0].first, 0.21, 1e-12);
  // A pause of 0.05 s brings half of them back.
  std::vector<int64_t> ended;
  network.AdvanceTo(0.26, ended);
  network.Start(kind, 2.55e5, 2);
  ends = RunDry(network);
  ASSERT_EQ(ends.size(), 1);
  EXPECT_NEAR(ends[0].first, 0.26 + 0.005 + 0.2, 1e-12);
}

TEST(FluidNetwork, AFlowLimitedElsewhereLeavesTokensForLaterFlows) {
  FluidNetwork network;
  const size_t slow = network.AddResource(1e5);
  const size_t link = network.AddResource(1e6, {.bytes = 1e5, .tokens = 0, .full_bytes_per_s = 1.1e7});
  const size_t trickle = network.AddKind({{slow, 1}, {link, 1}}), flood = network.AddKind({{link, 1}});
  network.Start(trickle, 1e6, 1);
  std::vector<int64_t> ended;
  network.AdvanceTo(1, ended);  // the bucket is full again
  network.Start(flood, 1.09e5, 2);
  // Beside 1e5 of the trickle the flood has 1.09e7: tokens go at 1e7, for 0.01 s.
  network.AdvanceTo(network.NextEnd(), ended);
  EXPECT_NEAR(network.now(), 1.01, 1e-12);
  EXPECT_EQ(ended, (std::vector<int64_t>{2}));
}

TEST(FluidNetwork, WithoutTokensThereIsNoBurst) {
  FluidNetwork network;
  const size_t kind =
      network.AddKind({{network.AddResource(10, {.bytes = 5, .tokens = 0, .full_bytes_per_s = 100}), 1}});
  network.Start(kind, 30, 1);
  EXPECT_EQ(RunDry(network), (Ends{{3, 1}}));
}

}  // namespace
}  // namespace psring
