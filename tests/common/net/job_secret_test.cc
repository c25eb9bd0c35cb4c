// Where a process gets the secret of its job.
#include "common/net/job_secret.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <map>
#include <set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/has.h"
#include "tests/on_ranks.h"
#include "tests/test_folder.h"
#include "tests/test_secret.h"

namespace psring {
namespace {

constexpr char kDigits[] = "0123456789abcdef0123456789ABCDEF";

class JobSecretTest : public testing::Test {
 protected:
  absl::StatusOr<JobSecret> Load(const std::map<std::string, std::string>& variables) {
    return LoadJobSecret([&](const char* name) -> std::optional<std::string> {
      const auto found = variables.find(name);
      if (found == variables.end()) return std::nullopt;
      return found->second;
    });
  }
  std::string File(const std::string& text, mode_t mode = 0600) {
    std::filesystem::remove(folder_ / "file");
    const std::string path = folder_.Put("file", text);
    EXPECT_EQ(chmod(path.c_str(), mode), 0);
    return path;
  }
  // The error of this file.
  std::string Refused(const std::string& path) {
    const absl::StatusOr<JobSecret> secret = Load({{"PSRING_SECRET_FILE", path}});
    EXPECT_TRUE(absl::IsFailedPrecondition(secret.status())) << secret.status();
    return std::string(secret.status().message());
  }

  const TestFolder folder_;
};

TEST_F(JobSecretTest, TheVariablePrecedesTheFiles) {
  const auto secret =
      Load({{"PSRING_SECRET", kTestSecret}, {"PSRING_SECRET_FILE", File(kDigits)}, {"HOME", folder_.path()}})
          .value();
  EXPECT_EQ(secret.Hex(), kTestSecret);
  EXPECT_EQ(SecretEnvironment(secret), absl::StrCat("PSRING_SECRET=", kTestSecret));
}

TEST_F(JobSecretTest, ReadsTheNamedFile) {
  for (const char* end : {"", "\n", "\r\n"}) {
    const auto secret =
        Load({{"PSRING_SECRET_FILE", File(std::string(kDigits) + end)}, {"HOME", folder_.path()}}).value();
    EXPECT_EQ(secret.Hex(), "0123456789abcdef0123456789abcdef");
  }
  const std::string link = folder_ / "link";  // as in a mounted Kubernetes Secret
  std::filesystem::create_symlink("file", link);
  EXPECT_TRUE(Load({{"PSRING_SECRET_FILE", link}}).ok());
}

TEST_F(JobSecretTest, RejectsInvalidTexts) {
  const absl::Status status = Load({{"PSRING_SECRET", "letmein"}}).status();
  EXPECT_EQ(status, absl::InvalidArgumentError("PSRING_SECRET is not 32 hexadecimal digits"));
  for (const std::string& text :
       {std::string(), std::string(32, 'g'), std::string(33, 'a'), std::string(4096, 'a')}) {
    EXPECT_THAT(Refused(File(text)), Has("is not 32 hexadecimal digits"));
  }
  EXPECT_THAT(Refused(File(std::string(4097, 'a'))), Has("is longer than 4096 bytes"));
}

TEST_F(JobSecretTest, RejectsFilesThatOthersCanRead) {
  for (const mode_t mode : {0604, 0644, 0606, 0660, 0601}) {
    const std::string path = File(kDigits, mode);
    EXPECT_THAT(Refused(path), Has(absl::StrCat("is accessible to other users; run: chmod 600 ", path)));
  }
  EXPECT_TRUE(Load({{"PSRING_SECRET_FILE", File(kDigits, 0400)}}).ok());
}

TEST_F(JobSecretTest, AFileOfRootMayBeReadableByAGroupOfThisProcess) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root";
  const std::string path = File(kDigits, 0640);
  ASSERT_EQ(chown(path.c_str(), 0, getegid()), 0);
  EXPECT_TRUE(Load({{"PSRING_SECRET_FILE", path}}).ok());
  ASSERT_EQ(chown(path.c_str(), 0, 54321), 0);
  EXPECT_THAT(Refused(path), Has("is accessible to other users"));
  ASSERT_EQ(chmod(path.c_str(), 0600), 0);
  ASSERT_EQ(chown(path.c_str(), 54321, 0), 0);
  EXPECT_THAT(Refused(path), Has("belongs to user 54321"));
}

TEST_F(JobSecretTest, RejectsWhatIsNotAFile) {
  EXPECT_THAT(Refused(folder_.path()), Has("is not a regular file"));
  EXPECT_THAT(Refused("/dev/zero"), Has("is not a regular file"));
  const std::string fifo = folder_ / "fifo";
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  EXPECT_THAT(Refused(fifo), Has("is not a regular file"));
  EXPECT_THAT(Refused(folder_ / "none"), Has("there is no such file"));
}

TEST_F(JobSecretTest, ProcessesThatStartAtOnceCreateOneFile) {
  std::vector<std::string> secrets(8);
  OnRanks(8, [&](int i) { secrets[i] = Load({{"HOME", folder_.path()}}).value().Hex(); });
  EXPECT_EQ(std::set<std::string>(secrets.begin(), secrets.end()).size(), 1u);
  struct stat made = {};
  ASSERT_EQ(stat((folder_ / ".config/psring").c_str(), &made), 0);
  EXPECT_EQ(made.st_mode & 07777, 0700u);
  ASSERT_EQ(stat((folder_ / ".config/psring/secret").c_str(), &made), 0);
  EXPECT_EQ(made.st_mode & 07777, 0600u);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_ / ".config/psring"), {}), 1);
}

TEST_F(JobSecretTest, UsesTheConfigurationFolderOfTheUser) {
  ASSERT_TRUE(Load({{"XDG_CONFIG_HOME", folder_ / "xdg"}, {"HOME", folder_.path()}}).ok());
  EXPECT_TRUE(std::filesystem::exists(folder_ / "xdg/psring/secret"));
}

TEST_F(JobSecretTest, WithoutAHomeTheErrorSaysWhatToSet) {
  EXPECT_THAT(Load({}).status().message(), Has("set PSRING_SECRET_FILE to a file"));
  const std::string file = File("");
  EXPECT_THAT(Load({{"HOME", file}}).status().message(), Has("set PSRING_SECRET_FILE to a file"));
}

TEST(JobSecret, DerivedSecretsDiffer) {
  const JobSecret secret = TestSecret();
  EXPECT_EQ(secret.Derived("a").Hex(), secret.Derived("a").Hex());
  EXPECT_NE(secret.Derived("a").Hex(), secret.Derived("b").Hex());
  EXPECT_NE(secret.Derived("a").Hex(), OtherSecret().Derived("a").Hex());
  EXPECT_NE(JobSecret::Random().Hex(), JobSecret::Random().Hex());
  EXPECT_FALSE(JobSecret().is_set());
  EXPECT_EQ(JobSecret().Hex(), "");
}

}  // namespace
}  // namespace psring
