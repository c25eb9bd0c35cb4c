// All combinations of transports, algorithms, ranks and sizes, with threads as ranks.
#include "ring_worker/groups/process_group.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <latch>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "ring_worker/groups/groups.h"
#include "ring_worker/schedules/default_algorithm.h"
#include "tests/ring_worker/groups/group_checks.h"
#include "tests/ring_worker/mesh.h"

namespace psring {
namespace {

// Fractions, whose sums depend on the order of addition.
float Value(int rank, size_t i) { return 1.0f / float(1 + rank + (i * 2654435761u) % 1000003u); }

std::vector<float> Values(int rank, size_t count) {
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = Value(rank, i);
  return values;
}

void ExpectIsSum(const std::vector<float>& got, int ranks) {
  for (size_t i = 0; i < got.size(); ++i) {
    double sum = 0;
    for (int rank = 0; rank < ranks; ++rank) sum += Value(rank, i);
    ASSERT_NEAR(got[i], sum, 1e-6 * sum * ranks) << "element " << i;
  }
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

std::vector<std::string> AllOf(Collective collective) { return NativeBackend().algorithms(collective); }

// {transport, algorithm}
class ProcessGroupTest : public testing::TestWithParam<std::tuple<std::string, std::string>> {
 protected:
  std::string transport() const { return std::get<0>(GetParam()); }
  GroupOptions options() const {
    GroupOptions options;
    options.algorithm = std::get<1>(GetParam());
    // An odd number of ranks leaves one without a partner, so the nodes would differ.
    if (transport() == "mixed" && options.algorithm == "hierarchical") options.algorithm += ":1";
    options.timeout = absl::Seconds(60);
    return options;
  }
};

TEST(GroupInfoTest, NamesTheWiresOfARanksPayload) {
  using Names = std::vector<std::string>;
  for (const auto& [transport, ranks, first, last] :
       {std::tuple("shm", 2, Names{"shared memory"}, Names{"shared memory"}),
        {"tcp", 2, {"TCP"}, {"TCP"}},
        {"mixed", 3, {"shared memory", "TCP"}, {"TCP"}}}) {  // the last of 3 ranks has no partner
    RunRanks(transport, ranks, {}, [&](ProcessGroup& group, Stream&) {
      EXPECT_EQ(group.info().wires, group.rank() + 1 == ranks ? last : first) << transport;
      return absl::OkStatus();
    });
  }
}

TEST_P(ProcessGroupTest, AllReduceGivesEveryRankTheSameBitsOfTheSum) {
  for (int ranks : {1, 2, 3, 5, 8}) {
    const std::vector<size_t> sizes = {1, 1000, 300007};
    std::vector<std::vector<std::vector<float>>> results(sizes.size(),
                                                         std::vector<std::vector<float>>(ranks));
    RunRanks(transport(), ranks, options(), [&](ProcessGroup& group, Stream& stream) {
      for (size_t s = 0; s < sizes.size(); ++s) {
        const std::vector<float> in = Values(group.rank(), sizes[s]);
        std::vector<float> out(sizes[s], -1);
        PSRING_RETURN_IF_ERROR(group.AllReduce(ConstSpan(in.data(), in.size()), Span{out.data(), out.size()},
                                               ReduceOp::kSum, stream));
        PSRING_RETURN_IF_ERROR(stream.Synchronize());
        EXPECT_TRUE(SameBits(in, Values(group.rank(), sizes[s]))) << "the input has changed";
        results[s][group.rank()] = out;
      }
      return absl::OkStatus();
    });
    for (size_t s = 0; s < sizes.size(); ++s) {
      SCOPED_TRACE(absl::StrCat(ranks, " ranks, ", sizes[s], " elements"));
      ExpectIsSum(results[s][0], ranks);
      for (int rank = 1; rank < ranks; ++rank) EXPECT_TRUE(SameBits(results[s][rank], results[s][0]));
    }
  }
}

TEST_P(ProcessGroupTest, TheSumHasTheSameBitsOnEveryRun) {
  const size_t count = 100003;
  std::vector<float> first;
  for (int run = 0; run < 5; ++run) {
    std::vector<float> result;
    std::latch others(3);
    RunRanks(transport(), 4, options(), [&](ProcessGroup& group, Stream& stream) {
      // Another rank is the last one in each run.
      if (group.rank() == run % 4) {
        others.wait();
      } else {
        others.count_down();
      }
      std::vector<float> data = Values(group.rank(), count);
      PSRING_RETURN_IF_ERROR(AddUp(group, stream, data));
      if (group.rank() == 0) result = data;
      return absl::OkStatus();
    });
    if (run == 0) first = result;
    EXPECT_TRUE(SameBits(first, result)) << "run " << run;
  }
}

TEST_P(ProcessGroupTest, TheSegmentSizeDoesNotChangeTheBits) {
  const size_t count = 20011;  // more than one segment
  std::vector<float> whole;
  for (size_t segment_bytes : {size_t{1} << 17, size_t{4096}, size_t{100}}) {
    GroupOptions small = options();
    small.segment_bytes = segment_bytes;
    std::vector<float> result;
    RunRanks(transport(), 3, small, [&](ProcessGroup& group, Stream& stream) {
      std::vector<float> data = Values(group.rank(), count);
      PSRING_RETURN_IF_ERROR(AddUp(group, stream, data));
      if (group.rank() == 2) result = data;
      return absl::OkStatus();
    });
    if (whole.empty()) whole = result;
    EXPECT_TRUE(SameBits(whole, result)) << segment_bytes;
  }
}

TEST_P(ProcessGroupTest, CallsInARowNeedNoSynchronisation) {
  RunRanks(transport(), 3, options(), [&](ProcessGroup& group, Stream& stream) {
    std::vector<std::vector<float>> buffers;
    for (int call = 0; call < 50; ++call) buffers.push_back(Values(group.rank(), 17 * call));
    for (auto& buffer : buffers) {
      const Span span = {buffer.data(), buffer.size()};
      PSRING_RETURN_IF_ERROR(group.AllReduce(span, span, ReduceOp::kSum, stream));
    }
    PSRING_RETURN_IF_ERROR(stream.Synchronize());
    for (const auto& buffer : buffers) ExpectIsSum(buffer, 3);
    return absl::OkStatus();
  });
}

TEST_P(ProcessGroupTest, PayloadIsThatOfTheSchedule) {
  for (int ranks : {1, 2, 3, 4, 7}) {
    for (size_t count : {size_t{0}, size_t{5}, size_t{840}, size_t{100003}}) {
      std::vector<Traffic> traffic(ranks);
      RunRanks(transport(), ranks, options(), [&](ProcessGroup& group, Stream& stream) {
        std::vector<float> data = Values(group.rank(), count);
        PSRING_RETURN_IF_ERROR(AddUp(group, stream, data));
        PSRING_RETURN_IF_ERROR(AwaitPeers({group, stream}));  // moves no payload
        traffic[group.rank()] = group.traffic();
        return absl::OkStatus();
      });
      SCOPED_TRACE(absl::StrCat(ranks, " ranks, ", count, " elements"));
      uint64_t sent = 0, received = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        sent += traffic[rank].payload_tx_bytes;
        received += traffic[rank].payload_rx_bytes;
        if (options().algorithm == "ring") {
          // 2(N-1)/N of the buffer, up to the rounding of chunks to elements: rank p does not send chunk p +
          // 1 in the scatter-reduce and chunk p + 2 in the all-gather, and receives all chunks except p and p
          // + 1.
          const auto chunk = [&](int c) { return ChunkBounds(count, ranks, c % ranks).length; };
          const size_t tx = 2 * count - chunk(rank + 1) - chunk(rank + 2);
          const size_t rx = 2 * count - chunk(rank) - chunk(rank + 1);
          EXPECT_EQ(traffic[rank].payload_tx_bytes, 4 * tx);
          EXPECT_EQ(traffic[rank].payload_rx_bytes, 4 * rx);
          EXPECT_LE(std::abs(double(tx) - 2.0 * (ranks - 1) * count / ranks), count % ranks == 0 ? 0 : 2);
        } else if (options().algorithm == "star") {
          const uint64_t bytes = 4 * count * (rank == 0 ? ranks - 1 : 1) * (ranks > 1);
          EXPECT_EQ(traffic[rank].payload_tx_bytes, bytes);
          EXPECT_EQ(traffic[rank].payload_rx_bytes, bytes);
        }
      }
      if (options().algorithm == "ring" || options().algorithm == "star" || options().algorithm == "direct") {
        EXPECT_EQ(sent, 8 * count * (ranks - 1));
      }
      EXPECT_EQ(received, sent);
    }
  }
}

TEST_P(ProcessGroupTest, BroadcastCopiesTheRootsValues) {
  for (int ranks : {1, 2, 3, 8})
    RunRanks(transport(), ranks, options(), [&](ProcessGroup& group, Stream& stream) {
      for (size_t count : {size_t{0}, size_t{1}, size_t{300001}}) {
        for (int root : {0, ranks - 1}) {
          std::vector<float> data = Values(group.rank(), count);
          PSRING_RETURN_IF_ERROR(group.Broadcast({data.data(), count}, root, stream));
          PSRING_RETURN_IF_ERROR(stream.Synchronize());
          EXPECT_TRUE(SameBits(data, Values(root, count)));
        }
      }
      return absl::OkStatus();
    });
}

TEST_P(ProcessGroupTest, NoRankLeavesABarrierBeforeAllHaveEntered) {
  constexpr int kRanks = 5;
  std::atomic<int> entered = 0;
  RunRanks(transport(), kRanks, options(), [&](ProcessGroup& group, Stream& stream) {
    for (int round = 0; round < 20; ++round) {
      // Each rank enters after its left neighbor, and another rank is the first in each round.
      const int turn = round * kRanks + (group.rank() + round) % kRanks;
      for (int before = entered; before < turn; before = entered) entered.wait(before);
      ++entered;
      entered.notify_all();
      PSRING_RETURN_IF_ERROR(group.Barrier(stream));
      PSRING_RETURN_IF_ERROR(stream.Synchronize());
      EXPECT_GE(entered, (round + 1) * kRanks);
    }
    return absl::OkStatus();
  });
}

TEST_P(ProcessGroupTest, InvalidArgumentsAreRejected) {
  RunRanks(transport(), 2, options(), [&](ProcessGroup& group, Stream& stream) {
    std::vector<float> data(8);
    EXPECT_EQ(group.AllReduce({data.data(), 8}, {data.data(), 7}, ReduceOp::kSum, stream).code(),
              absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(group.Broadcast({data.data(), 8}, 2, stream).code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(group.Broadcast({data.data(), 8}, -1, stream).code(), absl::StatusCode::kInvalidArgument);
    const auto exchange = [&](size_t in_count, size_t out, size_t out_count) {
      return group.AllToAll({data.data(), in_count}, {data.data() + out, out_count}, stream).code();
    };
    EXPECT_EQ(exchange(4, 4, 2), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(exchange(3, 4, 3), absl::StatusCode::kInvalidArgument) << "blocks of unequal size";
    EXPECT_EQ(exchange(4, 0, 4), absl::StatusCode::kInvalidArgument) << "in place";
    EXPECT_EQ(exchange(4, 3, 4), absl::StatusCode::kInvalidArgument) << "overlapping";
    return absl::OkStatus();
  });
}

// The schedules themselves are proved for every number of ranks in schedule_test.
TEST_P(ProcessGroupTest, EveryCollectiveIsExactForManyRankCountsSizesTypesAndOps) {
  // What depends on the number of ranks is the same over every transport.
  const std::map<std::string, std::vector<int>> numbers = {
      {"shm", {1, 2, 3, 4, 5, 8}}, {"tcp", {3, 7, 16}}, {"tls", {3}}, {"mixed", {2, 5, 8}}};
  for (int ranks : numbers.at(transport())) {
    SCOPED_TRACE(absl::StrCat(ranks, " ranks"));
    RunRanks(transport(), ranks, options(), [&](ProcessGroup& group, Stream& stream) {
      int turn = ranks;  // the same on all ranks
      for (size_t count : {size_t{0}, size_t{1}, size_t{3}, size_t{1000}}) {
        for (DType type : kDTypes) {
          const bool shared = turn % 3 == 0;
          PSRING_RETURN_IF_ERROR(
              CheckCollectives({group, stream}, count, type, kReduceOps[turn % 4], shared));
          ++turn;
        }
      }
      if (ranks != 3 && ranks != 4) return absl::OkStatus();
      return CheckCollectives({group, stream}, ((1 << 20) + 3) / ranks, kDTypes[ranks % 3],
                              kReduceOps[ranks % 4], /*shared=*/ranks % 2 == 0);
    });
  }
}

// The rounds in which this rank moves data, and the ranks from which it receives in them.
std::map<int, std::set<int>> RoundsOf(const Schedule& schedule, int rank) {
  std::map<int, std::set<int>> rounds;
  std::vector<Transfer> transfers;
  for (int round = 0; round < schedule.rounds(rank); ++round) {
    schedule.Round(rank, round, transfers);
    for (const Transfer& transfer : transfers) {
      std::set<int>& senders = rounds[round];
      if (transfer.kind != TransferKind::kSend) senders.insert(transfer.peer);
    }
  }
  return rounds;
}

TEST_P(ProcessGroupTest, RecordsTheTimesOfEachRound) {
  GroupOptions asked = options();
  asked.segment_bytes = 2048;
  const bool by_host = asked.algorithm == "hierarchical";  // its rounds depend on the hosts
  for (int ranks : {2, 3}) {
    for (size_t size : {size_t{1}, size_t{20'003}}) {  // in one segment, and in many
      SCOPED_TRACE(absl::StrCat(ranks, " ranks, ", size, " elements"));
      std::vector<std::vector<RoundTime>> noted(ranks);
      RunRanks(transport(), ranks, asked, [&](ProcessGroup& group, Stream& stream) {
        std::vector<float> data = Values(group.rank(), size);
        std::vector<RoundTime>* const rounds = &noted[group.rank()];
        for (auto* into : std::vector<std::vector<RoundTime>*>{nullptr, rounds, rounds, nullptr}) {
          dynamic_cast<RoundRecording&>(group).NoteRounds(into);
          PSRING_RETURN_IF_ERROR(AddUp(group, stream, data));
        }
        return absl::OkStatus();
      });
      const std::string algorithm =
          asked.algorithm == kDefaultAlgorithm
              ? DefaultAlgorithm(Collective::kAllReduce, 4 * size, ranks, transport() == "shm")
              : asked.algorithm;
      const auto schedule = MakeSchedule(algorithm, Collective::kAllReduce, {.ranks = ranks});
      ASSERT_TRUE(schedule.ok());
      for (int rank = 0; rank < ranks; ++rank) {
        const std::vector<RoundTime>& rounds = noted[rank];
        ASSERT_EQ(rounds.size() % 2, 0u);
        const size_t each = rounds.size() / 2;  // two calls
        ASSERT_GT(each, 0u);
        for (size_t i = 0; i < rounds.size(); ++i) {
          EXPECT_LE(rounds[i].begin_ns, rounds[i].end_ns);
          EXPECT_EQ(rounds[i].round, rounds[i % each].round);
          if (i % each == 0) continue;
          EXPECT_GT(rounds[i].round, rounds[i - 1].round);
          EXPECT_GE(rounds[i].begin_ns, rounds[i - 1].begin_ns);
          EXPECT_GE(rounds[i].end_ns, rounds[i - 1].end_ns);
        }
        EXPECT_GE(rounds[each].begin_ns, rounds[each - 1].end_ns);
        if (by_host) continue;
        // The rounds of the schedule. No round ends before its senders have begun it.
        const std::map<int, std::set<int>> expected = RoundsOf(**schedule, rank);
        ASSERT_EQ(each, expected.size());
        size_t i = 0;
        for (const auto& [round, senders] : expected) {
          EXPECT_EQ(rounds[i].round, round);
          for (const int sender : senders) {
            const auto there = std::find_if(noted[sender].begin(), noted[sender].end(),
                                            [&](const RoundTime& r) { return r.round == round; });
            ASSERT_NE(there, noted[sender].end());
            EXPECT_GE(rounds[i].end_ns, there->begin_ns);
          }
          ++i;
        }
      }
    }
  }
}

std::string NameOf(const testing::TestParamInfo<ProcessGroupTest::ParamType>& info) {
  std::string name = absl::StrCat(std::get<0>(info.param), "_", std::get<1>(info.param));
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(All, ProcessGroupTest,
                         testing::Combine(testing::Values("tcp", "shm", "mixed"),
                                          testing::ValuesIn(AllOf(Collective::kAllReduce))),
                         NameOf);
INSTANTIATE_TEST_SUITE_P(Encrypted, ProcessGroupTest,
                         testing::Combine(testing::Values("tls"), testing::Values("ring", "star")), NameOf);

// {transport, algorithm}
class AllToAllTest : public testing::TestWithParam<std::tuple<std::string, std::string>> {
 protected:
  static GroupOptions Options() {
    return {.collective = Collective::kAllToAll, .algorithm = std::get<1>(GetParam())};
  }
  static void OnRanksOf(int ranks, const GroupOptions& options, const RankBody& body) {
    RunRanks(std::get<0>(GetParam()), ranks, options, body);
  }
};

TEST_P(AllToAllTest, EveryBlockArrivesAtItsPlaceForManyRankCountsAndSizes) {
  for (const int ranks : {1, 2, 3, 4, 7}) {
    SCOPED_TRACE(absl::StrCat(ranks, " ranks"));
    GroupOptions options = Options();
    options.segment_bytes = ranks % 2 == 0 ? 4096 : 0;
    OnRanksOf(ranks, options, [&](ProcessGroup& group, Stream& stream) {
      EXPECT_EQ(group.info().algorithm, options.algorithm);
      for (const size_t count : {0, 1, 5, 1000, 40'003}) {
        for (const bool shared : {false, true}) {
          PSRING_RETURN_IF_ERROR(CheckAllToAll({group, stream}, count, kDTypes[count % 3], shared));
        }
      }
      // The other collectives use schedules that offer them.
      return CheckCollectives({group, stream}, 1000, DType::kFloat32, ReduceOp::kSum);
    });
  }
}

// More than 8 MiB per rank: copies bypass the caches.
TEST_P(AllToAllTest, LargeBlocksArrive) {
  OnRanksOf(2, Options(), [&](ProcessGroup& group, Stream& stream) {
    for (const bool shared : {false, true}) {
      if (shared && std::get<0>(GetParam()) != "shm") continue;
      PSRING_RETURN_IF_ERROR(CheckAllToAll({group, stream}, 1'100'003, DType::kFloat32, shared));
    }
    return CheckAllToAll({group, stream}, 1001, DType::kFloat32);
  });
}

// A call ends when peers have read its input, also if they read it in place.
TEST_P(AllToAllTest, TheInputMayChangeAfterACall) {
  for (const bool shared : {false, true}) {
    OnRanksOf(3, Options(), [&](ProcessGroup& group, Stream& stream) {
      constexpr size_t kBlock = 100'000, kAll = 3 * kBlock;
      const GroupRank rank{group, stream};
      TestMemory in(rank, DType::kFloat32, kAll, shared), out(rank, DType::kFloat32, kAll, shared);
      const auto fill = [&](int call) {
        return in.Fill(0, kAll, [&](size_t i) { return TestValue(group.rank() + call, i); });
      };
      PSRING_RETURN_IF_ERROR(fill(0));
      for (int call = 0; call < 10; ++call) {
        PSRING_RETURN_IF_ERROR(group.AllToAll(in.span(), out.span(), stream));
        PSRING_RETURN_IF_ERROR(stream.Synchronize());
        PSRING_RETURN_IF_ERROR(fill(call + 1));
        const auto sent = [&](size_t i) {
          return TestValue(static_cast<int>(i / kBlock) + call, group.rank() * kBlock + i % kBlock);
        };
        PSRING_RETURN_IF_ERROR(out.Expect(0, kAll, 0, sent, absl::StrCat("all_to_all ", call)));
      }
      return AwaitPeers(rank);
    });
  }
}

TEST_P(AllToAllTest, ARankSendsAllButItsOwnBlock) {
  for (const int ranks : {1, 2, 5}) {
    OnRanksOf(ranks, Options(), [&](ProcessGroup& group, Stream& stream) {
      const size_t count = static_cast<size_t>(ranks) * 30'001;
      const std::vector<float> in = Values(group.rank(), count);
      std::vector<float> out(count);
      PSRING_RETURN_IF_ERROR(group.AllToAll({in.data(), count}, {out.data(), count}, stream));
      PSRING_RETURN_IF_ERROR(AwaitPeers({group, stream}));
      const uint64_t bytes = 4 * 30'001 * static_cast<uint64_t>(ranks - 1);
      EXPECT_EQ(group.traffic().payload_tx_bytes, bytes);
      EXPECT_EQ(group.traffic().payload_rx_bytes, bytes);
      return absl::OkStatus();
    });
  }
}

TEST_P(AllToAllTest, ASilentRankIsNamed) {
  std::latch others_end(2);
  const auto statuses = RunRanksToStatus(
      std::get<0>(GetParam()), 3,
      [](int) {
        GroupOptions options = Options();
        options.timeout = absl::Milliseconds(200);
        return options;
      },
      [&](ProcessGroup& group, Stream& stream) {
        return UnlessSilent(group.rank() == 1, others_end, [&]() -> absl::Status {
          const std::vector<float> in(300'000);
          std::vector<float> out(in.size());
          PSRING_RETURN_IF_ERROR(group.AllToAll({in.data(), in.size()}, {out.data(), out.size()}, stream));
          return stream.Synchronize();
        });
      });
  for (const int rank : {0, 2})
    EXPECT_NE(Text(statuses[rank]).find("rank 1"), std::string::npos) << statuses[rank];
}

TEST_P(AllToAllTest, BlocksOfDifferentLengthsAreRejected) {
  const auto statuses = RunRanksToStatus(
      std::get<0>(GetParam()), 2, [](int) { return Options(); },
      [](ProcessGroup& group, Stream& stream) -> absl::Status {
        const std::vector<float> in(group.rank() == 0 ? 100'000 : 60'000);
        std::vector<float> out(in.size());
        PSRING_RETURN_IF_ERROR(group.AllToAll({in.data(), in.size()}, {out.data(), out.size()}, stream));
        return stream.Synchronize();
      });
  for (const absl::Status& status : statuses) {
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    for (const char* part : {"all_to_all (sum) of 100000", "all_to_all (sum) of 60000"})
      EXPECT_NE(Text(status).find(part), std::string::npos) << status;
  }
}

INSTANTIATE_TEST_SUITE_P(All, AllToAllTest,
                         testing::Combine(testing::Values("tcp", "tls", "shm", "mixed"),
                                          testing::ValuesIn(AllOf(Collective::kAllToAll))),
                         NameOf);

// A peer that does not receive has space for twice as many.
TEST(AllToAllGroup, SixSegmentsAreInFlight) {
  constexpr size_t kSegment = 64 << 10, kSegments = 20;
  for (const bool shared : {false, true}) {
    std::latch others_end(1);
    uint64_t sent = 0;
    const auto statuses = RunRanksToStatus(
        "shm", 2,
        [&](int) {
          return GroupOptions{.collective = Collective::kAllToAll,
                              .algorithm = "direct",
                              .timeout = absl::Milliseconds(200),
                              .segment_bytes = kSegment};
        },
        [&](ProcessGroup& group, Stream& stream) {
          return UnlessSilent(group.rank() == 1, others_end, [&]() -> absl::Status {
            const GroupRank rank{group, stream};
            constexpr size_t kCount = 2 * kSegments * kSegment / sizeof(float);
            TestMemory in(rank, DType::kFloat32, kCount, shared), out(rank, DType::kFloat32, kCount, false);
            PSRING_RETURN_IF_ERROR(group.AllToAll(in.span(), out.span(), stream));
            absl::Status status = stream.Synchronize();
            sent = group.traffic().payload_tx_bytes;
            return status;
          });
        });
    EXPECT_EQ(statuses[0].code(), absl::StatusCode::kDeadlineExceeded) << statuses[0];
    EXPECT_EQ(sent, 6 * kSegment) << shared;
  }
}

TEST(AllToAllGroup, AnAlgorithmIsForTheCollectiveThatIsNamed) {
  GroupOptions options{.algorithm = "pairwise"};
  EXPECT_EQ(CheckGroupOptions(options, Collective::kAllToAll), absl::OkStatus());
  EXPECT_EQ(RunGroups(1, options, [](ProcessGroup&, Stream&) { return absl::OkStatus(); })[0].code(),
            absl::StatusCode::kInvalidArgument);
  options.collective = Collective::kAllToAll;
  for (const absl::Status& status : RunGroups(2, options, [](ProcessGroup&group, Stream&stream) {
         return CheckCollectives({group, stream}, 1000, DType::kFloat32, ReduceOp::kSum);
       })) {
    EXPECT_EQ(status, absl::OkStatus());
  }
}

class HierarchicalGroupTest : public testing::TestWithParam<int> {
 protected:
  // Hosts of GetParam() ranks, with TCP between them.
  static GroupOptions OptionsOnHosts(const std::string& algorithm) {
    GroupOptions options;
    options.algorithm = algorithm;
    options.ranks_per_node = GetParam();
    return options;
  }
  static void OnRanksOf(int hosts, const std::string& algorithm, const RankBody& body) {
    for (const absl::Status& status : RunGroups(hosts * GetParam(), OptionsOnHosts(algorithm), body))
      EXPECT_EQ(status, absl::OkStatus());
  }
};

TEST_P(HierarchicalGroupTest, AddsExactlyAndNamesTheRanksPerHost) {
  for (int hosts : {1, 2, 3}) {
    SCOPED_TRACE(absl::StrCat(hosts, " hosts"));
    OnRanksOf(hosts, "hierarchical", [&](ProcessGroup& group, Stream& stream) {
      EXPECT_EQ(group.info().algorithm, absl::StrCat("hierarchical:", GetParam()));
      EXPECT_EQ(group.info().transport, GetParam() == 1 ? "tcp" : hosts > 1 ? "shm+tcp" : "shm");
      for (DType type : kDTypes) {
        PSRING_RETURN_IF_ERROR(CheckCollectives({group, stream}, 40'003, type, ReduceOp::kSum, true));
      }
      return absl::OkStatus();
    });
  }
}

TEST_P(HierarchicalGroupTest, ARankSendsItsShareToOtherHosts) {
  constexpr int kHosts = 3;
  const size_t count = size_t(kHosts * GetParam()) * 1000;
  OnRanksOf(kHosts, "hierarchical", [&](ProcessGroup& group, Stream& stream) {
    std::vector<float> data = Values(group.rank(), count);
    PSRING_RETURN_IF_ERROR(AddUp(group, stream, data));
    PSRING_RETURN_IF_ERROR(AwaitPeers({group, stream}));
    const size_t within = 2 * count * (GetParam() - 1) / GetParam();
    const size_t between = 2 * count / GetParam() * (kHosts - 1) / kHosts;
    EXPECT_EQ(group.traffic().payload_tx_bytes, 4 * (within + between));
    EXPECT_EQ(group.traffic().payload_rx_bytes, 4 * (within + between));
    return absl::OkStatus();
  });
}

TEST_P(HierarchicalGroupTest, AGivenNumberGroupsRanksOnAnyHosts) {
  OnRanksOf(2, "hierarchical:2", [&](ProcessGroup& group, Stream& stream) {
    EXPECT_EQ(group.info().algorithm, "hierarchical:2");
    std::vector<float> data = Values(group.rank(), 10'007);
    PSRING_RETURN_IF_ERROR(AddUp(group, stream, data));
    ExpectIsSum(data, 2 * GetParam());
    return absl::OkStatus();
  });
}

INSTANTIATE_TEST_SUITE_P(RanksPerHost, HierarchicalGroupTest, testing::Values(1, 2, 3));

// Two ranks share memory, and the third does not.
TEST(HierarchicalGroup, UnevenHostsAreRejectedUnlessANumberIsGiven) {
  const auto status_of = [](const std::string& algorithm, bool is_part = false) {
    GroupOptions options;
    options.algorithm = algorithm;
    options.is_part = is_part;
    auto transports = MakeTransports("mixed", 3);
    std::vector<absl::Status> statuses(3);
    OnRanks(3, [&](int rank) {
      statuses[rank] = MakeScheduledGroup(std::move(transports[rank]), options).status();
    });
    EXPECT_EQ(statuses[1], statuses[0]);
    EXPECT_EQ(statuses[2], statuses[0]);
    return statuses[0];
  };
  EXPECT_EQ(status_of("hierarchical"),
            absl::InvalidArgumentError("hierarchical needs as many ranks on every machine, with consecutive "
                                       "numbers; give the ranks per machine, as in hierarchical:2, or use "
                                       "ring"));
  EXPECT_EQ(status_of("hierarchical:3"), absl::OkStatus());
  EXPECT_FALSE(status_of("hierarchical:2").ok());
  for (const char* algorithm : {"hierarchical", "hierarchical:2"})
    EXPECT_EQ(status_of(algorithm, /*is_part=*/true), absl::OkStatus());
}

TEST(MakeScheduledGroupTest, AnUnknownAlgorithmIsRejected) {
  GroupOptions options;
  options.algorithm = "mesh";
  EXPECT_EQ(MakeScheduledGroup(std::move(MakeTransports("shm", 1)[0]), options).status().code(),
            absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace psring
