#include "common/base/read_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/test_folder.h"

namespace psring {
namespace {

namespace fs = std::filesystem;

class ReadFileTest : public testing::Test {
 protected:
  ReadFileTest() { folder_.Put("file", "12345"); }

  std::string Path(const std::string& name) const { return folder_ / name; }

  const TestFolder folder_;
};

TEST_F(ReadFileTest, ReadsARegularFile) {
  EXPECT_EQ(ReadFile(Path("file")).value(), "12345");
  EXPECT_EQ(ReadFile(Path("file"), 5).value(), "12345");
  EXPECT_TRUE(absl::IsNotFound(ReadFile(Path("absent")).status()));
}

TEST_F(ReadFileTest, NamesTheFileItsSizeAndTheLimit) {
  EXPECT_EQ(ReadFile(Path("file"), 4).status().message(),
            absl::StrCat("cannot read ", Path("file"), ": it has 5 bytes; the limit is 4"));
}

TEST_F(ReadFileTest, ALargeFileOfNoContentIsNotAllocated) {
  fs::resize_file(Path("file"), uint64_t{1} << 42);
  EXPECT_TRUE(absl::StrContains(ReadFile(Path("file")).status().message(), "4398046511104 bytes"));
}

TEST_F(ReadFileTest, ReadsFilesOfTheKernelUpToTheLimit) {
  EXPECT_TRUE(absl::StrContains(ReadFile("/proc/self/status").value(), "VmHWM"));
  EXPECT_EQ(ReadFile("/proc/self/status", 10).status().message(),
            "cannot read /proc/self/status: it has more than 10 bytes; the limit is 10");
}

TEST_F(ReadFileTest, RejectsWhatIsNotARegularFileWithoutWaiting) {
  ASSERT_EQ(mkfifo(Path("fifo").c_str(), 0600), 0);
  fs::create_symlink("/dev/zero", Path("link"));
  for (const auto& [path, kind] :
       {std::pair(Path("fifo"), "a FIFO"), std::pair(Path("link"), "a device"),
        std::pair(Path(""), "a folder"), std::pair(std::string("/dev/zero"), "a device")}) {
    EXPECT_EQ(ReadFile(path).status().message(),
              absl::StrCat("cannot read ", path, ": it is ", kind, ", not a regular file"));
  }
}

TEST_F(ReadFileTest, FollowsALinkOnlyIfItMay) {
  fs::create_symlink("file", Path("link"));
  EXPECT_EQ(ReadFile(Path("link")).value(), "12345");
  EXPECT_EQ(ReadFile(Path("link"), 5, SymbolicLinks::kReject).status().message(),
            absl::StrCat("cannot read ", Path("link"), ": it is a symbolic link"));
}

}  // namespace
}  // namespace psring
