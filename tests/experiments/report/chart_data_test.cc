// The charts of runs made by hand: figures are those of the folder.
#include "experiments/report/chart_data.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

namespace psring {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using Json = nlohmann::json;

Json ChartRow(const std::string& strategy, int workers) {
  return {{"figures",
           {{"run_id", "r"},
            {"strategy", strategy},
            {"workers", workers},
            {"servers", strategy == "ring" ? 0 : 1},
            {"lr", 0.1},
            {"basis", "measured"},
            {"repeats", 2},
            {"steps", 9},
            {"samples_per_s", 100.0 * workers},
            {"samples_per_s_lo95", 90.0 * workers},
            {"samples_per_s_hi95", 110.0 * workers},
            {"efficiency", 0.5},
            {"step_ms", 10},
            {"compute_ms", 6},
            {"exposed_comm_ms", 3},
            {"comm_busy_ms", 5},
            {"wait_ms", 1},
            {"predicted_comm_ms", 3.5},
            {"payload_tx_bytes_per_worker", 4000000},
            {"predicted_payload_bytes_per_worker", 4100000},
            {"staleness_mean", nullptr}}},
          {"rounds", {{"samples_per_s", {95.0 * workers, 105.0 * workers}}}}};
}

Json RunWith(const std::vector<Json>& rows) {
  return {{"run_id", "r1"},
          {"summary", rows},
          {"runs_csv",
           "strategy,part,workers,servers,comm_busy_ms,wait_ms\nring,cost,2,0,4.5,1\nring,cost,2,0,5.5,"
           "\nring,accuracy,2,0,9,\n"},
          {"curves_csv",
           "strategy,workers,seed,samples,updates,wall_s,train_loss,test_loss,test_accuracy,servers\n"
           "ring,2,1,100,1,0.5,2.1,2.2,0.3,0\nring,2,1,200,2,1.0,1.1,1.2,0.6,0\n"}};
}

std::vector<Chart> Of(const std::vector<Json>& runs) {
  std::vector<RunData> data;
  for (const Json& run : runs) data.push_back({.json = run.dump()});
  return ChartsOf(data);
}

const Chart& Named(const std::vector<Chart>& charts, const std::string& id) {
  static const Chart none;
  for (const Chart& chart : charts) {
    if (chart.id == id) return chart;
  }
  ADD_FAILURE() << "no chart " << id;
  return none;
}

TEST(ChartData, BarsAndPointsHaveTheFoldersIntervals) {
  Json row = ChartRow("ring", 2), other = ChartRow("ring", 4);
  row["intervals"] = {{"step_ms", {{"lo95", 9}, {"hi95", 12}}},
                      {"comm_moving_ms", {{"lo95", 3.5}, {"hi95", 5.5}}},
                      {"payload_tx_bytes_per_worker", {{"lo95", 4e6}, {"hi95", 4e6}}},
                      {"efficiency", {{"lo95", 0.4}, {"hi95", "broken"}}}};
  const auto charts = Of({RunWith({row, other})});
  const Chart& split = Named(charts, "split");
  EXPECT_EQ(split.bars[0].interval, std::pair(9.0, 12.0));
  EXPECT_FALSE(split.bars[1].interval.has_value());  // of a folder that has none
  EXPECT_THAT(split.caption, HasSubstr("Intervals: 95%"));
  const auto column = [&](const Chart& chart, const std::string& name) {
    const auto found = std::find(chart.columns.begin(), chart.columns.end(), name);
    EXPECT_NE(found, chart.columns.end()) << name;
    return static_cast<size_t>(found - chart.columns.begin());
  };
  EXPECT_EQ(split.rows[0][column(split, "step_ms_lo95")], "9");
  EXPECT_EQ(split.rows[0][column(split, "step_ms_hi95")], "12");
  EXPECT_EQ(split.rows[1][column(split, "step_ms_hi95")], "");
  EXPECT_EQ(Named(charts, "bytes").bars[0].interval, std::pair(4.0, 4.0));
  const ChartPoint& point = Named(charts, "communication").series[0].points[0];
  EXPECT_EQ(point.low, 3.5);
  EXPECT_EQ(point.high, 5.5);
  EXPECT_FALSE(Named(charts, "efficiency").series[0].points[0].low.has_value());
}

TEST(ChartData, CommunicationIsWhatMovesWithEveryRepeatAndTheory) {
  const auto charts = Of({RunWith({ChartRow("ring", 2), ChartRow("ring", 4), ChartRow("single", 1)})});
  const Chart& chart = Named(charts, "communication");
  ASSERT_EQ(chart.series.size(), 2u);
  ASSERT_EQ(chart.series[0].points.size(), 2u);
  EXPECT_EQ(chart.series[0].points[0].y, 4);  // 5 in flight less 1 of waiting
  EXPECT_THAT(chart.series[0].points[0].repeats, ElementsAre(3.5, 5.5));
  EXPECT_TRUE(chart.series[1].dashed);
  EXPECT_EQ(chart.series[1].points[0].y, 3.5);
  EXPECT_THAT(chart.caption, HasSubstr("Run r1. 2 repeats of 9 steps."));
  ASSERT_EQ(chart.rows.size(), 2u);
  EXPECT_EQ(chart.columns[6], "comm_busy_ms");
  EXPECT_EQ(chart.rows[0][6], "5");
}

TEST(ChartData, ThroughputHasItsInterval) {
  const auto charts = Of({RunWith({ChartRow("ring", 2)})});
  const ChartPoint& point = Named(charts, "throughput").series.at(0).points.at(0);
  EXPECT_EQ(point.y, 200);
  EXPECT_EQ(point.low, 180);
  EXPECT_EQ(point.high, 220);
  EXPECT_THAT(point.repeats, ElementsAre(190, 210));
}

TEST(ChartData, AStepIsSplitWithoutARemainder) {
  const auto charts = Of({RunWith({ChartRow("ring", 2)})});
  EXPECT_THAT(Named(charts, "split").bars.at(0).parts, ElementsAre(6, 3, 1));
  EXPECT_EQ(Named(charts, "bytes").bars.at(0).mark, 4.1);
}

TEST(ChartData, AccuracyAndLossStandAgainstSamplesUpdatesAndTime) {
  const auto charts = Of({RunWith({ChartRow("ring", 2)})});
  const Chart& chart = Named(charts, "learning-test_accuracy-wall_s");
  ASSERT_EQ(chart.series.size(), 1u);
  EXPECT_EQ(chart.series[0].points[1].x, 1.0);
  EXPECT_EQ(chart.series[0].points[1].y, 0.6);
  EXPECT_EQ(Named(charts, "learning-train_loss-samples").series[0].points[0].y, 2.1);
}

TEST(ChartData, SeveralRunsArePooledAPointEach) {
  Json slow = ChartRow("ring", 2);
  slow["figures"]["samples_per_s"] = 100;
  Json second = RunWith({slow});
  second["run_id"] = "r2";
  const auto charts = Of({RunWith({ChartRow("ring", 2)}), second});
  const ChartPoint& point = Named(charts, "throughput").series.at(0).points.at(0);
  EXPECT_EQ(point.y, 150);
  EXPECT_THAT(point.repeats, ElementsAre(200, 100));
  EXPECT_FALSE(point.low.has_value());
  EXPECT_EQ(Named(charts, "r2-split").bars.size(), 1u);
  EXPECT_EQ(Named(charts, "throughput").rows.size(), 2u);
}

TEST(ChartData, StalenessIsASharedHistogramWithItsMean) {
  Json row = ChartRow("ps-async", 4);
  row["figures"]["staleness_mean"] = 3;
  Json run = RunWith({row});
  run["steps"] = {{"staleness",
                   {{{"strategy", "ps-async"}, {"workers", 4}, {"counts", {{"2", 1}, {"3", 2}, {"4", 1}}}}}}};
  const auto charts = Of({run});
  const Chart& chart = Named(charts, "staleness-ps-async-4");
  ASSERT_EQ(chart.bars.size(), 5u);
  EXPECT_THAT(chart.bars[3].parts, ElementsAre(0.5));
  EXPECT_EQ(chart.line->second, 3);
  EXPECT_THAT(chart.caption, HasSubstr("Mean here: 3."));
}

TEST(ChartData, ABenchmarkHasALineForEachBackend) {
  const Json run = {{"run_id", "b"},
                    {"bench_csv",
                     "collective,backend,algorithm,transport,buffers,workers,size,out_of_place_busbw_gb_s,"
                     "in_place_busbw_gb_s,samples\nall_reduce,native,ring,tcp,,2,4096,0.5,0.6,20\n"
                     "all_reduce,native,ring,tcp,,2,1024,,0.2,20\n"}};
  const auto charts = Of({run});
  const Chart& chart = Named(charts, "bench-2");
  ASSERT_EQ(chart.series.size(), 1u);
  EXPECT_EQ(chart.series[0].name, "native ring tcp");
  EXPECT_EQ(chart.series[0].points[0].y, 0.2);  // in place, where nothing else was measured
  EXPECT_EQ(chart.series[0].points[1].y, 0.5);
}

TEST(ChartData, WhatIsBrokenOrOfOthersGivesNoChartAndNoCrash) {
  for (const char* text :
       {"", "[]", "{}", "{\"summary\":3}",
        "{\"summary\":[1,null,{\"figures\":{\"workers\":\"x\"}},{\"figures\":{\"workers\":-1}}]}",
        "{\"steps\":{\"staleness\":[{\"counts\":{\"x\":1}}],\"loss\":[{\"points\":[[1]]}]}}",
        "{\"trace\":{\"launches\":[{\"spans\":[[1,2,3,\"4\",5]]}]}}", "{\"curves_csv\":\"\\\"\"}"}) {
    EXPECT_TRUE(ChartsOf({RunData{.json = text}}).empty()) << text;
  }
}

TEST(ChartData, AnIdIsAFileNameInItsFolder) {
  EXPECT_EQ(FileName("../a b/ps-ssp:2"), "-..-a-b-ps-ssp-2");
  EXPECT_EQ(FileName("split"), "split");
}

}  // namespace
}  // namespace psring
