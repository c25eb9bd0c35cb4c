// The benchmark in GPU memory, with threads as ranks on the fake CUDA runtime, whose device memory the host
// cannot access: values are copied to the GPU and back, and one wrong element ends the benchmark.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "ring_worker/bench/bench_run.h"
#include "tests/common/cuda/fake_cuda.h"
#include "tests/ring_worker/fake_rendezvous.h"

namespace psring {
namespace {

using testing::HasSubstr;

struct Outcome {
  std::vector<absl::Status> statuses;
  std::vector<RankInfo> ranks;
  std::vector<MeasuredCombination> groups;
  std::vector<BenchRow> rows;
};

class ToOutcome final : public BenchOutput {
 public:
  explicit ToOutcome(Outcome& outcome) : outcome_(outcome) {}
  void Start(const std::vector<RankInfo>& ranks, const std::vector<MeasuredCombination>& groups) override {
    outcome_.ranks = ranks;
    outcome_.groups = groups;
  }
  void Row(const BenchRow& row) override { outcome_.rows.push_back(row); }
  void Limit(const LimitRow&) override {}
  void Progress(size_t, size_t) override {}
  void Finish() override {}

 private:
  Outcome& outcome_;
};

Outcome Bench(BenchOptions options, int ranks) {
  options.device = "cuda";
  options.turns = 2;
  options.pin = false;
  options.group.timeout = absl::Seconds(30);
  Outcome outcome;
  outcome.statuses.resize(static_cast<size_t>(ranks));
  ToOutcome output(outcome);
  OnRanks(ranks, [&](FakeRendezvous& rendezvous, int rank) {
    outcome.statuses[static_cast<size_t>(rank)] = RunBench(options, rendezvous, output);
  });
  return outcome;
}

BenchOptions Of(const std::vector<std::string>& combinations) {
  BenchOptions options;
  for (const std::string& text : combinations) options.combinations.push_back(*ParseCombination(text));
  options.bytes = {4096, 300000};
  return options;
}

TEST(BenchOnGpu, ChecksAndTimesEveryCollectiveInGpuMemory) {
  BenchOptions options =
      Of({"all_reduce/native/ring/cuda_ipc/shared", "all_reduce/native/direct/auto/private",
          "reduce_scatter/native//auto/shared", "all_gather/native//auto/private",
          "broadcast/native//auto/shared", "all_to_all/native//auto/private"});
  options.oversubscribe = true;
  const Outcome outcome = Bench(options, 2);
  for (const absl::Status& status : outcome.statuses) EXPECT_EQ(status, absl::OkStatus());
  ASSERT_EQ(outcome.ranks.size(), 2);
  EXPECT_EQ(outcome.ranks[1].device, "cuda:0");
  ASSERT_EQ(outcome.groups.size(), 6);
  EXPECT_EQ(outcome.groups[5].algorithm, "default");
  for (const MeasuredCombination& group : outcome.groups)
    EXPECT_EQ(group.transport, "cuda_peer on shared GPUs");
  ASSERT_EQ(outcome.rows.size(), 12);
  for (const BenchRow& row : outcome.rows) {
    for (const Samples* samples : {&row.out_of_place, &row.in_place}) {
      if (row.combination == 5 && samples == &row.in_place) {
        EXPECT_TRUE(samples->times_us.empty()) << "an all-to-all is not in place";
        continue;
      }
      EXPECT_EQ(samples->wrong, 0);
      EXPECT_EQ(samples->times_us.size(), 2);
    }
  }
}

TEST(BenchOnGpu, SharingAGpuNeedsOversubscribe) {
  for (const absl::Status& status : Bench(Of({"all_reduce/native/ring/cuda_ipc/shared"}), 2).statuses) {
    EXPECT_THAT(status.message(), HasSubstr("rank 1 would share its GPU")) << status;
    EXPECT_THAT(status.message(), HasSubstr("--oversubscribe"));
  }
}

TEST(BenchOnGpu, RejectsCombinationsThatUseHostMemory) {
  BenchOptions options = Of({"all_reduce/native/ring/shm/private"});
  EXPECT_THAT(Bench(options, 1).statuses[0].message(), HasSubstr("works in the host's memory"));
  EXPECT_THAT(Bench(Of({"all_reduce/native/ring/auto/huge"}), 1).statuses[0].message(),
              HasSubstr("huge pages"));
  options.limits = true;
  EXPECT_THAT(Bench(options, 1).statuses[0].message(), HasSubstr("--limits"));
}

TEST(BenchOnGpu, ReportsAMissingGpu) {
  TheFakeCuda().driver_version = 0;
  EXPECT_THAT(Bench(Of({"all_reduce/native/ring/auto/shared"}), 1).statuses[0].message(),
              HasSubstr("no NVIDIA driver"));
  TheFakeCuda().driver_version = 13000;
}

}  // namespace
}  // namespace psring
