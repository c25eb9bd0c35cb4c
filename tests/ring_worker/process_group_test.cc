// The product of transports, algorithms, ranks and sizes, with threads as ranks.
#include "ring_worker/process_group.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/ring_worker/mesh.h"

namespace psring {
namespace {

// Not whole numbers: their sums depend on the order in which they are added.
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

// {transport, algorithm}
class ProcessGroupTest : public testing::TestWithParam<std::tuple<std::string, std::string>> {
 protected:
  std::string transport() const { return std::get<0>(GetParam()); }
  GroupOptions options() const {
    GroupOptions options;
    options.algorithm = std::get<1>(GetParam());
    options.timeout = absl::Seconds(60);
    return options;
  }
};

TEST_P(ProcessGroupTest, AllReduceLeavesTheSumOnEveryRankWithEqualBits) {
  for (int ranks : {1, 2, 3, 4, 5, 6, 7, 8, 16}) {
    const std::vector<size_t> sizes = {0, 1, 3, 1000, ranks <= 4 ? (1u << 20) + 3 : (1u << 16) + 3};
    std::vector<std::vector<std::vector<float>>> results(sizes.size(),
                                                         std::vector<std::vector<float>>(ranks));
    RunRanks(transport(), ranks, options(), [&](ProcessGroup& group, Stream& stream) {
      for (size_t s = 0; s < sizes.size(); ++s) {
        const bool in_place = s % 2 == 0;
        std::vector<float> in = Values(group.rank(), sizes[s]);
        std::vector<float> out(sizes[s], -1);
        const Span to = in_place ? Span{in.data(), in.size()} : Span{out.data(), out.size()};
        PSRING_RETURN_IF_ERROR(group.AllReduce(ConstSpan(in.data(), in.size()), to, ReduceOp::kSum, stream));
        PSRING_RETURN_IF_ERROR(stream.Synchronize());
        EXPECT_TRUE(in_place || SameBits(in, Values(group.rank(), sizes[s]))) << "the input has changed";
        results[s][group.rank()] = in_place ? in : out;
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
    RunRanks(transport(), 4, options(), [&](ProcessGroup& group, Stream& stream) {
      // Another rank is late each time.
      if (group.rank() == run % 4) absl::SleepFor(absl::Milliseconds(20));
      std::vector<float> data = Values(group.rank(), count);
      const Span span = {data.data(), count};
      PSRING_RETURN_IF_ERROR(group.AllReduce(span, span, ReduceOp::kSum, stream));
      PSRING_RETURN_IF_ERROR(stream.Synchronize());
      if (group.rank() == 0) result = data;
      return absl::OkStatus();
    });
    if (run == 0) first = result;
    EXPECT_TRUE(SameBits(first, result)) << "run " << run;
  }
}

TEST_P(ProcessGroupTest, TheSegmentSizeDoesNotChangeTheBits) {
  const size_t count = 10007;
  std::vector<float> whole;
  for (size_t segment_bytes : {size_t{1} << 20, size_t{4096}, size_t{52}, size_t{3}}) {
    GroupOptions small = options();
    small.segment_bytes = segment_bytes;
    std::vector<float> result;
    RunRanks(transport(), 3, small, [&](ProcessGroup& group, Stream& stream) {
      std::vector<float> data = Values(group.rank(), count);
      const Span span = {data.data(), count};
      PSRING_RETURN_IF_ERROR(group.AllReduce(span, span, ReduceOp::kSum, stream));
      PSRING_RETURN_IF_ERROR(stream.Synchronize());
      if (group.rank() == 2) result = data;
      return absl::OkStatus();
    });
    if (whole.empty()) whole = result;
    EXPECT_TRUE(SameBits(whole, result)) << segment_bytes;
  }
}

TEST_P(ProcessGroupTest, ManyCallsInARowNeedNoSynchronisationBetweenThem) {
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

TEST_P(ProcessGroupTest, PayloadIsExactlyWhatTheScheduleSays) {
  for (int ranks : {1, 2, 3, 4, 7}) {
    for (size_t count : {size_t{0}, size_t{5}, size_t{840}, size_t{100003}}) {
      std::vector<Traffic> traffic(ranks);
      RunRanks(transport(), ranks, options(), [&](ProcessGroup& group, Stream& stream) {
        std::vector<float> data = Values(group.rank(), count);
        const Span span = {data.data(), count};
        PSRING_RETURN_IF_ERROR(group.AllReduce(span, span, ReduceOp::kSum, stream));
        PSRING_RETURN_IF_ERROR(stream.Synchronize());
        PSRING_RETURN_IF_ERROR(group.Barrier(stream));  // moves nothing; peers have read what we sent
        PSRING_RETURN_IF_ERROR(stream.Synchronize());
        traffic[group.rank()] = group.traffic();
        return absl::OkStatus();
      });
      SCOPED_TRACE(absl::StrCat(ranks, " ranks, ", count, " elements"));
      uint64_t sent = 0, received = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        sent += traffic[rank].payload_tx_bytes;
        received += traffic[rank].payload_rx_bytes;
        if (options().algorithm == "ring") {
          // 2(N-1)/N of the buffer, up to the rounding of chunks to whole elements: rank p leaves out chunk
          // p + 1 of the scatter-reduce and chunk p + 2 of the all-gather, and receives all but p and p + 1.
          const auto chunk = [&](int c) { return ChunkBounds(count, ranks, c % ranks).length; };
          const size_t tx = 2 * count - chunk(rank + 1) - chunk(rank + 2);
          const size_t rx = 2 * count - chunk(rank) - chunk(rank + 1);
          EXPECT_EQ(traffic[rank].payload_tx_bytes, 4 * tx);
          EXPECT_EQ(traffic[rank].payload_rx_bytes, 4 * rx);
          EXPECT_LE(std::abs(double(tx) - 2.0 * (ranks - 1) * count / ranks), count % ranks == 0 ? 0 : 2);
        } else {
          const uint64_t bytes = 4 * count * (rank == 0 ? ranks - 1 : 1) * (ranks > 1);
          EXPECT_EQ(traffic[rank].payload_tx_bytes, bytes);
          EXPECT_EQ(traffic[rank].payload_rx_bytes, bytes);
        }
      }
      EXPECT_EQ(sent, 8 * count * (ranks - 1));
      EXPECT_EQ(received, sent);
    }
  }
}

TEST_P(ProcessGroupTest, BroadcastGivesTheRootsValuesToAll) {
  for (int ranks : {1, 2, 3, 8}) {
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
}

TEST_P(ProcessGroupTest, NobodyLeavesABarrierBeforeAllHaveEntered) {
  std::atomic<int> entered = 0;
  RunRanks(transport(), 5, options(), [&](ProcessGroup& group, Stream& stream) {
    absl::SleepFor(absl::Milliseconds(10 * ((group.rank() * 3) % 5)));
    ++entered;
    PSRING_RETURN_IF_ERROR(group.Barrier(stream));
    PSRING_RETURN_IF_ERROR(stream.Synchronize());
    EXPECT_EQ(entered, 5);
    return absl::OkStatus();
  });
}

TEST_P(ProcessGroupTest, WrongArgumentsAreRefusedBeforeAnythingMoves) {
  RunRanks(transport(), 2, options(), [&](ProcessGroup& group, Stream& stream) {
    std::vector<float> data(8);
    EXPECT_EQ(group.AllReduce({data.data(), 8}, {data.data(), 7}, ReduceOp::kSum, stream).code(),
              absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(group.Broadcast({data.data(), 8}, 2, stream).code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(group.Broadcast({data.data(), 8}, -1, stream).code(), absl::StatusCode::kInvalidArgument);
    return absl::OkStatus();
  });
}

INSTANTIATE_TEST_SUITE_P(All, ProcessGroupTest,
                         testing::Combine(testing::Values("in_process", "tcp"),
                                          testing::Values("ring", "star")),
                         [](const auto& info) {
                           return absl::StrCat(std::get<0>(info.param), "_", std::get<1>(info.param));
                         });

TEST(MakeScheduledGroupTest, AnUnknownAlgorithmIsRefused) {
  GroupOptions options;
  options.algorithm = "mesh";
  EXPECT_EQ(MakeScheduledGroup(std::move(MakeInProcessTransports(1)[0]), options).status().code(),
            absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace psring
