#include "experiments/run_folder/run_files.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "tests/experiments/analysis/four_rows.h"

namespace psring {
namespace {

using Json = nlohmann::json;

TEST(RunFiles, SummaryCsvHasAFieldForEveryColumn) {
  std::istringstream lines(SummaryCsv({TimedRow("ring", 2, 100), TimedRow("single", 1, 100)}));
  std::multiset<int64_t> fields;  // of the heading and of two rows
  for (std::string line; std::getline(lines, line);) fields.insert(std::count(line.begin(), line.end(), ','));
  EXPECT_EQ(fields.size(), 3);
  EXPECT_EQ(fields.count(*fields.begin()), 3);
}

TEST(RunFiles, SummaryJsonHasTheBasisOfEveryFigure) {
  SummaryRow row = TimedRow("ring", 2, 100);
  row.link = {};
  row.cost_against_none_ms = 3;
  const auto json = Json::parse(SummaryJson({row}));
  EXPECT_EQ(json[0]["figures"].size(), json[0]["basis"].size());
  EXPECT_NEAR(json[0]["figures"]["samples_per_s"], 32e3 * 2 / 100, 1e-9);
  EXPECT_EQ(json[0]["basis"]["samples_per_s"], "measured");
  EXPECT_EQ(json[0]["basis"]["predicted_comm_ms"], "derived");
  EXPECT_TRUE(json[0]["figures"]["link_mbps"].is_null());
  EXPECT_EQ(json[0]["cost_against_none"]["ms"], 3);
}

TEST(RunFiles, RunsCsvHasAFieldForEveryColumn) {
  const std::string header = RunsCsvHeader(),
                    line = RunsCsvLine({.run_id = "r", .part = "cost"}, Configuration(), RunFigures());
  EXPECT_EQ(std::count(header.begin(), header.end(), ','), std::count(line.begin(), line.end(), ','));
  EXPECT_TRUE(header.ends_with(",servers,server_wire,layout,program,micro_batches,bubble_fraction,cuts\n"))
      << header;
  Configuration configuration{.strategy = *FindStrategy("ps-sync"), .workers = 2};
  configuration.training.servers = 2;
  configuration.training.server_wire = "stream";
  EXPECT_TRUE(RunsCsvLine({}, configuration, RunFigures()).ends_with(",2,stream,dp2,,1,,\n"));
}

TEST(RunFiles, CurvesCsvNamesTheServersWire) {
  EXPECT_TRUE(CurvesCsvHeader().ends_with(",servers,server_wire\n"));
  EXPECT_TRUE(
      CurvesCsvLines({}, {.strategy = *FindStrategy("ps-sync")}, {CurvePoint()}).ends_with(",1,grpc\n"));
}

// A value per line.
std::vector<Json> Lines(const std::string& text) {
  std::vector<Json> values;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) values.push_back(Json::parse(line));
  return values;
}

TEST(RunFiles, StepsHaveTheirLaunchAndWait) {
  RunRecords records;
  records.ranks.resize(2);
  records.steps.resize(2);
  for (const int rank : {0, 1})
    records.steps[static_cast<size_t>(rank)] = {
        {.rank = rank, .buckets = {{.begin_ns = rank * 3'000'000, .end_ns = 9'000'000}}}};
  const std::vector<Json> steps = Lines(
      StepsJsonl({.part = "cost", .repeat = 1}, {.strategy = *FindStrategy("ring"), .workers = 2}, records));
  ASSERT_EQ(steps.size(), 2u);
  EXPECT_EQ(steps[0]["strategy"], "ring");
  EXPECT_EQ(steps[0]["repeat"], 1);
  EXPECT_EQ(steps[0]["wait_ms"], 3);
  EXPECT_EQ(steps[1]["rank"], 1);
}

TEST(RunFiles, DdpFiguresHaveALinePerRank) {
  RunRecords records;
  records.ranks.resize(2);
  records.ranks[1].rank = 1;
  records.ranks[1].ddp = {.has_rebuilt_buckets = true, .ready_order = {"fc2.bias", "fc1.bias"}};
  Configuration configuration{.strategy = *FindStrategy("ring"), .workers = 2};
  configuration.training.bucket_mb = 25;
  const std::vector<Json> ranks = Lines(DdpJsonl({.part = "cost"}, configuration, records));
  ASSERT_EQ(ranks.size(), 2u);
  EXPECT_EQ(ranks[0]["has_rebuilt_buckets"], false);
  EXPECT_EQ(ranks[1]["strategy"], "ring");
  EXPECT_EQ(ranks[1]["rank"], 1);
  EXPECT_EQ(ranks[1]["bucket_mb"], 25);
  EXPECT_EQ(ranks[1]["ready_order"][1], "fc1.bias");
}

}  // namespace
}  // namespace psring
