#include "trainer/pipeline/pipeline_links.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <latch>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "experiments/costs/sequence_costs.h"
#include "tests/has.h"
#include "tests/ring_worker/groups/group_checks.h"
#include "tests/ring_worker/mesh.h"

namespace psring {
namespace {

float ValueOf(const MeshPlace& place, int boundary) {
  return static_cast<float>(1000 * (place.replica + 1) + 100 * place.share + boundary);
}

// Sends a value of this replica, share and boundary in both directions through every boundary, and checks
// those that arrive.
absl::Status ExpectMessages(PipelineLinks& links) {
  const auto& boundaries = links.pipeline().boundaries;
  std::vector<std::vector<float>> forward, back;
  for (const Pipeline::Boundary& at : boundaries) {
    const float value = ValueOf(links.place(), at.boundary);
    EXPECT_NE(at.activations->sends(), at.gradients->sends());
    forward.emplace_back(3, at.activations->sends() ? value : 0);
    back.emplace_back(5, at.gradients->sends() ? -value : 0);
  }
  for (size_t i = 0; i < boundaries.size(); ++i) {
    PSRING_RETURN_IF_ERROR(boundaries[i].activations->Transfer({forward[i].data(), forward[i].size()}));
    PSRING_RETURN_IF_ERROR(boundaries[i].gradients->Transfer({back[i].data(), back[i].size()}));
  }
  for (size_t i = 0; i < boundaries.size(); ++i) {
    PSRING_RETURN_IF_ERROR(boundaries[i].activations->lane().Synchronize());
    PSRING_RETURN_IF_ERROR(boundaries[i].gradients->lane().Synchronize());
    const float value = ValueOf(links.place(), boundaries[i].boundary);
    EXPECT_EQ(forward[i], std::vector<float>(3, value));
    EXPECT_EQ(back[i], std::vector<float>(5, -value));
  }
  return absl::OkStatus();
}

// The ranks of `group` add up `own`.
absl::Status ExpectSum(ProcessGroup& group, Stream& stream, float own, float sum) {
  std::vector<float> values(7, own);
  PSRING_RETURN_IF_ERROR(AddUp(group, stream, values));
  EXPECT_EQ(values, std::vector<float>(7, sum));
  return absl::OkStatus();
}

// Of rank `world` in `mesh`. Returns its place.
MeshPlace ExpectPlace(PipelineLinks& links, const ProcessGroup& world, const Mesh& mesh, int pp) {
  const MeshPlace place = mesh.PlaceOf(world.rank());
  EXPECT_EQ(links.place(), place);
  EXPECT_EQ(links.pipeline().position, place.position);
  EXPECT_EQ(links.pipeline().size, pp);
  EXPECT_EQ(links.pipeline().ranks, world.size());
  return place;
}

// The number of ranks of a replica is not a multiple of those per machine.
TEST(PipelineLinks, OnlyGradientsAreAddedUpWithinMachinesFirst) {
  GroupOptions group;
  group.algorithm = "hierarchical:3";
  ExpectGroups(6, group, [](ProcessGroup& world, Stream& stream) -> absl::Status {
    PSRING_ASSIGN_OR_RETURN(const auto links, PipelineLinks::Connect({.pp = 2}, world, HostDevice()));
    EXPECT_EQ(links->same_stages()->info().algorithm, "hierarchical:3");
    EXPECT_EQ(links->pipeline().replica->info().algorithm, "ring");
    PSRING_RETURN_IF_ERROR(ExpectSum(*links->same_stages(), stream, 1, 3));
    PSRING_RETURN_IF_ERROR(ExpectSum(*links->pipeline().replica, stream, 1, 2));
    return ExpectMessages(*links);
  });
}

TEST(PipelineLinks, ConnectTheRanksOfEveryReplicaAndOfEveryStage) {
  for (const auto& [workers, pp, chunks] :
       {std::tuple(2, 2, 1), {3, 3, 1}, {4, 2, 1}, {6, 3, 1}, {2, 2, 2}, {4, 2, 3}}) {
    for (const std::string order : {"", "pp,dp"}) {
      SCOPED_TRACE(absl::StrCat(workers, " ranks, --pp ", pp, ", ", chunks, " ", order));
      TrainingOptions options{.pp = pp,
                              .program = absl::StrCat("interleaved:", chunks),
                              .rank_order = order,
                              .copy_streams = order.empty() ? 2 : 1};
      const int stages = pp * chunks, replicas = workers / pp;
      for (int cut = 1; cut < stages; ++cut) absl::StrAppend(&options.cuts, cut > 1 ? "," : "", cut);
      const Mesh mesh = Mesh::Create(workers, pp, order).value();
      ExpectGroups(workers, {}, [&](ProcessGroup& world, Stream& stream) -> absl::Status {
        PSRING_ASSIGN_OR_RETURN(const auto links, PipelineLinks::Connect(options, world, HostDevice()));
        const MeshPlace place = ExpectPlace(*links, world, mesh, pp);
        const Pipeline& pipeline = links->pipeline();
        EXPECT_EQ(pipeline.program, options.program);
        EXPECT_EQ(pipeline.cuts.size(), static_cast<size_t>(stages) - 1);
        EXPECT_EQ(pipeline.replica->rank(), place.position);
        const auto rank = static_cast<float>(world.rank());
        float of_replica = 0, of_stages = 0;
        for (int p = 0; p < pp; ++p) of_replica += static_cast<float>(mesh.RankAt({place.replica, p}));
        for (int r = 0; r < replicas; ++r) of_stages += static_cast<float>(mesh.RankAt({r, place.position}));
        PSRING_RETURN_IF_ERROR(ExpectSum(*pipeline.replica, stream, rank, of_replica));
        EXPECT_EQ(links->same_stages() == nullptr, replicas == 1);
        if (replicas > 1) {
          EXPECT_EQ(links->same_stages()->rank(), place.replica);
          PSRING_RETURN_IF_ERROR(ExpectSum(*links->same_stages(), stream, rank, of_stages));
        }
        const bool has_end = place.position == 0 || place.position == pp - 1;
        EXPECT_EQ(pipeline.tied != nullptr, has_end);
        if (has_end) {
          EXPECT_EQ(pipeline.tied->rank(), place.position == 0 ? 0 : 1);
          PSRING_RETURN_IF_ERROR(ExpectSum(*pipeline.tied, stream, 1, 2));
        }
        size_t ends = 0;
        for (int boundary = 0; boundary + 1 < stages; ++boundary) {
          ends += boundary % pp == place.position || (boundary + 1) % pp == place.position;
        }
        EXPECT_EQ(pipeline.boundaries.size(), ends);
        EXPECT_LE(2 * static_cast<int>(ends), MostChannels(options).value());
        std::set<const Stream*> lanes;
        for (const Pipeline::Boundary& at : pipeline.boundaries) {
          lanes.insert({&at.activations->lane(), &at.gradients->lane()});
        }
        EXPECT_EQ(lanes.size(), options.copy_streams == 1 ? 1 : 2 * ends);
        return ExpectMessages(*links);
      });
    }
  }
}

TEST(PipelineLinks, ConnectTheRanksThatDivideMatrices) {
  for (const auto& [workers, pp, order] :
       {std::tuple(4, 1, ""), {4, 1, "dp,tp"}, {4, 2, ""}, {8, 2, ""}, {8, 2, "pp,dp,tp"}}) {
    SCOPED_TRACE(absl::StrCat(workers, " ranks, --pp ", pp, ", --tp 2 ", order));
    TrainingOptions options{.pp = pp, .tp = 2, .rank_order = order};
    if (pp == 2) options.cuts = "1";
    const Mesh mesh = Mesh::Create(workers, pp, order, 2).value();
    ExpectGroups(workers, {}, [&](ProcessGroup& world, Stream& stream) -> absl::Status {
      PSRING_ASSIGN_OR_RETURN(const auto links, PipelineLinks::Connect(options, world, HostDevice()));
      const MeshPlace place = ExpectPlace(*links, world, mesh, pp);
      const Pipeline& pipeline = links->pipeline();
      EXPECT_EQ(pipeline.replica->rank(), 2 * place.position + place.share);
      EXPECT_EQ(pipeline.tensors->rank(), place.share);
      const auto rank = static_cast<float>(world.rank());
      float of_replica = 0, of_part = 0, of_stage = 0;
      for (int other = 0; other < workers; ++other) {
        const MeshPlace at = mesh.PlaceOf(other);
        const bool has_replica = at.replica == place.replica, has_position = at.position == place.position;
        of_replica += has_replica ? static_cast<float>(other) : 0;
        of_stage += has_replica && has_position ? static_cast<float>(other) : 0;
        of_part += has_position && at.share == place.share ? static_cast<float>(other) : 0;
      }
      PSRING_RETURN_IF_ERROR(ExpectSum(*pipeline.replica, stream, rank, of_replica));
      PSRING_RETURN_IF_ERROR(ExpectSum(*pipeline.tensors, stream, rank, of_stage));
      if (mesh.replicas() > 1) {
        PSRING_RETURN_IF_ERROR(ExpectSum(*links->same_stages(), stream, rank, of_part));
      }
      EXPECT_EQ(pipeline.boundaries.size(), static_cast<size_t>(pp) - 1);
      EXPECT_EQ(pipeline.tied == nullptr, pp == 1);
      return ExpectMessages(*links);
    });
  }
}

// With several shifts in flight, and ranks of a ring that are not neighbours in the job.
TEST(PipelineLinks, ConnectTheRanksThatDivideSequencesAsARing) {
  for (const auto& [workers, tp, cp, order] :
       {std::tuple(2, 1, 2, ""), {3, 1, 3, ""}, {8, 1, 4, "dp,cp"}, {12, 2, 3, ""}}) {
    SCOPED_TRACE(absl::StrCat(workers, " ranks, --tp ", tp, " --cp ", cp, " ", order));
    TrainingOptions options{.tp = tp, .cp = cp, .rank_order = order};
    const Mesh mesh = Mesh::Create(workers, 1, order, tp, cp).value();
    ExpectGroups(workers, {}, [&](ProcessGroup& world, Stream& stream) -> absl::Status {
      PSRING_ASSIGN_OR_RETURN(const auto links, PipelineLinks::Connect(options, world, HostDevice()));
      const MeshPlace place = mesh.PlaceOf(world.rank());
      EXPECT_EQ(links->place(), place);
      EXPECT_EQ(links->cuts_model(), tp > 1);
      EXPECT_EQ(links->rank(), place.replica * cp + place.segment);
      EXPECT_EQ(links->ranks(), mesh.replicas() * cp);
      float of_part = 0;
      for (int other = 0; other < workers; ++other) {
        of_part += mesh.PlaceOf(other).share == place.share ? static_cast<float>(other) : 0;
      }
      const auto rank = static_cast<float>(world.rank());
      PSRING_RETURN_IF_ERROR(ExpectSum(*links->same_stages(), stream, rank, of_part));
      SequenceAxis axis(*links->sequence());
      EXPECT_EQ(axis.rank(), place.segment);
      EXPECT_EQ(axis.ranks(), cp);
      PSRING_RETURN_IF_ERROR(axis.Reserve(3 * 100 * sizeof(float), HostDevice()));
      const auto piece = [&](size_t number) { return axis.Piece(number, 100, DType::kFloat32); };
      const Span out = piece(0), first = piece(1), second = piece(2);
      std::fill_n(out.floats(), out.count, rank);
      PSRING_ASSIGN_OR_RETURN(const SequenceAxis::Shift one, axis.BeginShift(out, first, stream));
      axis.Await(one.received, stream);
      PSRING_ASSIGN_OR_RETURN(const SequenceAxis::Shift two, axis.BeginShift(first, second, stream));
      axis.Await(two.received, stream);
      axis.Await(axis.all_sent(), stream);
      PSRING_RETURN_IF_ERROR(stream.Synchronize());
      const auto before = [&](int steps) {
        MeshPlace at = place;
        at.segment = (place.segment + 2 * cp - steps) % cp;
        return std::vector<float>(100, static_cast<float>(mesh.RankAt(at)));
      };
      EXPECT_EQ(std::vector<float>(first.floats(), first.floats() + 100), before(1));
      EXPECT_EQ(std::vector<float>(second.floats(), second.floats() + 100), before(2));
      const TensorAxis::Times times = axis.Take();
      EXPECT_EQ(times.busy.size(), 4);
      EXPECT_EQ(times.waits.size(), 3);
      for (const auto& [begin_ns, end_ns] : times.busy) EXPECT_LE(begin_ns, end_ns);
      EXPECT_TRUE(axis.Take().waits.empty());
      return absl::OkStatus();
    });
  }
}

TEST(PipelineLinks, WithoutARingRanksOfASequenceExchangeBlocks) {
  const TrainingOptions options{.cp = 3, .context_parallel = "ulysses"};
  EXPECT_EQ(MostChannels(options).value(), 0);
  ExpectGroups(3, {}, [&](ProcessGroup& world, Stream& stream) -> absl::Status {
    PSRING_ASSIGN_OR_RETURN(const auto links, PipelineLinks::Connect(options, world, HostDevice()));
    EXPECT_EQ(links->sequence()->next, nullptr);
    SequenceAxis axis(*links->sequence());
    std::vector<float> in(6), out(6), expected;
    for (size_t i = 0; i < 6; ++i) {
      in[i] = static_cast<float>(10 * world.rank()) + static_cast<float>(i);
      expected.push_back(static_cast<float>(10 * (i / 2) + 2 * world.rank() + i % 2));
    }
    PSRING_RETURN_IF_ERROR(axis.Exchange({in.data(), 6}, {out.data(), 6}, stream));
    PSRING_RETURN_IF_ERROR(stream.Synchronize());
    EXPECT_EQ(out, expected);
    const TensorAxis::Times times = axis.Take();
    EXPECT_EQ(times.waits.size(), 1);
    EXPECT_EQ(times.busy, times.waits);
    return absl::OkStatus();
  });
}

TEST(SequencePlace, RanksHaveAllPositionsAndEqualShares) {
  for (const ContextParallel kind : {ContextParallel::kRing, ContextParallel::kContiguous}) {
    const int context = 24;
    std::set<size_t> all;
    std::vector<size_t> pairs;  // of a query and a key that it sees
    for (int rank = 0; rank < 4; ++rank) {
      const SequencePlace place{.rank = rank, .ranks = 4, .kind = kind};
      size_t own = 0, last = 0;
      pairs.push_back(0);
      for (const ReadyRange& range : place.Positions(context)) {
        for (size_t at = range.first; at < range.first + range.count; ++at) {
          EXPECT_TRUE(all.insert(at).second && (own == 0 || at > last)) << "ascending";
          last = at;
          ++own;
          pairs.back() += at + 1;
        }
      }
      EXPECT_EQ(own, static_cast<size_t>(place.OwnPositions(context)));
    }
    EXPECT_EQ(all.size(), static_cast<size_t>(context));
    if (kind == ContextParallel::kRing) {
      EXPECT_EQ(pairs, std::vector<size_t>(4, 75));
    } else {
      EXPECT_EQ(pairs, (std::vector<size_t>{21, 57, 93, 129}));
    }
  }
}

// In lock step: each step takes as long as the rank with the most pairs of a query and an earlier key.
double ShareOfIdeal(ContextParallel kind, int ranks, int context) {
  double all = 0, taken = 0;
  for (int step = 0; step < ranks; ++step) {
    double most = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      const SequencePlace place{.ranks = ranks, .kind = kind};
      double pairs = 0;
      for (const ReadyRange& queries : place.PositionsOf(rank, context)) {
        for (const ReadyRange& keys : place.PositionsOf((rank - step + ranks) % ranks, context)) {
          for (size_t query = queries.first; query < queries.first + queries.count; ++query) {
            const size_t end = std::min(keys.first + keys.count, query + 1);
            pairs += end > keys.first ? static_cast<double>(end - keys.first) : 0;
          }
        }
      }
      all += pairs;
      most = std::max(most, pairs);
    }
    taken += most;
  }
  return all / ranks / taken;
}

TEST(SequencePlace, SharesOfIdealAreThoseOfTheTheory) {
  for (const int ranks : {2, 3, 4, 8}) {
    EXPECT_NEAR(ShareOfIdeal(ContextParallel::kContiguous, ranks, 960), ContiguousShare(ranks), .005);
    EXPECT_NEAR(ShareOfIdeal(ContextParallel::kRing, ranks, 960), 1, .01);
    const SequencePlace place{.ranks = ranks, .kind = ContextParallel::kContiguous};
    EXPECT_NEAR(ranks / ContiguousShare(ranks), place.AttentionOfOwn(), 1e-9);
  }
}

TEST(PipelineLinks, AbortEndsTheWaitOfALane) {
  const TrainingOptions options{.pp = 2};
  std::latch other_ends(1);
  const auto statuses = RunGroups(2, {}, [&](ProcessGroup& world, Stream&) -> absl::Status {
    const auto links = PipelineLinks::Connect(options, world, HostDevice());
    return UnlessSilent(world.rank() == 1, other_ends, [&]() -> absl::Status {
      PSRING_RETURN_IF_ERROR(links.status());
      Channel& receives = *(*links)->pipeline().boundaries.front().gradients;
      std::vector<float> values(10);
      PSRING_RETURN_IF_ERROR(receives.Transfer({values.data(), values.size()}));
      (*links)->Abort(absl::CancelledError("stopped by a signal"));
      return receives.lane().Synchronize();
    });
  });
  EXPECT_THAT(statuses[0].message(), Has("stopped by a signal"));
}

TEST(PipelineLinks, AMissingRankIsNamed) {
  const TrainingOptions options{.pp = 2};
  const auto statuses = RunGroups(
      2, {},
      [&](ProcessGroup& world, Stream&) -> absl::Status {
        if (world.rank() == 1) return absl::OkStatus();
        return PipelineLinks::Connect(options, world, HostDevice()).status();
      },
      /*first=*/0, absl::Seconds(1));
  EXPECT_THAT(statuses[0].message(), Has("rank 1"));
}

}  // namespace
}  // namespace psring
