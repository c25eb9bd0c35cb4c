#include "common/io/checkpoint_folder.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "common/io/files.h"
#include "tests/kept_files.h"
#include "tests/test_folder.h"

namespace psring {
namespace {

namespace fs = std::filesystem;

class CheckpointFolder : public testing::Test {
 protected:
  absl::Status Save(int64_t step, int64_t sequence, int keep = 2, const std::string& text = "w") {
    return SaveCheckpoint(
        folder_.string(), step,
        ContentOf({{kModelFile, text}, {kPositionFile, absl::StrCat("{\"sequence\":", sequence, "}")}}),
        keep);
  }
  std::vector<int64_t> Steps() const {
    std::vector<int64_t> steps;
    for (const CheckpointPath& one : ListCheckpoints(folder_.string())) steps.push_back(one.step);
    return steps;
  }
  size_t Entries() const {
    return static_cast<size_t>(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()));
  }

  const TestFolder temporary_;
  const fs::path folder_ = temporary_.path();
};

TEST_F(CheckpointFolder, KeepsTheNewest) {
  for (int64_t i = 1; i <= 5; ++i) {
    ASSERT_TRUE(Save(10 * i, i, 3).ok());
    EXPECT_EQ(Steps().front(), 10 * i);
    EXPECT_EQ(Steps().size(), std::min<int64_t>(i, 3));
  }
  EXPECT_EQ(Steps(), (std::vector<int64_t>{50, 40, 30}));
  EXPECT_EQ(Entries(), 3);
  ASSERT_TRUE(Save(60, 6, 1).ok());
  EXPECT_EQ(Entries(), 1);
}

// A run with more workers makes fewer steps of the same samples.
TEST_F(CheckpointFolder, TheNewestIsTheLastWritten) {
  ASSERT_TRUE(Save(100, 1).ok());
  ASSERT_TRUE(Save(60, 2).ok());
  EXPECT_EQ(Steps(), (std::vector<int64_t>{60, 100}));
  ASSERT_TRUE(Save(70, 3).ok());
  EXPECT_EQ(Steps(), (std::vector<int64_t>{70, 60}));
}

TEST_F(CheckpointFolder, ACheckpointOfTheSameStepIsReplaced) {
  ASSERT_TRUE(Save(10, 1, 2, "old").ok());
  ASSERT_TRUE(Save(10, 2, 2, "new").ok());
  EXPECT_EQ(*ReadFile((folder_ / "step10" / kModelFile).string()), "new");
  EXPECT_EQ(Entries(), 1);
}

TEST_F(CheckpointFolder, UnfinishedCheckpointsAreIgnoredAndRemoved) {
  fs::create_directories(folder_ / "step30.part");
  std::ofstream(folder_ / "step30.part" / kPositionFile) << "{\"sequence\":3}";
  fs::create_directories(folder_ / "step20");  // not whole: another writer's, or a removal cut short
  std::ofstream(folder_ / "step20" / kModelFile) << "w";
  EXPECT_TRUE(Steps().empty());
  ASSERT_TRUE(Save(10, 1).ok());
  EXPECT_EQ(Steps(), std::vector<int64_t>{10});
  EXPECT_FALSE(fs::exists(folder_ / "step30.part"));
}

TEST_F(CheckpointFolder, OtherFilesAreKept) {
  for (const char* name : {"notes.txt", "stepwise", "step-1", "model"}) {
    fs::create_directories(folder_ / name);
    std::ofstream(folder_ / name / kPositionFile) << "{\"sequence\":1}";
  }
  for (int64_t i = 1; i <= 3; ++i) ASSERT_TRUE(Save(i, i, 1).ok());
  EXPECT_EQ(Entries(), 5);
}

TEST_F(CheckpointFolder, AnUnreadableOneIsTheOldest) {
  ASSERT_TRUE(Save(10, 1).ok());
  fs::create_directories(folder_ / "step99");
  std::ofstream(folder_ / "step99" / kPositionFile) << "{\"seq";
  EXPECT_EQ(Steps(), (std::vector<int64_t>{10, 99}));
}

TEST_F(CheckpointFolder, AnotherRunsCheckpointsAreAnError) {
  ASSERT_TRUE(OpenCheckpoints((folder_ / "new" / "one").string(), 0).ok());
  ASSERT_TRUE(OpenCheckpoints(folder_.string(), 0).ok());
  ASSERT_TRUE(Save(10, 4).ok());
  EXPECT_TRUE(OpenCheckpoints(folder_.string(), 4).ok());
  const absl::Status refused = OpenCheckpoints(folder_.string(), 3);
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(refused.message().find("--resume latest"), std::string::npos) << refused;
  EXPECT_EQ(refused.message().find('\n'), std::string::npos);
}

TEST_F(CheckpointFolder, AFolderThatIsNotWritableIsAnError) {
  std::ofstream(folder_ / "file") << "x";
  const absl::Status opened = OpenCheckpoints((folder_ / "file").string(), 0);
  EXPECT_NE(opened.message().find((folder_ / "file").string()), std::string::npos) << opened;
  EXPECT_FALSE(SaveCheckpoint((folder_ / "file").string(), 1, ContentOf({{kPositionFile, "{}"}}), 2).ok());
}

}  // namespace
}  // namespace psring
