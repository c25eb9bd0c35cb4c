#include "trainer/programs/mesh.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/has.h"

namespace psring {
namespace {

std::string Refusal(int workers, int pp, const std::string& order = "") {
  return std::string(Mesh::Create(workers, pp, order).status().message());
}

TEST(MeshTest, EveryShapeAndOrderGivesEachPlaceOneRank) {
  for (const std::string order : {"", "dp,pp", "pp,dp"}) {
    for (const int pp : {1, 2, 3, 4, 8}) {
      for (const int replicas : {1, 2, 3, 5, 8}) {
        SCOPED_TRACE(absl::StrCat("dp", replicas, "xpp", pp, " ", order));
        const absl::StatusOr<Mesh> mesh = Mesh::Create(replicas * pp, pp, order);
        ASSERT_TRUE(mesh.ok()) << mesh.status();
        EXPECT_EQ(mesh->workers(), replicas * pp);
        EXPECT_EQ(mesh->replicas(), replicas);
        EXPECT_EQ(mesh->positions(), pp);
        std::set<std::pair<int, int>> places;
        for (int rank = 0; rank < replicas * pp; ++rank) {
          const MeshPlace place = mesh->PlaceOf(rank);
          EXPECT_TRUE(place.replica >= 0 && place.replica < replicas);
          EXPECT_TRUE(place.position >= 0 && place.position < pp);
          EXPECT_EQ(mesh->RankAt(place), rank);
          EXPECT_TRUE(places.insert({place.replica, place.position}).second);
        }
        EXPECT_EQ(mesh->PlaceOf(0), MeshPlace{}) << "rank 0 reports, evaluates and saves";
      }
    }
  }
}

TEST(MeshTest, TheOrderNamesTheFastestAxisFirst) {
  const Mesh slow_pipeline = Mesh::Create(8, 2, "").value();
  EXPECT_EQ(slow_pipeline.PlaceOf(1), (MeshPlace{.replica = 1, .position = 0}));
  EXPECT_EQ(slow_pipeline.PlaceOf(5), (MeshPlace{.replica = 1, .position = 1}));
  // Ranks 0, 2, 4, 6 hold the first half of the model, and 1, 3, 5, 7 the second.
  const Mesh halves = Mesh::Create(8, 2, "pp,dp").value();
  for (int rank = 0; rank < 8; ++rank) EXPECT_EQ(halves.PlaceOf(rank).position, rank % 2);
  EXPECT_THAT(halves.RanksWithPart(1), testing::ElementsAre(1, 3, 5, 7));
  EXPECT_THAT(slow_pipeline.RanksWithPart(1), testing::ElementsAre(4, 5, 6, 7));
  const Mesh divided = Mesh::Create(8, 2, "", 2).value();
  EXPECT_THAT(divided.RanksWithPart(1), testing::ElementsAre(1, 3)) << "position 0, share 1";
  EXPECT_THAT(divided.RanksWithPart(2), testing::ElementsAre(4, 6));
  EXPECT_EQ(halves.PlaceOf(5), (MeshPlace{.replica = 2, .position = 1}));
}

TEST(MeshTest, RanksThatDivideMatricesAreNeighboursByDefault) {
  for (const std::string order : {"", "tp,dp", "tp,dp,pp"}) {
    const Mesh mesh = Mesh::Create(8, 1, order, 4).value();
    EXPECT_EQ(mesh.replicas(), 2);
    EXPECT_EQ(mesh.positions(), 1);
    EXPECT_EQ(mesh.shares(), 4);
    EXPECT_EQ(mesh.PlaceOf(5), (MeshPlace{.replica = 1, .share = 1}));
  }
  EXPECT_EQ(Mesh::Create(8, 1, "dp,tp", 4)->PlaceOf(5), (MeshPlace{.replica = 1, .share = 2}));
  const Mesh mesh = Mesh::Create(24, 2, "", 3).value();
  EXPECT_EQ(mesh.PlaceOf(16), (MeshPlace{.replica = 1, .position = 1, .share = 1}));
  EXPECT_EQ(Mesh::Create(24, 2, "pp,tp,dp", 3)->PlaceOf(9),
            (MeshPlace{.replica = 1, .position = 1, .share = 1}));
}

TEST(MeshTest, EveryOrderOfThreeAxesGivesEachPlaceOneRank) {
  for (const std::string order :
       {"", "tp,dp,pp", "tp,pp,dp", "dp,tp,pp", "dp,pp,tp", "pp,tp,dp", "pp,dp,tp"}) {
    SCOPED_TRACE(order);
    const Mesh mesh = Mesh::Create(30, 3, order, 2).value();
    EXPECT_EQ(mesh.workers(), 30);
    EXPECT_EQ(mesh.replicas(), 5);
    std::set<std::tuple<int, int, int>> places;
    for (int rank = 0; rank < 30; ++rank) {
      const MeshPlace place = mesh.PlaceOf(rank);
      EXPECT_EQ(mesh.RankAt(place), rank);
      EXPECT_TRUE(places.insert({place.replica, place.position, place.share}).second);
    }
  }
}

TEST(MeshTest, RanksThatDivideSequencesAreNeighboursByDefault) {
  const Mesh mesh = Mesh::Create(8, 1, "", 1, 4).value();
  EXPECT_EQ(mesh.replicas(), 2);
  EXPECT_EQ(mesh.segments(), 4);
  EXPECT_EQ(mesh.PlaceOf(5), (MeshPlace{.replica = 1, .segment = 1}));
  EXPECT_EQ(Mesh::Create(8, 1, "dp,cp", 1, 4)->PlaceOf(5), (MeshPlace{.replica = 1, .segment = 2}));
  // Of 2 stages of 2 shares, 3 segments and 2 replicas.
  const Mesh all = Mesh::Create(24, 2, "", 2, 3).value();
  EXPECT_EQ(all.PlaceOf(23), (MeshPlace{.replica = 1, .position = 1, .share = 1, .segment = 2}));
  EXPECT_EQ(all.PlaceOf(2), (MeshPlace{.segment = 1}));
  std::set<std::tuple<int, int, int, int>> places;
  for (int rank = 0; rank < 24; ++rank) {
    const MeshPlace place = all.PlaceOf(rank);
    EXPECT_EQ(all.RankAt(place), rank);
    EXPECT_TRUE(places.insert({place.replica, place.position, place.share, place.segment}).second);
  }
}

TEST(MeshTest, ARejectionNamesTheAxisOfThreeThatDoesNotFit) {
  const auto refusal = [](int workers, int pp, const std::string& order, int tp) {
    return std::string(Mesh::Create(workers, pp, order, tp).status().message());
  };
  EXPECT_EQ(refusal(6, 1, "", 4),
            "--tp 4 does not divide 6 workers; use a multiple, such as --workers 8, or --tp 3 or 6");
  EXPECT_EQ(refusal(6, 2, "", 2),
            "--pp 2 times --tp 2 does not divide 6 workers; use a multiple, such as --workers 8");
  EXPECT_EQ(refusal(4, 1, "dp,pp", 2), "--rank_order 'dp,pp' is not dp,tp or tp,dp");
  EXPECT_EQ(refusal(8, 2, "dp,pp", 2), "--rank_order 'dp,pp' is not tp,dp,pp or another order of these");
  EXPECT_EQ(refusal(8, 2, "dp,pp,pp", 2),
            "--rank_order 'dp,pp,pp' is not tp,dp,pp or another order of these");
  EXPECT_EQ(refusal(2, 1, "", 0), "--tp 0 of 2 workers: use at least 1");
  const auto of_sequences = [](int workers, int pp, const std::string& order, int cp) {
    return std::string(Mesh::Create(workers, pp, order, 1, cp).status().message());
  };
  EXPECT_EQ(of_sequences(6, 1, "", 4),
            "--cp 4 does not divide 6 workers; use a multiple, such as --workers 8, or --cp 3 or 6");
  EXPECT_EQ(of_sequences(6, 2, "", 2),
            "--pp 2 times --cp 2 does not divide 6 workers; use a multiple, such as --workers 8");
  EXPECT_EQ(of_sequences(4, 1, "dp,pp", 2), "--rank_order 'dp,pp' is not dp,cp or cp,dp");
  EXPECT_EQ(of_sequences(8, 2, "dp,pp", 2), "--rank_order 'dp,pp' is not cp,dp,pp or another order of these");
}

TEST(Layout, NamesTheAxesOfSeveralRanks) {
  EXPECT_EQ(Layout().name(), "dp1");
  EXPECT_EQ((Layout{1, 4}).name(), "pp4");
  EXPECT_EQ((Layout{1, 1, 4}).name(), "tp4");
  EXPECT_EQ((Layout{2, 4, 8}).name(), "dp2xpp4xtp8");
  EXPECT_EQ((Layout{2, 1, 1, 4}).name(), "dp2xcp4");
}

TEST(MeshTest, ARejectionNamesLayoutsThatWork) {
  EXPECT_EQ(Refusal(6, 4),
            "--pp 4 does not divide 6 workers; use a multiple, such as --workers 8, or --pp 3 or 6");
  EXPECT_EQ(Refusal(12, 5),
            "--pp 5 does not divide 12 workers; use a multiple, such as --workers 15, or --pp 4 or 6");
  EXPECT_EQ(Refusal(2, 4),
            "--pp 4 does not divide 2 workers; use a multiple, such as --workers 4, or --pp 2");
  EXPECT_EQ(Refusal(1, 2), "--pp 2 does not divide 1 workers; use a multiple, such as --workers 2");
  EXPECT_EQ(Refusal(0, 2), "--pp 2 of 0 workers: use at least 1");
  EXPECT_EQ(Refusal(2, 0), "--pp 0 of 2 workers: use at least 1");
  EXPECT_EQ(Refusal(4, 2, "dp"), "--rank_order 'dp' is not dp,pp or pp,dp");
  EXPECT_EQ(Refusal(4, 2, "pp,tp"), "--rank_order 'pp,tp' is not dp,pp or pp,dp");
}

TEST(LayoutTest, IsWhatItsNameSays) {
  EXPECT_EQ(ParseLayout("dp4xpp2", 8).value(), (Layout{.dp = 4, .pp = 2}));
  EXPECT_EQ(ParseLayout("pp2xdp4", 8).value(), (Layout{.dp = 4, .pp = 2}));
  EXPECT_EQ(ParseLayout("dp1xpp2", 2)->name(), "pp2");
  EXPECT_EQ(ParseLayout("tp4xdp2", 8).value(), (Layout{.dp = 2, .tp = 4}));
  EXPECT_EQ(ParseLayout("tp2xpp4xdp3", 24).value(), (Layout{.dp = 3, .pp = 4, .tp = 2}));
  EXPECT_EQ(ParseLayout("cp2xdp3", 24).value(), (Layout{.dp = 3, .cp = 2}));
  EXPECT_EQ(ParseLayout("dp4xcp32", 64).status().message(), "dp4xcp32 has 128 workers; use 2 to 64");
  for (const char* name :
       {"dp4", "pp2", "tp8", "cp2", "dp4xpp2", "pp2xtp2", "dp4xpp2xtp8", "dp2xpp2xtp2xcp2"})
    EXPECT_EQ(ParseLayout(name, 64)->name(), name);
  EXPECT_EQ((Layout{.dp = 4, .pp = 2}.workers()), 8);
  for (const char* other : {"", "sp2", "tp", "tp2xtp2", "dp", "dp0", "2", "dp4xdp2", "dp4xpp2x", "dpxpp",
                            "dp4 xpp2", "dp+4", "DP2", "dp-2", "dp65536xpp65536"}) {
    EXPECT_THAT(ParseLayout(other, 64).status().message(), Has("is not a layout")) << other;
  }
  EXPECT_EQ(ParseLayout("dp64xpp64", 64).status().message(), "dp64xpp64 has 4096 workers; use 2 to 64");
  EXPECT_EQ(ParseLayout("dp4xpp4xtp8", 64).status().message(), "dp4xpp4xtp8 has 128 workers; use 2 to 64");
  EXPECT_EQ(ParseLayout("dp1", 64).status().message(), "dp1 has 1 workers; use 2 to 64");
}

}  // namespace
}  // namespace psring
