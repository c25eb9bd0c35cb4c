// The real ring_worker, one process per rank, over TCP with the real rendezvous.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/rendezvous/rendezvous.h"
#include "tests/eventually.h"
#include "tests/experiments/started.h"
#include "tests/has.h"
#include "tests/test_secret.h"

namespace psring {
namespace {

using testing::AllOf;
using testing::AnyOf;

int DataLines(const std::string& table) {
  int lines = 0;
  for (absl::string_view line : absl::StrSplit(table, '\n', absl::SkipEmpty())) lines += line[0] != '#';
  return lines;
}

// Reads the output of `one` to its end; false: it has not ended within 20 s, less than its timeouts.
bool Ends(Started& one) {
  return Eventually([&] { return !one.Look(); }, absl::Seconds(20));
}

class RingWorkerTest : public testing::Test {
 protected:
  RingWorkerTest() {
    StartStore();
    setenv("PSRING_STORE_HOSTED", "1", 1);
  }
  ~RingWorkerTest() override { unsetenv("PSRING_STORE_HOSTED"); }

  // A store remembers the ranks of its job, so every job has its own.
  void StartStore() { store_ = *RendezvousServer::Start("127.0.0.1", 0, TestSecret()); }

  std::unique_ptr<Started> StartRank(int rank, int ranks, const std::string& flags) const {
    return std::make_unique<Started>(
        Command(RING_WORKER, absl::StrCat("--rendezvous=tcp://127.0.0.1:", store_->port(), " --rank=", rank,
                                          " --world_size=", ranks, " ", flags)),
        std::vector<std::string>());
  }

  StartedOnes Start(int ranks, const std::string& flags) {
    StartStore();
    StartedOnes started;
    for (int rank = 0; rank < ranks; ++rank) started.push_back(StartRank(rank, ranks, flags));
    return started;
  }

  // The output of rank 0.
  std::string Run(int ranks, const std::string& flags) {
    StartedOnes started = Start(ranks, flags);
    EXPECT_TRUE(WaitForAll(started));
    for (const auto& one : started) EXPECT_TRUE(one->Succeeded()) << one->Story();
    for (size_t rank = 1; rank < started.size(); ++rank) EXPECT_EQ(started[rank]->output(), "");
    return started[0]->output();
  }

  // Waits for the first row of the table, during which all ranks make calls. The next size follows.
  static void WaitForFirstRow(Started& rank_zero) {
    ASSERT_TRUE(WaitUntil(rank_zero, [&] { return DataLines(rank_zero.output()) > 0; })) << rank_zero.Story();
  }

  std::unique_ptr<RendezvousServer> store_;
};

TEST_F(RingWorkerTest, RankZeroPrintsATableOfCheckedResults) {
  for (const char* algorithm : {"ring", "star"}) {
    const std::string table = Run(3, absl::StrCat("--transport=tcp --bytes=0,4,12K,1M --iters=3 ",
                                                  "--warmup_iters=1 --algorithm=", algorithm));
    EXPECT_THAT(table, Has(absl::StrCat("native ", algorithm, " over tcp"), "12288", "1048576", "#wrong",
                           "Avg bus bandwidth"));
    EXPECT_EQ(DataLines(table), 4) << table;
  }
}

TEST_F(RingWorkerTest, MeasuresSeveralCombinationsInTurn) {
  const std::string table = Run(2,
                                "--combination=all_reduce/native/ring/tcp/private --bytes=4K,64K --iters=3 "
                                "--limits --combination=all_reduce/native/star/tcp/shared");
  EXPECT_THAT(table, Has("native ring over tcp, private buffers", "native star over tcp, shared buffers",
                         "limit shared all_reduce", "limit tcp", "limit unix", "limit copy"));
  EXPECT_EQ(DataLines(table), 4) << table;
}

TEST_F(RingWorkerTest, AnAllToAllIsMeasuredOutOfPlace) {
  const std::string table = Run(3,
                                "--combination=all_to_all/native/pairwise/tcp/private --bytes=4K,60K "
                                "--iters=3 --limits --combination=all_to_all/native/direct/shm/shared");
  EXPECT_THAT(table,
              Has("native pairwise over tcp, private buffers", "native direct over shm, shared buffers",
                  "limit shared all_to_all", "N/A     N/A     N/A"));
  EXPECT_EQ(DataLines(table), 4) << table;
}

TEST_F(RingWorkerTest, WithoutACheckTheWrongColumnIsNotAvailable) {
  EXPECT_THAT(Run(2, "--transport=tcp --bytes=4K --iters=2 --check=0"), Has("N/A"));
}

TEST_F(RingWorkerTest, JsonLinesContainEverySample) {
  EXPECT_THAT(Run(2, "--transport=tcp --bytes=4K --iters=7 --json"),
              Has("{\"event\":\"start\"", "\"transport\":\"tcp\"", "{\"event\":\"row\"", "\"wrong\":0",
                  "{\"event\":\"done\"}"));
}

TEST_F(RingWorkerTest, DescribeListsWhatThisBuildOffers) {
  EXPECT_THAT(Run(1, "--describe"), Has("\"all_reduce\"", "\"native\"", "\"ring\"", "\"available\""));
}

TEST_F(RingWorkerTest, SumsOfMoreThan64RanksAreChecked) {
  const std::string table =
      Run(66, "--algorithm=ring --transport=tcp --bytes=4K --iters=1 --warmup_iters=0 --agg_iters=1");
  EXPECT_EQ(DataLines(table), 1) << table;
}

TEST_F(RingWorkerTest, AKilledRankIsNamedAndEndsAllOthers) {
  // Pairs of ranks share memory in the last case, and there is TCP between pairs.
  for (const auto& [victim, transport] : {std::pair(0, "tcp"), {2, "shm"}, {1, "auto --ranks_per_node=2"}}) {
    SCOPED_TRACE(absl::StrCat("rank ", victim, " over ", transport));
    StartedOnes ranks = Start(4, absl::StrCat("--bytes=4K,16M --iters=40 --transport=", transport));
    WaitForFirstRow(*ranks[0]);
    ranks[victim]->Signal(SIGKILL);
    for (int rank = 0; rank < 4; ++rank) {
      if (rank == victim) continue;
      EXPECT_TRUE(Ends(*ranks[rank]) && ranks[rank]->EndedWith(1)) << ranks[rank]->Story();
      // In a call, or while the ranks meet before one.
      EXPECT_THAT(
          ranks[rank]->errors(),
          AllOf(Has(absl::StrCat("rank ", victim)),
                AnyOf(AllOf(AnyOf(Has("closed its connection"), Has("has ended")), Has("all_reduce, native")),
                      Has("has died while others waited for it"))));
    }
  }
}

TEST_F(RingWorkerTest, AStoppedRankIsNamedAtTheTimeout) {
  for (const char* transport : {"tcp", "shm"}) {
    StartedOnes ranks =
        Start(2, absl::StrCat("--bytes=4K,16M --iters=40 --timeout=1 --transport=", transport));
    WaitForFirstRow(*ranks[0]);
    ranks[1]->Signal(SIGSTOP);
    EXPECT_TRUE(Ends(*ranks[0]) && ranks[0]->EndedWith(1)) << transport;
    // In a call, or in the exchange before one.
    EXPECT_THAT(ranks[0]->errors(),
                AllOf(AnyOf(Has("rank 0 waited 1"), Has(": waited 1 s")), Has("for rank 1")));
  }
}

TEST_F(RingWorkerTest, AMissingRankIsNamed) {
  const auto zero = StartRank(0, 2, "--timeout=1");
  EXPECT_TRUE(Ends(*zero) && zero->EndedWith(1));
  EXPECT_THAT(zero->errors(), Has("rank 1"));
  EXPECT_EQ(zero->output(), "");
}

TEST_F(RingWorkerTest, RanksReportDifferentAlgorithms) {
  const auto zero = StartRank(0, 2, "--algorithm=ring"), one = StartRank(1, 2, "--algorithm=star");
  for (Started* rank : {zero.get(), one.get()}) {
    EXPECT_TRUE(Ends(*rank) && !rank->Succeeded());
    EXPECT_THAT(rank->errors(), Has("--algorithm", "ring", "star"));
  }
}

TEST_F(RingWorkerTest, BadInputIsOneLineAndExitCodeTwo) {
  for (const auto& [arguments, wanted] : std::vector<std::pair<std::string, std::string>>{
           {"--algorithm=rign", "ring, star"},
           {"--backend=glo", "gloo"},
           {"--transport=pigeon", "tcp"},
           {"--buffers=public", "private|huge|shared"},
           {"--combination=all_reduce/native", "COLLECTIVE/BACKEND"},
           {"--datatype=int8", "float"},
           {"--op=prod", "sum"},
           {"--bytes=4X", "'4X' is not a size"},
           {"--bytes=-1", "'-1' is not a size"},
           {"--iters=0", "--iters"},
           {"--debug.segment=2G", "--debug.segment"},
           {"--iter=3", "--iters"},
           {absl::StrCat("--rendezvous=tcp://127.0.0.1:", store_->port(), " --rank=2 --world_size=2"), "2"},
           {"--rendezvous=udp://here", "udp"}}) {
    Started one(Command(RING_WORKER, arguments), {});
    EXPECT_TRUE(Ends(one) && one.EndedWith(2)) << arguments;
    EXPECT_THAT(one.errors(), Has("ring_worker: ", wanted));
    EXPECT_EQ(std::count(one.errors().begin(), one.errors().end(), '\n'), 1) << one.errors();
  }
}

}  // namespace
}  // namespace psring
