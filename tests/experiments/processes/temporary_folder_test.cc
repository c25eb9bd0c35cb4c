#include "experiments/processes/temporary_folder.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <optional>

#include "absl/strings/str_cat.h"

namespace psring {
namespace {

namespace fs = std::filesystem;

TEST(TemporaryFolderTest, IsRemovedWithItsContents) {
  std::string path;
  {
    const auto folder = TemporaryFolder::Create();
    ASSERT_TRUE(folder.ok()) << folder.status();
    path = folder->path();
    std::ofstream(path + "/file") << "text";
    EXPECT_TRUE(fs::exists(path + "/file"));
  }
  EXPECT_FALSE(fs::exists(path));
}

TEST(TemporaryFolderTest, RemovesOnlyFoldersOfKilledProcesses) {
  const auto outer = TemporaryFolder::Create();
  ASSERT_TRUE(outer.ok());
  const pid_t child = fork();
  if (child == 0) _exit(0);
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  const std::string dead = absl::StrCat(outer->path(), "/psring-", child, "-abcdef");
  const std::string alive = absl::StrCat(outer->path(), "/psring-", getpid(), "-abcdef");
  const std::string foreign = absl::StrCat(outer->path(), "/other-", child, "-abcdef");
  for (const std::string& path : {dead, alive, foreign}) ASSERT_TRUE(fs::create_directory(path));
  ASSERT_TRUE(TemporaryFolder::Create(outer->path()).ok());
  EXPECT_FALSE(fs::exists(dead));
  EXPECT_TRUE(fs::exists(alive));
  EXPECT_TRUE(fs::exists(foreign));
}

TEST(TemporaryFolderTest, NamesABaseThatDoesNotExist) {
  const auto folder = TemporaryFolder::Create("/no/such/place");
  EXPECT_EQ(folder.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(folder.status().message().find("/no/such/place"), std::string::npos);
}

}  // namespace
}  // namespace psring
