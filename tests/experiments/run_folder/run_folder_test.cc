#include "experiments/run_folder/run_folder.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "common/io/files.h"
#include "common/measure/records.h"
#include "tests/has.h"

namespace psring {
namespace {

namespace fs = std::filesystem;

class RunFolderTest : public testing::Test {
 protected:
  void SetUp() override {
    root_ = fs::path(testing::TempDir()) / absl::StrCat("psring-run-folder-", getpid());
    fs::remove_all(root_);
    fs::create_directory(root_);
  }
  void TearDown() override { fs::remove_all(root_); }
  std::string Path(const std::string& name) const { return (root_ / name).string(); }
  fs::path root_;
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

}  // namespace
}  // namespace psring
