// The layout of a mesh, derived from the hosts of its ranks.
#include "ring_worker/transports/mesh_layout.h"

#include <gtest/gtest.h>

#include <vector>

#include "ring_worker/transports/shared_link.h"

namespace psring {
namespace {

// The layout of ranks with these nodes.
MeshLayout OnNodes(const std::vector<int>& nodes, int cores = 64, bool near = true) {
  std::vector<MeshView> views;
  for (size_t rank = 0; rank < nodes.size(); ++rank) {
    std::vector<bool> shares;
    for (const int node : nodes) shares.push_back(node == nodes[rank]);
    views.push_back(ViewOf(static_cast<int>(rank), shares, cores, near));
  }
  return LayoutOf(views);
}

TEST(MeshLayoutTest, OneRankIsOneNode) {
  const MeshLayout layout = OnNodes({0});
  EXPECT_EQ(layout.ranks_per_node, 1);
  EXPECT_TRUE(layout.all_share);
  EXPECT_FALSE(layout.some_share);
}

TEST(MeshLayoutTest, RanksOfOneHostAreOneNode) {
  for (const int ranks : {2, 3, 8, 64}) {
    const MeshLayout layout = OnNodes(std::vector<int>(ranks, 0));
    EXPECT_EQ(layout.ranks_per_node, ranks);
    EXPECT_TRUE(layout.all_share && layout.some_share && layout.all_near);
    EXPECT_FALSE(layout.some_oversubscribed);
  }
}

TEST(MeshLayoutTest, ConsecutiveGroupsOfEqualSizeAreNodes) {
  EXPECT_EQ(OnNodes({0, 0, 1, 1}).ranks_per_node, 2);
  EXPECT_EQ(OnNodes({0, 0, 0, 1, 1, 1, 2, 2, 2}).ranks_per_node, 3);
  const MeshLayout separate = OnNodes({0, 1, 2});
  EXPECT_EQ(separate.ranks_per_node, 1);
  EXPECT_FALSE(separate.some_share || separate.all_share);
}

TEST(MeshLayoutTest, InterleavedOrUnequalGroupsAreNotNodes) {
  for (const std::vector<int>& nodes :
       std::vector<std::vector<int>>{{0, 1, 0, 1}, {0, 0, 1}, {0, 1, 1}, {0, 0, 1, 1, 1}, {0, 1, 1, 0}}) {
    const MeshLayout layout = OnNodes(nodes);
    EXPECT_EQ(layout.ranks_per_node, 0);
    EXPECT_TRUE(layout.some_share);
    EXPECT_FALSE(layout.all_share);
  }
}

TEST(MeshLayoutTest, ANodeWithMoreRanksThanCoresIsOversubscribed) {
  EXPECT_FALSE(OnNodes({0, 0, 1, 1}, /*cores=*/2, /*near=*/false).some_oversubscribed);
  EXPECT_TRUE(OnNodes({0, 0, 0, 1}, /*cores=*/2, /*near=*/false).some_oversubscribed);
}

TEST(MeshLayoutTest, RanksOfOneHostShareItsCoresAlsoWithoutSharedMemory) {
  EXPECT_FALSE(OnNodes({0, 1}, /*cores=*/2).some_oversubscribed);
  EXPECT_TRUE(OnNodes({0, 1, 2}, /*cores=*/2).some_oversubscribed);
}

TEST(MeshLayoutTest, OneConnectionBetweenHostsMakesTheMeshFar) {
  std::vector<MeshView> views(3);
  EXPECT_TRUE(LayoutOf(views).all_near);
  views[1].near = false;
  EXPECT_FALSE(LayoutOf(views).all_near);
}

TEST(MeshLayoutTest, SegmentsInFlightSuitCoresAndLinks) {
  const TransportTraits shared = TraitsOf({.some_share = true});
  EXPECT_EQ(shared.depth, 3);
  EXPECT_EQ(shared.segment_bytes, kSlotBytes);
  const TransportTraits oversubscribed = TraitsOf({.some_share = true, .some_oversubscribed = true});
  EXPECT_EQ(oversubscribed.depth, 2);
  EXPECT_EQ(oversubscribed.segment_bytes, kSlotBytes);
  const TransportTraits loopback = TraitsOf({.all_share = false});
  EXPECT_EQ(loopback.depth, 1);
  EXPECT_LT(TraitsOf({.all_share = false, .some_oversubscribed = true}).segment_bytes,
            loopback.segment_bytes);
  EXPECT_GT(TraitsOf({.all_share = false, .all_near = false}).depth, 1);
  EXPECT_GT(TraitsOf({.some_share = true, .all_share = false, .all_near = false}).depth, 1);
}

TEST(MeshLayoutTest, TransfersFitIntoSlotsIfSomeRanksShareMemory) {
  for (const bool all : {false, true}) {
    for (const bool oversubscribed : {false, true}) {
      const TransportTraits traits =
          TraitsOf({.some_share = true, .all_share = all, .some_oversubscribed = oversubscribed});
      EXPECT_LE(traits.max_segment_bytes, kSlotBytes);
      EXPECT_LE(traits.segment_bytes, traits.max_segment_bytes);
    }
  }
}

}  // namespace
}  // namespace psring
