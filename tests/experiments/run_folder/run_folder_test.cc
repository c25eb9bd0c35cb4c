#include "experiments/run_folder/run_folder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/mutex.h"
#include "common/io/files.h"
#include "common/measure/records.h"
#include "experiments/run_folder/run_claim.h"
#include "experiments/run_folder/run_files.h"
#include "tests/experiments/analysis/four_rows.h"
#include "tests/has.h"
#include "tests/on_ranks.h"
#include "tests/test_folder.h"

namespace psring {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

class RunFolderTest : public testing::Test {
 protected:
  std::string Path(const std::string& name) const { return root_ / name; }
  const TestFolder made_;
  const fs::path root_ = made_.path();
};

TEST_F(RunFolderTest, KeepsItsClaimAndCreatesTheFiles) {
  auto claim = RunClaim::Make(Path("run"), "compare", absl::UnixEpoch()).value();
  auto folder = RunFolder::Create(*claim).value();
  EXPECT_EQ(folder.run_id(), "run");
  claim.reset();
  EXPECT_TRUE(fs::exists(root_ / "run/runs.csv"));
}

TEST_F(RunFolderTest, NamesAMissingResultFile) {
  const auto records = ReadRecords(root_.string(), 1, 0);
  ASSERT_FALSE(records.ok());
  EXPECT_THAT(records.status().message(), Has("result-rank0.json"));
}

TEST_F(RunFolderTest, ReadsRecords) {
  ASSERT_TRUE(WriteFile(Path("result-rank0.json"), ToJson(RankResult{.strategy = "ring", .steps = 2})).ok());
  ASSERT_TRUE(WriteFile(Path("steps-rank0.jsonl"),
                        ToJson(StepRecord{.step = 0}) + "\n" + ToJson(StepRecord{.step = 1}) + "\n")
                  .ok());
  ASSERT_TRUE(WriteFile(Path("result-server0.json"), ToJson(ServerResult{.pushes = 8})).ok());
  const auto records = ReadRecords(root_.string(), 1, 1).value();
  EXPECT_EQ(records.ranks[0].strategy, "ring");
  EXPECT_EQ(records.steps[0].size(), 2);
  EXPECT_EQ(records.servers[0].pushes, 8);
}

TEST_F(RunFolderTest, AWorkerThatWasStoppedCountsAsLost) {
  ASSERT_TRUE(WriteFile(Path("result-rank0.json"), ToJson(RankResult{})).ok());
  ASSERT_TRUE(WriteFile(Path("steps-rank0.jsonl"), "").ok());
  ASSERT_TRUE(WriteFile(Path("steps-rank1.jsonl"), ToJson(StepRecord{.step = 6}) + "\n").ok());
  ASSERT_TRUE(WriteFile(Path("result-server0.json"), ToJson(ServerResult{})).ok());
  const auto records = ReadRecords(root_.string(), 2, 1).value();
  EXPECT_EQ(records.ranks.size(), 1);
  EXPECT_EQ(records.servers[0].lost_workers, std::vector<int64_t>{1});
  EXPECT_EQ(records.servers[0].lost_at_step, std::vector<int64_t>{7});
}

TEST_F(RunFolderTest, NamesAResultThatIsALinkToItself) {
  fs::create_symlink("result-rank0.json", Path("result-rank0.json"));
  ASSERT_TRUE(WriteFile(Path("result-server0.json"), ToJson(ServerResult{})).ok());
  EXPECT_THAT(ReadRecords(root_.string(), 1, 1).status().message(), Has("result-rank0.json"));
}

TEST_F(RunFolderTest, NamesABrokenResultFile) {
  ASSERT_TRUE(WriteFile(Path("result-rank0.json"), "{}").ok());
  EXPECT_THAT(ReadRecords(root_.string(), 1, 0).status().message(), Has("result-rank0.json: "));
  ASSERT_TRUE(WriteFile(Path("result-server0.json"), "{}").ok());
  EXPECT_THAT(ReadRecords(root_.string(), 1, 1).status().message(), Has("result-server0.json: "));
}

TEST_F(RunFolderTest, NamesABrokenStepsFile) {
  ASSERT_TRUE(WriteFile(Path("result-rank0.json"), ToJson(RankResult{})).ok());
  ASSERT_TRUE(WriteFile(Path("steps-rank0.jsonl"), "{broken\n").ok());
  EXPECT_THAT(ReadRecords(root_.string(), 1, 0).status().message(), Has("steps-rank0.jsonl"));
}

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

// In a temporary working directory.
class RunClaimTest : public testing::Test {
 protected:
  RunClaimTest() { fs::current_path(root_); }
  ~RunClaimTest() override { fs::current_path("/"); }
  static absl::StatusOr<std::unique_ptr<RunClaim>> Claim(const std::string& out) {
    return RunClaim::Make(out, "train", absl::UnixEpoch());
  }
  static std::string Refusal(const std::string& out) { return std::string(Claim(out).status().message()); }

  const TestFolder made_;
  const fs::path root_ = made_.path();
};

TEST_F(RunClaimTest, IsNamedByTimeVerbAndANumberWithinOneSecond) {
  std::vector<std::unique_ptr<RunClaim>> claims;
  for (const char* path :
       {"runs/19700101T000000Z-train", "runs/19700101T000000Z-train-2", "runs/19700101T000000Z-train-3"}) {
    auto claim = Claim("").value();
    EXPECT_EQ(claim->path(), path);
    EXPECT_TRUE(fs::is_directory(path));
    claims.push_back(std::move(claim));
  }
}

TEST_F(RunClaimTest, AnAbandonedClaimRestoresThePreviousState) {
  fs::create_directory("empty");
  for (const std::string out : {"", "empty", "a/b/c", "a/b/c/"}) {
    auto claim = Claim(out).value();
    claim.reset();
    EXPECT_TRUE(fs::is_empty("empty"));
    EXPECT_EQ(std::distance(fs::directory_iterator("."), {}), 1) << out;
  }
}

TEST_F(RunClaimTest, RejectsAClaimedFolderAlsoIfItsRunWasKilled) {
  const std::string says =
      "cannot write to a/b: it is not empty, another run may use it or have written its results there; "
      "choose another folder";
  auto claim = Claim("a/b").value();
  EXPECT_EQ(Refusal("a/b"), says);
  EXPECT_EQ(Claim("a/b").status().code(), absl::StatusCode::kFailedPrecondition);
  ASSERT_TRUE(claim->Keep().ok());
  claim.reset();
  EXPECT_EQ(Refusal("a/b/"), absl::StrCat(says));
  EXPECT_TRUE(fs::exists("a/b/manifest.json")) << "a refused run must not remove the other run's files";
}

TEST_F(RunClaimTest, NamesAFileOrANonEmptyFolder) {
  ASSERT_TRUE(WriteFile("file", "x").ok());
  EXPECT_EQ(Refusal("file"), "cannot write to file: it is a file");
  EXPECT_EQ(Refusal("file/below"), "cannot write to file/below: Not a directory");
  EXPECT_THAT(Refusal(root_.string()), Has("it is not empty"));
  EXPECT_FALSE(fs::exists("manifest.json"));
  EXPECT_EQ(Refusal("/proc/psring"), "cannot write to /proc/psring: No such file or directory");
}

TEST_F(RunClaimTest, ConcurrentClaimsGetDifferentFolders) {
  constexpr int kThreads = 8, kTimes = 50;
  Mutex mutex;
  std::vector<std::unique_ptr<RunClaim>> claims;
  OnRanks(kThreads, [&](int) {
    for (int n = 0; n < kTimes; ++n) {
      auto claim = Claim("").value();
      ASSERT_TRUE(claim->Keep().ok());
      MutexLock lock(mutex);
      claims.push_back(std::move(claim));
    }
  });
  std::set<std::string> paths;
  for (const auto& claim : claims) paths.insert(claim->path());
  EXPECT_EQ(paths.size(), kThreads * kTimes);
  EXPECT_TRUE(paths.contains(absl::StrCat("runs/", fs::read_symlink("runs/latest").string())));
  EXPECT_EQ(std::distance(fs::directory_iterator("runs"), {}), kThreads * kTimes + 1);
}

// Meanwhile, runs that fail early remove the folders that they created.
TEST_F(RunClaimTest, AtMostOneClaimHasAFolderAtAnyTime) {
  constexpr int kThreads = 8, kTimes = 200;
  Mutex mutex;
  int claimed = 0, holders = 0;
  OnRanks(kThreads, [&](int) {
    for (int n = 0; n < kTimes; ++n) {
      auto claim = Claim("shared/out");
      if (!claim.ok()) {
        EXPECT_THAT(claim.status().message(), Has("it is not empty")) << claim.status();
        continue;
      }
      {
        MutexLock lock(mutex);
        ++claimed;
        EXPECT_EQ(++holders, 1);
      }
      std::this_thread::yield();
      {
        MutexLock lock(mutex);
        --holders;
      }
    }
  });
  EXPECT_GT(claimed, 0);
  auto last = Claim("shared/out");
  EXPECT_TRUE(last.ok()) << last.status();
}

TEST_F(RunClaimTest, LatestIsTheLastStartedRun) {
  auto one = Claim(""), two = Claim(""), elsewhere = Claim("elsewhere");
  ASSERT_TRUE(one.ok() && two.ok() && elsewhere.ok());
  EXPECT_FALSE(fs::exists(fs::symlink_status("runs/latest")));
  for (const auto* claim : {&two, &one, &elsewhere}) ASSERT_TRUE((**claim)->Keep().ok());
  EXPECT_EQ(fs::read_symlink("runs/latest"), "19700101T000000Z-train");
}

TEST_F(RunClaimTest, AFolderIsReopenedUnlessItIsInUse) {
  auto claim = Claim("run").value();
  ASSERT_TRUE(claim->Keep().ok());
  EXPECT_NE(RunClaim::Reopen("run").status().message().find("run is in use"), std::string::npos);
  claim.reset();
  const auto again = RunClaim::Reopen("run");
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_FALSE(RunClaim::Reopen("run").ok());
}

TEST_F(RunClaimTest, AReopenedFolderIsNeverRemoved) {
  fs::create_directory("run");
  ASSERT_TRUE(WriteFile("run/manifest.json", "{}").ok());
  ASSERT_TRUE(RunClaim::Reopen("run").ok());
  EXPECT_TRUE(fs::exists("run/manifest.json"));
}

}  // namespace
}  // namespace psring
