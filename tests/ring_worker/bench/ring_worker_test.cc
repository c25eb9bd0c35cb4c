// The real ring_worker, one process per rank, over TCP with the real rendezvous.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "common/rendezvous/rendezvous.h"
#include "tests/eventually.h"
#include "tests/test_secret.h"

extern char** environ;

namespace psring {
namespace {

using testing::AllOf;
using testing::AnyOf;
using testing::HasSubstr;

// A child process with its output in files. Killed with its owner.
class Child {
 public:
  Child(std::vector<std::string> arguments, const std::string& output_prefix)
      : out_(output_prefix + ".out"), err_(output_prefix + ".err") {
    arguments.insert(arguments.begin(), RING_WORKER);
    std::vector<char*> argv;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    posix_spawn_file_actions_t files;
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_addopen(&files, 1, out_.c_str(), O_CREAT | O_TRUNC | O_WRONLY, 0600);
    posix_spawn_file_actions_addopen(&files, 2, err_.c_str(), O_CREAT | O_TRUNC | O_WRONLY, 0600);
    EXPECT_EQ(posix_spawn(&pid_, RING_WORKER, &files, nullptr, argv.data(), environ), 0);
    posix_spawn_file_actions_destroy(&files);
  }
  Child(const Child&) = delete;
  ~Child() {
    if (exited_) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }

  void Signal(int signal) { kill(pid_, signal); }

  // The exit code; -1 if it was killed or has not ended within `timeout`.
  int Wait(absl::Duration timeout) {
    int status = 0;
    exited_ = exited_ || Eventually([&] { return waitpid(pid_, &status, WNOHANG) == pid_; }, timeout);
    return exited_ && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

  std::string out() const { return Read(out_); }
  std::string err() const { return Read(err_); }

 private:
  static std::string Read(const std::string& path) {
    std::stringstream text;
    text << std::ifstream(path).rdbuf();
    return text.str();
  }

  std::string out_, err_;
  pid_t pid_ = -1;
  bool exited_ = false;
};

int DataLines(const std::string& table) {
  int lines = 0;
  for (absl::string_view line : absl::StrSplit(table, '\n', absl::SkipEmpty())) lines += line[0] != '#';
  return lines;
}

class RingWorkerTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = testing::TempDir() + "/ring_worker_XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
    StartStore();
    setenv("PSRING_STORE_HOSTED", "1", 1);
  }
  void TearDown() override { unsetenv("PSRING_STORE_HOSTED"); }

  // A store remembers the ranks of its job, so every job has its own.
  void StartStore() {
    auto store = RendezvousServer::Start("127.0.0.1", 0, TestSecret());
    ASSERT_TRUE(store.ok()) << store.status();
    store_ = *std::move(store);
  }

  std::vector<std::unique_ptr<Child>> Start(int ranks, const std::vector<std::string>& flags) {
    StartStore();
    std::vector<std::unique_ptr<Child>> children;
    for (int rank = 0; rank < ranks; ++rank) {
      std::vector<std::string> arguments = {absl::StrCat("--rendezvous=tcp://127.0.0.1:", store_->port()),
                                            absl::StrCat("--rank=", rank),
                                            absl::StrCat("--world_size=", ranks)};
      arguments.insert(arguments.end(), flags.begin(), flags.end());
      children.push_back(std::make_unique<Child>(arguments, absl::StrCat(folder_, "/rank", rank)));
    }
    return children;
  }

  // Waits for the first row of the table, during which all ranks make calls. The next size follows.
  static void WaitForFirstRow(const Child& rank_zero) {
    ASSERT_TRUE(Eventually([&] { return DataLines(rank_zero.out()) > 0; })) << rank_zero.err();
  }

  std::string folder_;
  std::unique_ptr<RendezvousServer> store_;
};

TEST_F(RingWorkerTest, RankZeroPrintsATableOfCheckedResults) {
  for (const char* algorithm : {"ring", "star"}) {
    auto children = Start(3, {absl::StrCat("--algorithm=", algorithm), "--transport=tcp",
                              "--bytes=0,4,12K,1M", "--iters=3", "--warmup_iters=1"});
    for (auto& child : children) EXPECT_EQ(child->Wait(absl::Seconds(60)), 0) << child->err();
    const std::string table = children[0]->out();
    EXPECT_THAT(table, AllOf(HasSubstr(absl::StrCat("native ", algorithm, " over tcp")), HasSubstr("12288"),
                             HasSubstr("1048576"), HasSubstr("#wrong"), HasSubstr("Avg bus bandwidth")));
    EXPECT_EQ(DataLines(table), 4) << table;
    EXPECT_EQ(children[1]->out(), "");
  }
}

TEST_F(RingWorkerTest, MeasuresSeveralCombinationsInTurn) {
  auto children = Start(
      2, {"--combination=all_reduce/native/ring/tcp/private",
          "--combination=all_reduce/native/star/tcp/shared", "--bytes=4K,64K", "--iters=3", "--limits"});
  for (auto& child : children) EXPECT_EQ(child->Wait(absl::Seconds(60)), 0) << child->err();
  const std::string table = children[0]->out();
  EXPECT_THAT(table, AllOf(HasSubstr("native ring over tcp, private buffers"),
                           HasSubstr("native star over tcp, shared buffers")));
  for (const char* limit : {"limit shared all_reduce", "limit tcp", "limit unix", "limit copy"}) {
    EXPECT_THAT(table, HasSubstr(limit));
  }
  EXPECT_EQ(DataLines(table), 4) << table;
}

TEST_F(RingWorkerTest, WithoutACheckTheWrongColumnIsNotAvailable) {
  auto children = Start(2, {"--transport=tcp", "--bytes=4K", "--iters=2", "--check=0"});
  for (auto& child : children) EXPECT_EQ(child->Wait(absl::Seconds(60)), 0) << child->err();
  EXPECT_THAT(children[0]->out(), HasSubstr("N/A"));
}

TEST_F(RingWorkerTest, JsonLinesContainEverySample) {
  auto children = Start(2, {"--transport=tcp", "--bytes=4K", "--iters=7", "--json"});
  for (auto& child : children) EXPECT_EQ(child->Wait(absl::Seconds(60)), 0) << child->err();
  EXPECT_THAT(children[0]->out(), AllOf(HasSubstr("{\"event\":\"start\""), HasSubstr("\"transport\":\"tcp\""),
                                        HasSubstr("{\"event\":\"row\""), HasSubstr("\"wrong\":0"),
                                        HasSubstr("{\"event\":\"done\"}")));
}

TEST_F(RingWorkerTest, DescribeListsWhatThisBuildOffers) {
  Child child({"--describe"}, folder_ + "/describe");
  EXPECT_EQ(child.Wait(absl::Seconds(20)), 0);
  EXPECT_THAT(child.out(), AllOf(HasSubstr("\"all_reduce\""), HasSubstr("\"native\""), HasSubstr("\"ring\""),
                                 HasSubstr("\"available\"")));
}

TEST_F(RingWorkerTest, SumsOfMoreThan64RanksAreChecked) {
  auto children = Start(66, {"--algorithm=ring", "--transport=tcp", "--bytes=4K", "--iters=1",
                             "--warmup_iters=0", "--agg_iters=1"});
  for (auto& child : children) EXPECT_EQ(child->Wait(absl::Seconds(60)), 0) << child->err();
  EXPECT_EQ(DataLines(children[0]->out()), 1) << children[0]->out();
}

TEST_F(RingWorkerTest, AKilledRankIsNamedAndEndsAllOthers) {
  // mixed: pairs of ranks share memory, and there is TCP between pairs.
  for (const auto& [victim, transport] : {std::pair(0, "tcp"), std::pair(2, "tcp"), std::pair(0, "shm"),
                                          std::pair(2, "shm"), std::pair(1, "mixed")}) {
    SCOPED_TRACE(absl::StrCat("rank ", victim, " over ", transport));
    const bool mixed = transport == std::string("mixed");
    auto children =
        Start(4, {absl::StrCat("--transport=", mixed ? "auto" : transport),
                  mixed ? "--ranks_per_node=2" : "--ranks_per_node=0", "--bytes=4K,16M", "--iters=40"});
    WaitForFirstRow(*children[0]);
    children[victim]->Signal(SIGKILL);
    for (int rank = 0; rank < 4; ++rank) {
      if (rank == victim) continue;
      EXPECT_EQ(children[rank]->Wait(absl::Seconds(20)), 1) << "rank " << rank;
      EXPECT_THAT(children[rank]->err(), HasSubstr(absl::StrCat("rank ", victim))) << "rank " << rank;
      // In a call, or while the ranks meet before one.
      EXPECT_THAT(children[rank]->err(),
                  AnyOf(AllOf(AnyOf(HasSubstr("closed its connection"), HasSubstr("has ended")),
                              HasSubstr("all_reduce, native")),
                        HasSubstr("has died while others waited for it")))
          << "rank " << rank;
    }
  }
}

TEST_F(RingWorkerTest, AStoppedRankIsNamedAtTheTimeout) {
  for (const char* transport : {"tcp", "shm"}) {
    auto children =
        Start(2, {absl::StrCat("--transport=", transport), "--bytes=4K,16M", "--iters=40", "--timeout=1"});
    WaitForFirstRow(*children[0]);
    children[1]->Signal(SIGSTOP);
    EXPECT_EQ(children[0]->Wait(absl::Seconds(20)), 1) << transport;
    // In a call, or in the exchange before one.
    EXPECT_THAT(children[0]->err(), AllOf(AnyOf(HasSubstr("rank 0 waited 1"), HasSubstr(": waited 1 s")),
                                          HasSubstr("for rank 1")))
        << transport;
  }
}

TEST_F(RingWorkerTest, AMissingRankIsNamed) {
  StartStore();
  Child zero({absl::StrCat("--rendezvous=tcp://127.0.0.1:", store_->port()), "--rank=0", "--world_size=2",
              "--timeout=1"},
             folder_ + "/zero");
  EXPECT_EQ(zero.Wait(absl::Seconds(20)), 1);
  EXPECT_THAT(zero.err(), HasSubstr("rank 1"));
  EXPECT_EQ(zero.out(), "");
}

TEST_F(RingWorkerTest, RanksReportDifferentAlgorithms) {
  Child zero({absl::StrCat("--rendezvous=tcp://127.0.0.1:", store_->port()), "--rank=0", "--world_size=2",
              "--algorithm=ring"},
             folder_ + "/zero");
  Child one({absl::StrCat("--rendezvous=tcp://127.0.0.1:", store_->port()), "--rank=1", "--world_size=2",
             "--algorithm=star"},
            folder_ + "/one");
  for (Child* child : {&zero, &one}) {
    EXPECT_NE(child->Wait(absl::Seconds(60)), 0);
    EXPECT_THAT(child->err(), AllOf(HasSubstr("--algorithm"), HasSubstr("ring"), HasSubstr("star")));
  }
}

TEST_F(RingWorkerTest, BadInputIsOneLineAndExitCodeTwo) {
  const std::string store = absl::StrCat("--rendezvous=tcp://127.0.0.1:", store_->port());
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{"--algorithm=rign"}, "ring, star"},
      {{"--backend=glo"}, "gloo"},
      {{"--transport=pigeon"}, "tcp"},
      {{"--buffers=public"}, "private|huge|shared"},
      {{"--combination=all_reduce/native"}, "COLLECTIVE/BACKEND"},
      {{"--datatype=int8"}, "float"},
      {{"--op=prod"}, "sum"},
      {{"--bytes=4X"}, "'4X' is not a size"},
      {{"--bytes=-1"}, "'-1' is not a size"},
      {{"--iters=0"}, "--iters"},
      {{"--debug.segment=2G"}, "--debug.segment"},
      {{"--iter=3"}, "--iters"},
      {{store, "--rank=2", "--world_size=2"}, "2"},
      {{"--rendezvous=udp://here"}, "udp"},
  };
  for (const auto& [arguments, wanted] : cases) {
    Child child(arguments, folder_ + "/bad");
    EXPECT_EQ(child.Wait(absl::Seconds(20)), 2) << arguments[0];
    const std::string line = child.err();
    EXPECT_THAT(line, AllOf(HasSubstr("ring_worker: "), HasSubstr(wanted)));
    EXPECT_EQ(std::count(line.begin(), line.end(), '\n'), 1) << line;
  }
}

}  // namespace
}  // namespace psring
