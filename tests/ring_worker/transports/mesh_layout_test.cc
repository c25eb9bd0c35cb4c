// What all ranks of a mesh conclude from where each of them stands.
#include "ring_worker/transports/mesh_layout.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "ring_worker/transports/shared_link.h"

namespace psring {
namespace {

// Ranks by the node that each stands on.
MeshLayout Standing(const std::vector<int>& nodes, int cores = 64, bool near = true) {
  std::vector<MeshView> views;
  for (size_t rank = 0; rank < nodes.size(); ++rank) {
    std::vector<bool> shares;
    for (const int node : nodes) shares.push_back(node == nodes[rank]);
    views.push_back(ViewOf(static_cast<int>(rank), shares, cores, near));
  }
  return LayoutOf(views);
}

TEST(MeshLayoutTest, OneRankIsANodeOfItsOwn) {
  const MeshLayout layout = Standing({0});
  EXPECT_EQ(layout.ranks_per_node, 1);
  EXPECT_TRUE(layout.all_share);
  EXPECT_FALSE(layout.some_share);
}

TEST(MeshLayoutTest, RanksOfOneHostAreOneNode) {
  for (const int ranks : {2, 3, 8, 64}) {
    const MeshLayout layout = Standing(std::vector<int>(ranks, 0));
    EXPECT_EQ(layout.ranks_per_node, ranks);
    EXPECT_TRUE(layout.all_share && layout.some_share && layout.all_near);
    EXPECT_FALSE(layout.some_crowded);
  }
}

TEST(MeshLayoutTest, EqualRunsOfRanksAreNodes) {
  EXPECT_EQ(Standing({0, 0, 1, 1}).ranks_per_node, 2);
  EXPECT_EQ(Standing({0, 0, 0, 1, 1, 1, 2, 2, 2}).ranks_per_node, 3);
  const MeshLayout each_alone = Standing({0, 1, 2});
  EXPECT_EQ(each_alone.ranks_per_node, 1);
  EXPECT_FALSE(each_alone.some_share || each_alone.all_share);
}

TEST(MeshLayoutTest, RanksThatAreDealtOutOrOfUnequalNumbersAreNotNodes) {
  for (const std::vector<int>& nodes :
       std::vector<std::vector<int>>{{0, 1, 0, 1}, {0, 0, 1}, {0, 1, 1}, {0, 0, 1, 1, 1}, {0, 1, 1, 0}}) {
    const MeshLayout layout = Standing(nodes);
    EXPECT_EQ(layout.ranks_per_node, 1);
    EXPECT_TRUE(layout.some_share);
    EXPECT_FALSE(layout.all_share);
  }
}

TEST(MeshLayoutTest, ANodeWithMoreRanksThanCoresIsCrowded) {
  EXPECT_FALSE(Standing({0, 0, 1, 1}, /*cores=*/2).some_crowded);
  EXPECT_TRUE(Standing({0, 0, 0, 1}, /*cores=*/2).some_crowded);
}

TEST(MeshLayoutTest, OneConnectionThatLeavesItsHostMakesTheMeshFar) {
  std::vector<MeshView> views(3);
  EXPECT_TRUE(LayoutOf(views).all_near);
  views[1].near = false;
  EXPECT_FALSE(LayoutOf(views).all_near);
}

TEST(MeshLayoutTest, WithinAHostOneSegmentIsInBetweenAndOverALinkSeveralAre) {
  const TransportTraits shared = TraitsOf({.some_share = true});
  EXPECT_EQ(shared.depth, 1);
  EXPECT_EQ(shared.segment_bytes, kSlotBytes);
  EXPECT_EQ(TraitsOf({.some_share = true, .some_crowded = true}).segment_bytes, kSlotBytes / 2);
  const TransportTraits loopback = TraitsOf({.all_share = false});
  EXPECT_EQ(loopback.depth, 1);
  EXPECT_GT(TraitsOf({.all_share = false, .all_near = false}).depth, 1);
  EXPECT_GT(TraitsOf({.some_share = true, .all_share = false, .all_near = false}).depth, 1);
}

TEST(MeshLayoutTest, ATransferFitsIntoItsSlotWhereverSomeShareMemory) {
  for (const bool all : {false, true}) {
    for (const bool crowded : {false, true}) {
      const TransportTraits traits =
          TraitsOf({.some_share = true, .all_share = all, .some_crowded = crowded});
      EXPECT_LE(traits.max_segment_bytes, kSlotBytes);
      EXPECT_LE(traits.segment_bytes, traits.max_segment_bytes);
    }
  }
}

}  // namespace
}  // namespace psring
