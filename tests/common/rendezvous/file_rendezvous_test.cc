// The rendezvous in a file: ranks are threads, or processes if they must die.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/deadline.h"
#include "common/base/own_program.h"
#include "common/rendezvous/file_store.h"
#include "common/rendezvous/rendezvous.h"
#include "tests/has.h"

extern char** environ;

namespace psring {
namespace {

namespace fs = std::filesystem;

class FileRendezvousTest : public testing::Test {
 protected:
  FileRendezvousTest() {
    std::string name = (fs::temp_directory_path() / "psring-file-XXXXXX").string();
    EXPECT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  ~FileRendezvousTest() override { fs::remove_all(folder_); }

  std::string path() const { return (folder_ / "meet").string(); }

  absl::StatusOr<std::unique_ptr<Rendezvous>> TryJoin(int rank, int world_size,
                                                      absl::Duration timeout = absl::Seconds(20)) const {
    RendezvousOptions options;
    options.rank = rank;
    options.world_size = world_size;
    options.file = path();
    options.timeout = timeout;
    return Rendezvous::Join(options);
  }
  std::unique_ptr<Rendezvous> Join(int rank, int world_size,
                                   absl::Duration timeout = absl::Seconds(20)) const {
    auto rendezvous = TryJoin(rank, world_size, timeout);
    EXPECT_TRUE(rendezvous.ok()) << rendezvous.status();
    return rendezvous.ok() ? *std::move(rendezvous) : nullptr;
  }

  fs::path folder_;
};

void OnFileRanks(int ranks, const std::function<void(int)>& body) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) threads.emplace_back(body, rank);
  for (std::thread& thread : threads) thread.join();
}

TEST_F(FileRendezvousTest, RanksExchangeSetAndGetAndRemoveTheFile) {
  OnFileRanks(7, [&](int rank) {
    const auto rendezvous = Join(rank, 7);
    ASSERT_NE(rendezvous, nullptr);
    for (int round = 0; round < 5; ++round) {
      const auto values = rendezvous->Exchange("round", absl::StrCat(rank, ".", round)).value();
      for (int other = 0; other < 7; ++other) EXPECT_EQ(values[other], absl::StrCat(other, ".", round));
    }
    const std::string large(100'000, static_cast<char>('a' + rank));
    EXPECT_TRUE(rendezvous->Set(absl::StrCat("key ", rank), large).ok());
    const int next = (rank + 1) % 7;
    const auto value = rendezvous->Get(absl::StrCat("key ", next), "the next rank").value();
    EXPECT_EQ(value, std::string(100'000, static_cast<char>('a' + next)));
    EXPECT_TRUE(rendezvous->Exchange("end", "").ok());
  });
  EXPECT_FALSE(fs::exists(path()));
}

TEST_F(FileRendezvousTest, PartsExchangeSeparately) {
  OnFileRanks(4, [&](int rank) {
    const auto rendezvous = Join(rank, 4);
    ASSERT_NE(rendezvous, nullptr);
    const std::vector<int> ranks = rank < 2 ? std::vector<int>{1, 0} : std::vector<int>{2, 3};
    const auto part = MakePartRendezvous(*rendezvous, ranks, absl::StrCat("half ", rank / 2));
    const auto values = part->Exchange("x", absl::StrCat(rank)).value();
    EXPECT_EQ(values[0], absl::StrCat(ranks[0]));
    EXPECT_EQ(values[1], absl::StrCat(ranks[1]));
    EXPECT_TRUE(rendezvous->Exchange("end", "").ok());
  });
}

TEST_F(FileRendezvousTest, ALeftoverFileIsReplaced) {
  for (int run = 0; run < 3; ++run) {
    // A process that joined as every rank, exchanged a value and died.
    const std::string self = *OwnProgram();
    const std::string filter = "--gtest_filter=*DISABLED_JoinsAndDies";
    std::string variable = absl::StrCat("PSRING_TEST_FILE=", path());
    char* argv[] = {const_cast<char*>(self.c_str()), const_cast<char*>(filter.c_str()),
                    const_cast<char*>("--gtest_also_run_disabled_tests"), nullptr};
    std::vector<char*> variables;
    for (char** entry = environ; *entry != nullptr; ++entry) variables.push_back(*entry);
    variables.push_back(variable.data());
    variables.push_back(nullptr);
    pid_t child = 0;
    ASSERT_EQ(posix_spawn(&child, self.c_str(), nullptr, nullptr, argv, variables.data()), 0);
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status)) << status;
    ASSERT_TRUE(fs::exists(path())) << "there is no leftover file";

    OnFileRanks(2, [&](int rank) {
      const auto rendezvous = Join(rank, 2);
      ASSERT_NE(rendezvous, nullptr);
      EXPECT_EQ(rendezvous->Exchange("word", "new").value()[1 - rank], "new");
    });
    EXPECT_FALSE(fs::exists(path()));
  }
}

TEST(FileRendezvousChild, DISABLED_JoinsAndDies) {
  const char* const path = getenv("PSRING_TEST_FILE");
  if (path == nullptr) GTEST_SKIP();
  std::vector<std::unique_ptr<Rendezvous>> ranks;
  OnFileRanks(2, [&](int rank) {
    RendezvousOptions options;
    options.rank = rank;
    options.world_size = 2;
    options.file = path;
    auto rendezvous = Rendezvous::Join(options);
    if (rendezvous.ok()) (void)(*rendezvous)->Exchange("word", "old");
    static std::atomic<int> done{0};
    if (++done == 2) kill(getpid(), SIGKILL);
    ::pause();
  });
}

TEST_F(FileRendezvousTest, AnUnfinishedEntryIsIgnored) {
  const auto zero = Join(0, 2);
  {
    std::ofstream half(path(), std::ios::app);
    half << "half an ent";
  }
  const auto one = Join(1, 2);
  ASSERT_NE(one, nullptr);
  std::thread other([&] { EXPECT_TRUE(one->Exchange("x", "b").ok()); });
  const auto values = zero->Exchange("x", "a");
  other.join();
  ASSERT_TRUE(values.ok()) << values.status();
  EXPECT_EQ(*values, (std::vector<std::string>{"a", "b"}));
}

TEST_F(FileRendezvousTest, AWrongNumberOfBytesIsAnErrorBeforeAnythingIsAllocated) {
  const auto zero = Join(0, 2);
  ASSERT_TRUE(zero->Set("key", "value").ok());
  const FileDescriptor file(open(path().c_str(), O_RDWR | O_CLOEXEC));
  constexpr off_t kEndAt = 32;  // in the header
  for (const uint64_t end : {fs::file_size(path()) + 1, uint64_t{1} << 33, uint64_t{1} << 40, ~uint64_t{0}}) {
    // A file of that size takes no space.
    if (end == uint64_t{1} << 40) {
      ASSERT_EQ(ftruncate(file.get(), static_cast<off_t>(end)), 0);
    }
    ASSERT_EQ(pwrite(file.get(), &end, sizeof end, kEndAt), static_cast<ssize_t>(sizeof end));
    const absl::Status status = zero->Set("key", "other");
    EXPECT_EQ(status.message(), absl::StrCat("rendezvous file ", path(), " is corrupt; remove it")) << end;
  }
}

TEST_F(FileRendezvousTest, AValueBeyondTheLimitOfTheFileIsAnError) {
  const auto zero = Join(0, 2);
  const absl::Status status = zero->Set("key", std::string(FileStore::kMaxBytes, 'x'));
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_TRUE(zero->Set("key", "small").ok());
  EXPECT_EQ(*zero->Get("key", "it"), "small");
}

TEST_F(FileRendezvousTest, AFailureWithAnInvalidCodeIsStillAFailure) {
  const auto zero = Join(0, 2);
  auto other = FileStore::Open(path(), absl::Seconds(20)).value();
  for (const char* code : {"0", "-1", "17", "x"}) {
    const std::string name = absl::StrCat("code ", code);
    EXPECT_TRUE(other
                    ->Update([&](const FileStore::Values&) -> absl::StatusOr<FileStore::Values> {
                      return FileStore::Values{
                          {absl::StrCat("failed/", name, "/0"), absl::StrCat(code, " it \x1b failed")}};
                    })
                    .ok());
    EXPECT_EQ(zero->Exchange(name, "").status(), absl::UnknownError("it \\x1b failed"));
  }
}

TEST_F(FileRendezvousTest, OtherFilesAreNotChanged) {
  std::ofstream(path()) << "my thesis";
  EXPECT_THAT(TryJoin(0, 2).status().message(), Has("is not a rendezvous file"));
  std::string text;
  std::getline(std::ifstream(path()), text);
  EXPECT_EQ(text, "my thesis");
  fs::remove(path());
  fs::create_symlink("elsewhere", path());
  EXPECT_FALSE(TryJoin(0, 2).ok());
  fs::remove(path());
  fs::create_directory(path());
  EXPECT_FALSE(TryJoin(0, 2).ok());
}

TEST_F(FileRendezvousTest, DeadlineNamesTheMissingRanks) {
  const auto one = Join(1, 3, absl::Milliseconds(200));
  const absl::Status late = one->Exchange("begin", "").status();
  EXPECT_THAT(std::string(late.message()),
              testing::StartsWith("waited 0.2 s for ranks 0 and 2 at exchange 'begin'; ranks "
                                  "0 and 2 never joined; joined: rank 1 ("));
  EXPECT_EQ(one->Get("ps/0", "the parameter server").status().message(),
            "waited 0.2 s for the parameter server ('ps/0')");
  // A failed exchange stays failed, for all of its ranks.
  EXPECT_EQ(Join(0, 3)->Exchange("begin", "").status().message(), late.message());
}

TEST_F(FileRendezvousTest, ARankThatLeavesOrIsRejectedEndsTheWaitsForIt) {
  const auto zero = Join(0, 2);
  const absl::Status other_size = TryJoin(1, 3).status();
  EXPECT_THAT(other_size.message(), Has("is 3, that of rank 0"));
  EXPECT_EQ(zero->Exchange("begin", "").status().message(), other_size.message());
  EXPECT_EQ(TryJoin(0, 2).status().code(), absl::StatusCode::kAlreadyExists);
  Join(1, 2).reset();
  EXPECT_THAT(zero->Exchange("end", "").status().message(), Has("has left"));
  EXPECT_THAT(TryJoin(1, 2).status().message(), Has("which has ended"));
}

TEST_F(FileRendezvousTest, ADeadRankEndsTheWaitsForIt) {
  const auto zero = Join(0, 2);
  const pid_t child = fork();
  if (child == 0) {
    const auto one = TryJoin(1, 2);
    if (one.ok()) kill(getpid(), SIGKILL);
    _exit(1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status));
  const MonotonicTime begin = MonotonicNow();
  EXPECT_THAT(zero->Exchange("begin", "").status().message(), Has(absl::StrCat(":", child, ") has died")));
  EXPECT_THAT(zero->Get("ps/0", "the server").status().message(), Has("has died"));
  EXPECT_LT(MonotonicNow() - begin, absl::Seconds(15));
}

TEST_F(FileRendezvousTest, WaitingForALockHasADeadline) {
  const auto zero = Join(0, 2, absl::Milliseconds(200));
  auto other = FileStore::Open(path(), absl::Seconds(20)).value();
  absl::Status waited;
  EXPECT_TRUE(other
                  ->Update([&](const FileStore::Values&) -> absl::StatusOr<FileStore::Values> {
                    waited = zero->Set("key", "value");
                    return FileStore::Values();
                  })
                  .ok());
  EXPECT_EQ(waited.code(), absl::StatusCode::kDeadlineExceeded) << waited;
  EXPECT_THAT(waited.message(), Has(path()));
}

}  // namespace
}  // namespace psring
