// Ranks, as threads, that find rank 0's store by a file.
#include <gtest/gtest.h>

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "common/base/read_file.h"
#include "common/rendezvous/meeting_file.h"
#include "common/rendezvous/rendezvous.h"
#include "tests/has.h"
#include "tests/on_ranks.h"
#include "tests/test_folder.h"
#include "tests/test_secret.h"

namespace psring {
namespace {

namespace fs = std::filesystem;

class FileRendezvousTest : public testing::Test {
 protected:
  std::string path() const { return folder_ / "meet"; }

  absl::StatusOr<std::unique_ptr<Rendezvous>> Join(int rank, int world_size,
                                                   absl::Duration timeout = absl::Seconds(20)) const {
    return Rendezvous::Join(
        {.rank = rank, .world_size = world_size, .file = path(), .secret = TestSecret(), .timeout = timeout});
  }

  // All ranks exchange values; those above 0 may look for the file before it exists.
  void ExpectToMeet(int ranks) const {
    OnRanks(ranks, [this, ranks](int thread) {
      const int rank = ranks - 1 - thread;
      const auto rendezvous = Join(rank, ranks);
      ASSERT_TRUE(rendezvous.ok()) << rendezvous.status();
      const auto values = (*rendezvous)->Exchange("word", absl::StrCat("of ", rank));
      ASSERT_TRUE(values.ok()) << values.status();
      for (int other = 0; other < ranks; ++other) EXPECT_EQ((*values)[other], absl::StrCat("of ", other));
    });
    EXPECT_FALSE(std::filesystem::exists(path()));
  }

  const TestFolder folder_;
};

TEST_F(FileRendezvousTest, RanksMeetAndRemoveTheFile) {
  for (const int ranks : {1, 2, 7}) ExpectToMeet(ranks);
}

TEST_F(FileRendezvousTest, ALeftoverFileIsReplaced) {
  std::string leftover;
  {
    const auto zero = Join(0, 1);
    ASSERT_TRUE(zero.ok()) << zero.status();
    leftover = ReadFile(path()).value();
  }
  folder_.Put("meet", leftover);
  ExpectToMeet(2);
}

TEST_F(FileRendezvousTest, OtherFilesAreNotChanged) {
  folder_.Put("meet", "my thesis");
  EXPECT_THAT(Join(0, 2).status().message(), Has("is not a rendezvous file"));
  EXPECT_EQ(ReadFile(path()).value(), "my thesis");
  fs::remove(path());
  for (const bool is_link : {true, false}) {
    is_link ? fs::create_symlink("elsewhere", path()) : (void)fs::create_directory(path());
    for (const int rank : {0, 1}) EXPECT_FALSE(Join(rank, 2).ok());
    fs::remove(path());
  }
}

TEST_F(FileRendezvousTest, AFileOfRankZeroWithoutAnAddressIsAnErrorOrAwaited) {
  const auto zero = MeetingFile::Publish(path(), {.host = "127.0.0.1", .port = 1}).value();
  EXPECT_EQ(ReadMeetingFile(path())->port, 1);
  for (const char* address : {"nowhere\n", "h:70000\n", "\n"}) {
    folder_.Put("meet", absl::StrCat("psring rendezvous\n", address));
    EXPECT_TRUE(absl::IsInvalidArgument(Join(1, 2).status())) << address;
  }
  for (const char* text : {"", "psring rendezvous\n127.0.0.1:2", "something else\n"}) {
    folder_.Put("meet", text);
    EXPECT_TRUE(absl::IsNotFound(ReadMeetingFile(path()).status())) << text;
  }
}

TEST_F(FileRendezvousTest, ARankZeroThatNeverComesIsNamed) {
  EXPECT_EQ(Join(1, 3, absl::Milliseconds(200)).status(),
            absl::DeadlineExceededError(absl::StrCat("waited 0.2 s for rank 0 at the rendezvous file ",
                                                     path(), "; rank 0 never joined")));
}

TEST_F(FileRendezvousTest, ASecondRunOnTheSameFileIsRejected) {
  const auto zero = Join(0, 2), one = Join(1, 2);
  ASSERT_TRUE(zero.ok() && one.ok()) << zero.status() << one.status();
  for (const int rank : {0, 1}) {
    const absl::Status second = Join(rank, 2).status();
    EXPECT_TRUE(absl::IsAlreadyExists(second)) << second;
    EXPECT_THAT(second.message(), Has(", which is taken by ", "; concurrent runs need different files"));
  }
}

}  // namespace
}  // namespace psring
