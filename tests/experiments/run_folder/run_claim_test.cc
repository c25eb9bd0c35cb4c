#include "experiments/run_folder/run_claim.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/mutex.h"
#include "common/io/files.h"
#include "tests/has.h"
#include "tests/on_ranks.h"

namespace psring {
namespace {

namespace fs = std::filesystem;

// In a temporary working directory.
class RunClaimTest : public testing::Test {
 protected:
  void SetUp() override {
    root_ = fs::path(testing::TempDir()) / absl::StrCat("psring-run-claim-", getpid());
    fs::remove_all(root_);
    fs::create_directory(root_);
    fs::current_path(root_);
  }
  void TearDown() override {
    fs::current_path("/");
    fs::remove_all(root_);
  }
  static absl::StatusOr<std::unique_ptr<RunClaim>> Claim(const std::string& out) {
    return RunClaim::Make(out, "train", absl::UnixEpoch());
  }
  static std::string Refusal(const std::string& out) { return std::string(Claim(out).status().message()); }

  fs::path root_;
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
