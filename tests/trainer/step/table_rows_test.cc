// When rows are pulled, pushed and counted, with a strategy that only notes its calls.
#include "trainer/step/table_rows.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

namespace psring {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

class NotingRows : public RowStrategy, public ServerMembership, public PendingUpdates {
 public:
  NotingRows(std::vector<std::string>& calls, absl::Status started)
      : calls_(calls), started_(std::move(started)) {}
  ~NotingRows() override { calls_.emplace_back("end"); }

  absl::Status Start(const RowStart& start) override {
    (void)Note("start ", start.step);
    return started_;
  }
  absl::Status Pull(int64_t step, TouchedRows& rows) override {
    return Note("pull ", step, " rows ", rows.of_tables()[0].rows.size());
  }
  absl::Status Push(const StepInfo& info, TouchedRows&) override { return Note("push ", info.step); }
  absl::StatusOr<RowReport> Finish() override {
    (void)Note("finish");
    return RowReport{.traffic = {.payload_tx_bytes = 3, .payload_rx_bytes = 40},
                     .bytes = {.pushed_bytes = 3, .pulled_bytes = 40},
                     .begin_ns = 100,
                     .end_ns = 110,
                     .exposed_ns = 10};
  }
  ConstSpan Local() const override { return {}; }
  absl::Status Read(int64_t step, const RowRange&, float*) override { return Note("read ", step); }
  void Abort(absl::Status why) override { (void)Note("abort ", why.message()); }
  absl::Status Leave() override { return Note("leave"); }
  absl::Status Settle() override { return Note("settle"); }

 private:
  absl::Status Note(const auto&... what) {
    calls_.push_back(absl::StrCat(what...));
    return absl::OkStatus();
  }

  std::vector<std::string>& calls_;
  const absl::Status started_;
};

// The lookup of sample i is row i of a table with 9 rows.
class OwnNumbers : public SampleSource {
 public:
  int64_t count() const override { return 9; }
  void Read(int64_t index, absl::Span<void* const> inputs, int32_t* labels) const override {
    *static_cast<int32_t*>(inputs[0]) = static_cast<int32_t>(index);
    *labels = 0;
  }
  std::string Hash() const override { return ""; }
};

class TableRowsTest : public testing::Test {
 protected:
  TableRowsTest() {
    layout_.AddTable({.name = "a", .rows = 9, .width = 4});
    const SampleSpec spec{.inputs = {{.name = "rows", .kind = TensorKind::kRows, .shape = {1}, .range = 9}},
                          .classes = 2};
    data_.train = data_.test = Dataset(spec, std::make_shared<const OwnNumbers>());
    plan_.warmup_steps = 1;
    plan_.steps = 4;
  }

  TableRows Make(bool drops_gradients = false, const absl::Status& started = absl::OkStatus()) {
    strategy_.drops_gradients = drops_gradients;
    return TableRows(PartsOf(), std::make_unique<NotingRows>(calls_, started));
  }
  TableRows::Parts PartsOf() {
    return {.layout = layout_,
            .data = data_,
            .strategy = strategy_,
            .plan = plan_,
            .trace = trace_,
            .span_bucket = 2};
  }

  ParameterLayout layout_;
  DataSplits data_;
  StrategyRow strategy_;
  StepPlan plan_;
  Trace trace_{0};
  std::vector<std::string> calls_;
};

TEST_F(TableRowsTest, AStepPullsPushesAndFinishes) {
  TableRows rows = Make();
  const StepInfo info{.step = 1};
  StepReport report{.traffic = {.payload_tx_bytes = 1, .payload_rx_bytes = 1}, .exposed_ns = 5};
  ASSERT_TRUE(rows.Start({.step = 1}).ok());
  ASSERT_TRUE(rows.Pull(1, {.batches = {{2, 3}, {3}}}).ok());
  ASSERT_TRUE(rows.Push(info).ok());
  ASSERT_TRUE(rows.Finish(info, report).ok());
  EXPECT_THAT(calls_, ElementsAre("start 1", "pull 1 rows 2", "push 1", "finish"));
  EXPECT_EQ(report.traffic.payload_tx_bytes, 4);
  EXPECT_EQ(report.traffic.payload_rx_bytes, 41);
  EXPECT_EQ(report.exposed_ns, 15);
  EXPECT_EQ(report.rows, std::pair(int64_t{100}, int64_t{110}));
  const std::vector<TraceSpan> spans = trace_.spans();
  ASSERT_EQ(spans.size(), 1);
  EXPECT_EQ(spans[0].bucket, 2);
  EXPECT_EQ(spans[0].begin_ns, 100);
}

TEST_F(TableRowsTest, ADroppedGradientIsNotPushed) {
  TableRows rows = Make(/*drops_gradients=*/true);
  for (const bool dropped : {true, false}) {
    StepReport report{.dropped = dropped};
    ASSERT_TRUE(rows.Push({.step = 1}).ok());
    ASSERT_TRUE(rows.Finish({.step = 1}, report).ok());
  }
  EXPECT_THAT(calls_, ElementsAre("finish", "push 1", "finish"));
}

TEST_F(TableRowsTest, TheMeanIsOverMeasuredSteps) {
  TableRows rows = Make();
  for (int64_t step = 0; step < 3; ++step) {
    StepReport report;
    ASSERT_TRUE(rows.Finish({.step = step}, report).ok());
  }
  EXPECT_EQ(rows.mean().pulled_bytes, 2 * 40. / 4);
}

TEST_F(TableRowsTest, AFailedStartIsReportedToTheOthers) {
  TableRows rows = Make(false, absl::DataLossError("damaged"));
  EXPECT_EQ(rows.Start({}).code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(calls_, ElementsAre("start 0", "abort damaged"));
}

TEST_F(TableRowsTest, TestDataIsPulledAndCheckpointsAreRead) {
  TableRows rows = Make();
  EXPECT_EQ(rows.evaluated(), nullptr);
  ASSERT_TRUE(rows.Settle().ok());
  float to = 0;
  ASSERT_TRUE(rows.ReaderAt(7)({}, &to).ok());
  ASSERT_TRUE(rows.PullForEvaluation(5, /*batch=*/4).ok());
  EXPECT_NE(rows.evaluated(), nullptr);
  ASSERT_TRUE(rows.Leave().ok());
  rows.Close();
  EXPECT_NE(rows.touched(), nullptr);
  EXPECT_THAT(calls_, ElementsAre("settle", "read 7", "pull 5 rows 9", "leave", "end"));
}

TEST_F(TableRowsTest, WithoutTablesNothingHappens) {
  TableRows rows(PartsOf(), nullptr);
  StepReport report;
  EXPECT_TRUE(rows.Start({}).ok());
  EXPECT_TRUE(rows.Pull(0, {.batches = {{0}}}).ok());
  EXPECT_TRUE(rows.Push({}).ok());
  EXPECT_TRUE(rows.Finish({.step = 2}, report).ok());
  EXPECT_TRUE(rows.PullForEvaluation(0, 4).ok());
  EXPECT_TRUE(rows.Settle().ok());
  EXPECT_TRUE(rows.Leave().ok());
  EXPECT_EQ(rows.touched(), nullptr);
  EXPECT_EQ(rows.evaluated(), nullptr);
  EXPECT_TRUE(rows.ReaderAt(0) == nullptr);
  EXPECT_EQ(rows.mean().all(), 0);
  EXPECT_THAT(trace_.spans(), IsEmpty());
}

}  // namespace
}  // namespace psring
