// Ranks started with wrong settings, by hand or by a launcher: every process ends within its timeout, with
// one line that names the cause. The real trainer.
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <ostream>

#include "absl/strings/match.h"
#include "common/io/files.h"
#include "experiments/launch/interrupt.h"
#include "experiments/virtual_cluster/namespaces.h"
#include "tests/experiments/start_psring.h"
#include "tests/has.h"

namespace psring {
namespace {

constexpr char kCulpritSteps[] =
    " --progress none --model mlp-small --data synthetic --steps 4 --batch 16 --no_eval";
constexpr char kManySteps[] = " --model mlp-small --data synthetic --steps 10000000 --no_eval";

class CulpritsTest : public LaunchTest {
 protected:
  // Starts a rank with torchrun's variables.
  std::unique_ptr<Started> Rank(const std::string& rank, const std::string& world_size,
                                const std::string& flags, const std::vector<std::string>& more = {},
                                const ChildNetwork& place = {}) {
    std::vector<std::string> environment = more;
    for (const std::string& variable :
         {"RANK=" + rank, "WORLD_SIZE=" + world_size, std::string("LOCAL_WORLD_SIZE="),
          std::string("LOCAL_RANK="), absl::StrCat("MASTER_PORT=", port_),
          std::string("MASTER_ADDR=127.0.0.1"), std::string("PSRING_STORE_HOSTED=")}) {
      const std::string name = variable.substr(0, variable.find('=') + 1);
      const bool given = std::ranges::any_of(more, [&](const auto& one) { return one.starts_with(name); });
      if (!given) environment.push_back(variable);
    }
    return StartTrainer(flags, environment, place);
  }
  // Starts ranks 0 and 1 of 2.
  StartedOnes Pair(const std::string& flags, const std::vector<std::string>& more = {}) {
    StartedOnes ranks;
    for (const char* rank : {"0", "1"}) ranks.push_back(Rank(rank, "2", flags, more));
    return ranks;
  }

  // All ranks fail in time, each with one line that contains `parts`.
  static void ExpectOneLineEach(const StartedOnes& ranks, const std::vector<std::string>& parts) {
    EXPECT_TRUE(WaitForAll(ranks));
    for (const auto& rank : ranks) {
      EXPECT_FALSE(rank->Succeeded());
      EXPECT_THAT(rank->errors(), IsOneLine());
      for (const std::string& part : parts) EXPECT_THAT(rank->errors(), Has(part));
    }
  }

  int port_ = FreePort();
};

struct OneRank {
  const char *rank, *world_size;
  std::string flags = "";
  std::vector<std::string> environment = {};
};
struct CulpritJob {
  std::string name;
  std::vector<OneRank> ranks;
  std::string flags = "--timeout 20";
  std::vector<std::string> says;  // on each rank; empty: it succeeds
};
void PrintTo(const CulpritJob& job, std::ostream* out) { *out << job.name; }

// Jobs at the same time.
class CulpritsEverywhereTest : public CulpritsTest,
                               public testing::WithParamInterface<std::vector<CulpritJob>> {};

// Each job meets at a port and once more in a file, at once, because they mostly wait.
TEST_P(CulpritsEverywhereTest, EveryRankEndsAsItShould) {
  std::map<std::pair<std::string, bool>, StartedOnes> started;
  for (const CulpritJob& job : GetParam()) {
    for (const bool in_file : {false, true}) {
      const std::string meeting = in_file ? absl::StrCat("file://", Folder(job.name)) : "env://";
      const std::string port = absl::StrCat("MASTER_PORT=", FreePort());
      for (const OneRank& one : job.ranks) {
        std::vector<std::string> environment = one.environment;
        environment.push_back(port);
        started[{job.name, in_file}].push_back(
            Rank(one.rank, one.world_size,
                 absl::StrCat("--strategy ring --rendezvous ", meeting, " ", one.flags, " ", job.flags,
                              absl::StrContains(job.flags, "--steps") ? "" : kCulpritSteps),
                 environment));
      }
    }
  }
  for (const CulpritJob& job : GetParam()) {
    for (const bool in_file : {false, true}) {
      SCOPED_TRACE(absl::StrCat(job.name, in_file ? " in a file" : " at a port"));
      const StartedOnes& ranks = started[{job.name, in_file}];
      job.says.empty() ? ExpectSuccess(ranks) : ExpectOneLineEach(ranks, job.says);
    }
    EXPECT_TRUE(!job.says.empty() || !std::filesystem::exists(Folder(job.name)));
  }
}

const std::vector<std::string> kAnHourOff = {absl::StrCat("LD_PRELOAD=", PSRING_CLOCK_OFF)};
// Each rank has its model.
const CulpritJob kAnotherModel = {
    .name = "AnotherModelOnOneRank",
    .ranks = {{"0", "3", "--model mlp-small"}, {"1", "3", "--model mlp-small"}, {"2", "3"}},
    .flags = "--timeout 20 --progress none --data synthetic --steps 4 --batch 16 --no_eval",
    .says = {"rank 2 was started with "}};
INSTANTIATE_TEST_SUITE_P(
    Jobs, CulpritsEverywhereTest,
    testing::Values(std::vector<CulpritJob>{{.name = "Correct", .ranks = {{"0", "2"}, {"1", "2"}}}},
                    std::vector<CulpritJob>{{.name = "AMissingRank",
                                             .ranks = {{"0", "3"}, {"2", "3"}},
                                             .flags = "--timeout 4",
                                             .says = {"waited 4 s for rank 1", "rank 1 never joined"}},
                                            {.name = "TwoProcessesWithTheSameRank",
                                             .ranks = {{"0", "3"}, {"1", "3"}, {"1", "3"}},
                                             .flags = "--timeout 4",
                                             .says = {"claims to be rank 1, which is taken by"}},
                                            {.name = "AMissingRankAndAClockOffByAnHour",
                                             .ranks = {{"0", "3"}, {"1", "3", "", kAnHourOff}},
                                             .flags = "--timeout 4",
                                             .says = {"rank 2 never joined"}}},
                    std::vector<CulpritJob>{
                        {.name = "DifferentWorldSizes",
                         .ranks = {{"0", "2"}, {"1", "3"}},
                         .says = {"the world size of rank ", " is 2", " is 3"}},
                        // A job of one rank does not wait for others.
                        {.name = "WorldSizeOneOnlyOnRankZero",
                         .ranks = {{"0", "1"}, {"1", "2"}},
                         .flags = absl::StrCat("--progress none --timeout 20", kManySteps),
                         .says = {"the world size of rank ", " is 2", " is 1"}}},
                    std::vector<CulpritJob>{kAnotherModel,
                                            {.name = "AnotherRateOnOneRank",
                                             .ranks = {{"0", "3"}, {"1", "3"}, {"2", "3", "--lr 0.5"}},
                                             .says = {"rank 2 was started with "}},
                                            {.name = "AnotherSeedOnOneRank",
                                             .ranks = {{"0", "3"}, {"1", "3"}, {"2", "3", "--seed 7"}},
                                             .says = {"rank 2 was started with "}}},
                    std::vector<CulpritJob>{{.name = "AClockOffByAnHour",
                                             .ranks = {{"0", "3"}, {"1", "3", "", kAnHourOff}, {"2", "3"}}}}),
    [](const auto& info) { return info.param.front().name; });

// Entries of a killed run in the file do not count as members of the next run.
TEST_F(CulpritsTest, AFileOfAKilledRun) {
  const std::string meeting = absl::StrCat("--strategy ring --rendezvous file://", Folder("meet"));
  const StartedOnes killed = Pair(meeting + kManySteps);
  ASSERT_TRUE(WaitUntil(killed, [&] { return absl::StrContains(killed[0]->output(), "step "); }))
      << killed[0]->Story();
  for (const auto& rank : killed) rank->Signal(SIGKILL);
  EXPECT_TRUE(WaitForAll(killed));
  EXPECT_TRUE(std::filesystem::exists(Folder("meet")));
  ExpectSuccess(Pair(meeting + kCulpritSteps));
  EXPECT_FALSE(std::filesystem::exists(Folder("meet")));
}

// The first process of each rank joins. Differences between the runs are named, and no process waits long.
TEST_F(CulpritsTest, TwoRunsAtTheSameTimeOnOneFile) {
  const std::string meeting =
      absl::StrCat("--strategy ring --timeout 6 --rendezvous file://", folder_, "/meet");
  for (const bool alike : {true, false}) {
    SCOPED_TRACE(alike);
    StartedOnes ranks;
    for (const char* seed : {"3", "4"}) {
      StartedOnes pair = Pair(absl::StrCat(meeting, " --seed ", alike ? "3" : seed, kCulpritSteps));
      std::ranges::move(pair, std::back_inserter(ranks));
    }
    EXPECT_TRUE(WaitForAll(ranks));
    int succeeded = 0, turned_away = 0, late = 0;
    for (const auto& rank : ranks) {
      const std::string& says = rank->errors();
      succeeded += rank->Succeeded();
      turned_away += absl::StrContains(says, "; concurrent runs need different files");
      if (rank->Succeeded()) continue;
      EXPECT_THAT(says, IsOneLine());
      // On a busy machine a rank may start after its partner was rejected and the others have ended, or end.
      const bool never_met =
          absl::StrContains(says, " never joined") || absl::StrContains(says, "has been closed by its host");
      late += never_met;
      EXPECT_TRUE(never_met || absl::StrContains(says, ", which is taken by ") ||
                  absl::StrContains(says, "was started with --seed="))
          << says;
    }
    EXPECT_LE(late, 1);
    // A rank that starts after a pair has ended creates a new file and meets its partner there.
    EXPECT_TRUE(succeeded == 0 || succeeded == 2 || succeeded == 4) << succeeded;
    if (alike && succeeded < 4) {
      EXPECT_EQ(turned_away + late, 2);
    }
  }
}

// An address without a machine, and a port of this machine without a listener.
TEST_F(CulpritsTest, AMasterThatCannotBeReached) {
  const Interrupt interrupt;
  const std::string why = WhyNoNamespaces(interrupt);
  std::unique_ptr<Namespaces> machines;
  if (why.empty()) machines = Namespaces::Create(1, /*bits_per_s=*/0, interrupt).value();
  std::map<std::string, StartedOnes> jobs;
  for (const std::string& master : {std::string("127.0.0.1"), Namespaces::Address(77)}) {
    if (master != "127.0.0.1" && machines == nullptr) continue;
    for (const char* rank : {"1", "2"})
      jobs[master].push_back(Rank(rank, "3", absl::StrCat("--strategy ring --timeout 3", kCulpritSteps),
                                  {"MASTER_ADDR=" + master},
                                  master == "127.0.0.1" ? ChildNetwork() : machines->node(0)));
  }
  for (auto& [master, ranks] : jobs)
    ExpectOneLineEach(ranks, {absl::StrCat(master, ":", port_), "waited 3 s", "check MASTER_ADDR"});
  if (machines == nullptr) GTEST_SKIP() << why;
}

TEST_F(CulpritsTest, RankZeroOnAnotherMachineThanMasterAddr) {
  StartedOnes ranks;
  ranks.push_back(Rank("0", "3", absl::StrCat("--bind 127.0.0.1 --strategy ring --timeout 3", kCulpritSteps),
                       {"MASTER_ADDR=no-such-host.invalid"}));
  ExpectOneLineEach(ranks, {"no-such-host.invalid"});
}

TEST_F(CulpritsTest, AServerBesideRankZeroEndsWithItsTrainer) {
  const StartedOnes ranks =
      Pair(absl::StrCat("--strategy ps-sync --timeout 20", kManySteps), {"LOCAL_WORLD_SIZE=2"});
  ASSERT_TRUE(WaitUntil(ranks, [&] { return absl::StrContains(ranks[0]->output(), "step "); }))
      << ranks[0]->Story();
  const std::string children =
      ReadFile(absl::StrCat("/proc/", ranks[0]->pid(), "/task/", ranks[0]->pid(), "/children")).value_or("");
  ASSERT_FALSE(Words(children).empty());
  ranks[0]->Signal(SIGKILL);
  EXPECT_TRUE(WaitForAll(ranks));
  EXPECT_FALSE(ranks[1]->Succeeded());
  const std::string server = absl::StrCat("/proc/", Words(children).front(), "/stat");
  EXPECT_TRUE(Eventually([&] { return !std::filesystem::exists(server); }, absl::Seconds(10)));
}

}  // namespace
}  // namespace psring
