#include "experiments/launch/temporary_folder.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/file_descriptor.h"
#include "tests/eventually.h"

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

// Another process that creates a folder, perhaps in a new PID namespace, and runs until it is killed.
class Owner {
 public:
  Owner(const std::string& base, bool in_own_namespace) {
    int ends[2];
    EXPECT_EQ(pipe(ends), 0);
    child_ = fork();
    if (child_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (in_own_namespace && unshare(CLONE_NEWPID) != 0) _exit(1);
      const pid_t owner = fork();
      if (owner != 0) _exit(owner < 0 || waitpid(owner, nullptr, 0) < 0);
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      const auto folder = TemporaryFolder::Create(base);
      if (!folder.ok()) _exit(1);
      std::ofstream(folder->path() + "/records") << "text";
      if (write(ends[1], folder->path().data(), folder->path().size()) < 0) _exit(1);
      close(ends[1]);
      while (true) pause();
    }
    close(ends[1]);
    char text[4096];
    const ssize_t bytes = read(ends[0], text, sizeof text);
    path_.assign(text, static_cast<size_t>(std::max<ssize_t>(0, bytes)));
    close(ends[0]);
  }
  ~Owner() { Kill(); }
  // Also the owner, whose parent it is.
  void Kill() {
    if (child_ <= 0) return;
    const FileDescriptor lock(open((path_ + "/.psring-lock").c_str(), O_RDWR | O_CLOEXEC));
    kill(child_, SIGKILL);
    EXPECT_EQ(waitpid(child_, nullptr, 0), child_);
    child_ = 0;
    // The owner ends a moment later, and its lock with it.
    struct flock held = {};
    EXPECT_TRUE(Eventually([&] {
      held = {};
      held.l_type = F_WRLCK;
      return !lock.valid() || (fcntl(lock.get(), F_OFD_GETLK, &held) == 0 && held.l_type == F_UNLCK);
    }));
  }
  const std::string& path() const { return path_; }  // empty: it could not create one

 private:
  pid_t child_ = 0;
  std::string path_;
};

TEST(TemporaryFolderTest, ThoseOfLiveProcessesStayAndThoseOfKilledOnesAreRemoved) {
  const auto outer = TemporaryFolder::Create();
  ASSERT_TRUE(outer.ok());
  Owner killed(outer->path(), false), alive(outer->path(), false);
  const auto own = TemporaryFolder::Create(outer->path()).value();
  killed.Kill();
  ASSERT_TRUE(fs::exists(killed.path()));
  ASSERT_TRUE(TemporaryFolder::Create(outer->path()).ok());
  EXPECT_FALSE(fs::exists(killed.path()));
  EXPECT_TRUE(fs::exists(alive.path() + "/records"));
  EXPECT_TRUE(fs::exists(own.path()));
}

// A container with the host's /tmp: its processes have numbers that mean others here, or none.
TEST(TemporaryFolderTest, ThoseOfAnotherPidNamespaceStay) {
  const auto outer = TemporaryFolder::Create();
  ASSERT_TRUE(outer.ok());
  Owner contained(outer->path(), true);
  if (contained.path().empty()) GTEST_SKIP() << "creating a PID namespace needs root";
  Owner outside(outer->path(), false);
  ASSERT_TRUE(TemporaryFolder::Create(outer->path()).ok());
  EXPECT_TRUE(fs::exists(contained.path() + "/records"));
  {
    const Owner other(outer->path(), true);  // removes nothing of ours
    EXPECT_TRUE(fs::exists(outside.path() + "/records"));
    EXPECT_TRUE(fs::exists(contained.path() + "/records"));
  }
  contained.Kill();
  ASSERT_TRUE(TemporaryFolder::Create(outer->path()).ok());
  EXPECT_TRUE(fs::exists(contained.path())) << "its namespace decides";
}

TEST(TemporaryFolderTest, DoubtfulFoldersStay) {
  const auto outer = TemporaryFolder::Create();
  ASSERT_TRUE(outer.ok());
  std::string own;  // this process's prefix
  {
    const auto folder = TemporaryFolder::Create(outer->path());
    ASSERT_TRUE(folder.ok());
    own = folder->path().substr(0, folder->path().size() - 6);
  }
  const pid_t ended = fork();
  if (ended == 0) _exit(0);
  ASSERT_EQ(waitpid(ended, nullptr, 0), ended);
  const std::string no_lock = own + "aaaaaa", link = own + "bbbbbb", lock_is_a_link = own + "cccccc",
                    of_another_host = outer->path() + "/psring-0123456789abcdef-dddddd",
                    of_an_earlier_version = absl::StrCat(outer->path(), "/psring-", ended, "-abcdef"),
                    of_others = absl::StrCat(outer->path(), "/other-", ended, "-abcdef");
  const std::vector<std::string> folders = {no_lock, lock_is_a_link, of_another_host, of_an_earlier_version,
                                            of_others};
  for (const std::string& path : folders) ASSERT_TRUE(fs::create_directory(path));
  fs::create_directory_symlink(of_others, link);
  std::ofstream(of_others + "/.psring-lock") << "";
  std::ofstream(of_another_host + "/.psring-lock") << "";
  fs::create_symlink(of_others + "/.psring-lock", lock_is_a_link + "/.psring-lock");
  ASSERT_TRUE(TemporaryFolder::Create(outer->path()).ok());
  for (const std::string& path : folders) EXPECT_TRUE(fs::exists(path)) << path;
  EXPECT_TRUE(fs::is_symlink(link));
}

TEST(TemporaryFolderTest, AnErrorNamesTheFolderTheReasonAndTheRemedy) {
  const char* const before = getenv("TMPDIR");
  const std::string saved = before == nullptr ? "" : before;
  setenv("TMPDIR", "/no/such/place", 1);
  EXPECT_EQ(TemporaryFolder::Create().status().message(),
            "cannot create a folder in /no/such/place (TMPDIR): No such file or directory; set TMPDIR to an "
            "existing folder that this user can write to");
  before == nullptr ? unsetenv("TMPDIR") : setenv("TMPDIR", saved.c_str(), 1);
  EXPECT_EQ(TemporaryFolder::Create("/proc", "use --transport tcp").status().message(),
            "cannot create a folder in /proc: No such file or directory; use --transport tcp");
}

}  // namespace
}  // namespace psring
