// A schedule that only this test knows: one maker, one cost and one row make it available everywhere.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "common/text/translate.h"
#include "experiments/page/playback.h"
#include "experiments/page/schedule_data.h"
#include "experiments/simulator/collective.h"
#include "experiments/verbs/explain/explain.h"
#include "ring_worker/schedules/schedule_check.h"
#include "tests/ring_worker/mesh.h"
#include "trainer/strategies/table/cost_model.h"

namespace psring {
namespace {

constexpr int kRanksInLine = 4;

// Sums travel from rank 0 to the last rank and back: N-1 rounds each way, all of the buffer in each.
class Line final : public Schedule {
 public:
  explicit Line(int ranks) : ranks_(ranks) {}
  std::string name() const override { return "line"; }
  int ranks() const override { return ranks_; }
  int chunks() const override { return 1; }
  int rounds(int) const override { return 2 * (ranks_ - 1); }
  void Round(int rank, int round, std::vector<Transfer>& transfers) const override {
    const bool forth = round < ranks_ - 1;
    const int from = forth ? round : 2 * (ranks_ - 1) - round, to = forth ? from + 1 : from - 1;
    transfers.clear();
    if (rank == from) transfers.push_back({TransferKind::kSend, to, 0, 1});
    if (rank == to)
      transfers.push_back({forth ? TransferKind::kReceiveAdd : TransferKind::kReceive, from, 0, 1});
  }

 private:
  const int ranks_;
};

std::unique_ptr<Schedule> MakeLine(Collective collective, const ScheduleShape& shape) {
  return collective == Collective::kAllReduce ? std::make_unique<Line>(shape.ranks) : nullptr;
}

ScheduleCost LineCost(int ranks, double bytes) {
  const double hops = 2.0 * (ranks - 1);
  return {.terms = {hops, hops * bytes, hops * bytes, (ranks - 1) * bytes},
          .payload_bytes = LeastPayload(ranks, bytes),
          .latency = "2(N-1) a",
          .bytes = "2(N-1) M/B",
          .adding = "(N-1) M g"};
}

const ScheduleTable& RowsWithLine() {
  static const auto& rows = *[] {
    auto* all = new ScheduleTable(ScheduleRows());
    all->push_back({"line", "forth and back along a line", MakeLine, LineCost});
    return all;
  }();
  return rows;
}

TEST(NewSchedule, IsVerified) {
  for (int ranks : {1, 2, 3, 8}) {
    const auto line = MakeSchedule("line", Collective::kAllReduce, {.ranks = ranks}, RowsWithLine()).value();
    EXPECT_TRUE(CheckSchedule(*line, Collective::kAllReduce).ok()) << ranks;
  }
  EXPECT_FALSE(MakeSchedule("line", Collective::kAllReduce, {.ranks = 2}).ok()) << "the table did not change";
}

TEST(NewSchedule, IsRunByAProcessGroup) {
  GroupOptions options;
  options.algorithm = "line";
  options.schedules = &RowsWithLine();
  RunRanks("shm", kRanksInLine, options, [](ProcessGroup& group, Stream& stream) {
    EXPECT_EQ(group.info().algorithm, "line");
    std::vector<float> data(5, static_cast<float>(1 << group.rank()));
    const Span span{data.data(), data.size()};
    PSRING_RETURN_IF_ERROR(group.AllReduce(span, span, ReduceOp::kSum, stream));
    PSRING_RETURN_IF_ERROR(stream.Synchronize());
    EXPECT_THAT(data, testing::Each(15.0f)) << "rank " << group.rank();
    return absl::OkStatus();
  });
}

TEST(NewSchedule, IsSimulatedAndPricedAlike) {
  constexpr double kBytes = 1e6;
  const Wires wires{.latency_s = 1e-3, .bytes_per_s = 1e9, .add_s_per_byte = 1e-9};
  const auto line =
      MakeSchedule("line", Collective::kAllReduce, {.ranks = kRanksInLine}, RowsWithLine()).value();
  const Cluster cluster{.link_bytes_per_s = wires.bytes_per_s,
                        .fraction = 1,
                        .latency_s = wires.latency_s,
                        .add_s_per_byte = wires.add_s_per_byte};
  const auto simulated = SimulateCollective(*line, cluster, kBytes, {.segment_bytes = kBytes, .depth = 1});
  const auto scheme = SchemeOf(AllReduceRow("line"), RowsWithLine());
  ASSERT_TRUE(simulated.ok() && scheme.has_value());
  const CommPattern pattern{.scheme = *scheme, .workers = kRanksInLine};
  EXPECT_NEAR(simulated->seconds, ExchangeSeconds(pattern, kBytes, wires), 1e-12);
  EXPECT_DOUBLE_EQ(ExchangeSeconds(pattern, kBytes, wires), 6e-3 + 6e-3 + 3e-3);
  EXPECT_DOUBLE_EQ(PayloadBytesPerWorker(pattern, kBytes), 1.5e6);
}

TEST(NewSchedule, IsDrawn) {
  using Json = nlohmann::json;
  const Json schedules = Json::parse(SchedulesJson({kRanksInLine}, RowsWithLine()))["schedules"];
  EXPECT_EQ(schedules.back()["algorithm"], "line");
  EXPECT_EQ(schedules.back()["rounds"].size(), 6u);
  EXPECT_EQ(schedules.back()["summary"][0], "forth and back along a line");
  EXPECT_EQ(Json::parse(TheoryJson(RowsWithLine()))["schemes"]["line"][3], Json({6.0, 6.0, 6.0, 3.0}));
  const auto line =
      MakeSchedule("line", Collective::kAllReduce, {.ranks = kRanksInLine}, RowsWithLine()).value();
  Playback playback(*line, Collective::kAllReduce);
  while (!playback.done()) playback.Step();
  EXPECT_TRUE(playback.Fulfilled());
}

TEST(NewSchedule, IsExplained) {
  const auto text = Explain({.algorithm = "line", .shape = {.ranks = kRanksInLine}}, RowsWithLine()).value();
  for (const char* part : {"line all_reduce, 4 workers: forth and back along a line", "6 a + 6 M/B + 3 M g",
                           "2(N-1) a + 2(N-1) M/B + (N-1) M g"}) {
    EXPECT_THAT(text, testing::HasSubstr(part));
  }
  const ScopedLanguage chinese(Language::kChinese);
  EXPECT_THAT(Explain({.algorithm = "line"}, RowsWithLine()).value(),
              testing::HasSubstr("4 个 worker: forth and back along a line"));
}

}  // namespace
}  // namespace psring
