// Ranks started with wrong settings, by hand or by a launcher: every process ends within its timeout, with
// one line that names the cause. The real trainer.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <functional>
#include <map>

#include "absl/strings/match.h"
#include "common/io/files.h"
#include "experiments/processes/interrupt.h"
#include "experiments/virtual_cluster/namespaces.h"
#include "tests/experiments/started.h"
#include "tests/has.h"

namespace psring {
namespace {

constexpr char kCulpritSteps[] = " --model mlp-small --data synthetic --steps 4 --batch 16 --no_eval";

class CulpritsTest : public LaunchTest {
 protected:
  // Starts a rank with torchrun's variables.
  std::unique_ptr<Started> Rank(const std::string& rank, const std::string& world_size,
                                const std::string& flags, const std::vector<std::string>& more = {}) {
    std::vector<std::string> environment = {
        "RANK=" + rank,          "WORLD_SIZE=" + world_size,          "LOCAL_WORLD_SIZE=",   "LOCAL_RANK=",
        "MASTER_ADDR=127.0.0.1", absl::StrCat("MASTER_PORT=", port_), "PSRING_STORE_HOSTED="};
    environment.insert(environment.begin(), more.begin(), more.end());
    return StartTrainer(absl::StrCat("--progress none ", flags, kCulpritSteps), environment);
  }

  // All ranks fail in time, each with one line that contains `parts`.
  static void ExpectOneLineEach(StartedOnes& ranks, const std::vector<std::string>& parts) {
    EXPECT_TRUE(WaitForAll(ranks));
    for (const auto& rank : ranks) {
      EXPECT_FALSE(rank->Succeeded());
      const std::string& says = rank->errors();
      EXPECT_THAT(says, IsOneLine());
      for (const std::string& part : parts) EXPECT_THAT(says, Has(part));
    }
  }

  int port_ = FreePort();
};

// Starts a job for each way to meet, and several jobs at once, because these tests mostly wait.
class CulpritsEverywhereTest : public CulpritsTest {
 protected:
  struct Job {
    std::string file;  // empty: they meet at a port
    StartedOnes ranks;
  };
  // `start(meeting)`: starts the ranks of a job with these flags.
  void StartJobs(const std::function<StartedOnes(const std::string& meeting)>& start) {
    port_ = FreePort();
    jobs_.push_back({"", start("--rendezvous env://")});
    const std::string file = Folder(absl::StrCat("meet", jobs_.size()));
    jobs_.push_back({file, start(absl::StrCat("--rendezvous file://", file))});
  }
  // All ranks of all jobs succeed and leave no files.
  void ExpectSuccess() {
    for (Job& job : jobs_) {
      SCOPED_TRACE(job.file);
      EXPECT_TRUE(WaitForAll(job.ranks));
      for (const auto& rank : job.ranks) EXPECT_TRUE(rank->Succeeded()) << rank->Story();
      EXPECT_FALSE(std::filesystem::exists(job.file));
    }
    jobs_.clear();
  }
  void ExpectOneLineOfEachRank(const std::vector<std::string>& parts) {
    for (Job& job : jobs_) {
      SCOPED_TRACE(job.file);
      ExpectOneLineEach(job.ranks, parts);
    }
    jobs_.clear();
  }

  std::vector<Job> jobs_;
};

TEST_F(CulpritsEverywhereTest, ACorrectJobSucceeds) {
  StartJobs([&](const std::string& meeting) {
    StartedOnes ranks;
    for (const char* rank : {"0", "1"}) ranks.push_back(Rank(rank, "2", meeting + " --strategy ring"));
    return ranks;
  });
  ExpectSuccess();
}

TEST_F(CulpritsEverywhereTest, AMissingRank) {
  StartJobs([&](const std::string& meeting) {
    StartedOnes ranks;
    for (const char* rank : {"0", "2"}) {
      ranks.push_back(Rank(rank, "3", meeting + " --strategy ring --timeout 3"));
    }
    return ranks;
  });
  ExpectOneLineOfEachRank({"waited 3 s for rank 1", "rank 1 never joined"});
}

TEST_F(CulpritsEverywhereTest, TwoProcessesWithTheSameRank) {
  StartJobs([&](const std::string& meeting) {
    StartedOnes ranks;
    for (const char* rank : {"0", "1", "1"}) {
      ranks.push_back(Rank(rank, "3", meeting + " --strategy ring --timeout 3"));
    }
    return ranks;
  });
  ExpectOneLineOfEachRank({"claims to be rank 1, which is taken by"});
}

TEST_F(CulpritsEverywhereTest, DifferentWorldSizes) {
  StartJobs([&](const std::string& meeting) {
    StartedOnes ranks;
    ranks.push_back(Rank("0", "2", meeting + " --strategy ring --timeout 20"));
    ranks.push_back(Rank("1", "3", meeting + " --strategy ring --timeout 20"));
    return ranks;
  });
  ExpectOneLineOfEachRank({"the world size of rank ", " is 2", " is 3"});
}

// A job of one rank does not wait for others.
TEST_F(CulpritsEverywhereTest, WorldSizeOneOnlyOnRankZero) {
  const std::string flags =
      " --strategy ring --model mlp-small --data synthetic --steps 10000000 --no_eval --timeout 20";
  StartJobs([&](const std::string& meeting) {
    StartedOnes ranks;
    for (const char* rank : {"0", "1"}) {
      ranks.push_back(StartTrainer(
          absl::StrCat("--progress none ", meeting, flags),
          {absl::StrCat("RANK=", rank), absl::StrCat("WORLD_SIZE=", rank == std::string("0") ? 1 : 2),
           "LOCAL_WORLD_SIZE=", "LOCAL_RANK=", "MASTER_ADDR=127.0.0.1", absl::StrCat("MASTER_PORT=", port_),
           "PSRING_STORE_HOSTED="}));
    }
    return ranks;
  });
  ExpectOneLineOfEachRank({"the world size of rank ", " is 2", " is 1"});
}

TEST_F(CulpritsEverywhereTest, DifferentModelOrFlagsOnOneRank) {
  for (const std::string other : {"--model mlp", "--lr 0.5", "--seed 7"}) {
    SCOPED_TRACE(other);
    const std::string flags =
        " --strategy ring --data synthetic --steps 4 --batch 16 --no_eval --timeout 20 ";
    const std::string usual = other == "--model mlp" ? "--model mlp-small" : "";
    StartJobs([&](const std::string& meeting) {
      StartedOnes ranks;
      for (const char* rank : {"0", "1", "2"}) {
        ranks.push_back(StartTrainer(
            absl::StrCat("--progress none ", meeting, flags, std::string(rank) == "2" ? other : usual),
            {absl::StrCat("RANK=", rank), "WORLD_SIZE=3", "LOCAL_WORLD_SIZE=", "MASTER_ADDR=127.0.0.1",
             absl::StrCat("MASTER_PORT=", port_)}));
      }
      return ranks;
    });
    ExpectOneLineOfEachRank({"rank 2 was started with "});
  }
}

TEST_F(CulpritsEverywhereTest, AClockOffByAnHour) {
  const auto job_of = [&](bool complete) {
    return [this, complete](const std::string& meeting) {
      const std::string flags = absl::StrCat(meeting, " --strategy ring --timeout ", complete ? 20 : 3);
      StartedOnes ranks;
      ranks.push_back(Rank("0", "3", flags));
      ranks.push_back(Rank("1", "3", flags, {absl::StrCat("LD_PRELOAD=", PSRING_CLOCK_OFF)}));
      if (complete) ranks.push_back(Rank("2", "3", flags));
      return ranks;
    };
  };
  StartJobs(job_of(/*complete=*/true));
  ExpectSuccess();
  StartJobs(job_of(/*complete=*/false));
  ExpectOneLineOfEachRank({"rank 2 never joined"});
}

// Entries of a killed run in the file do not count as members of the next run.
TEST_F(CulpritsTest, AFileOfAKilledRun) {
  const std::string meeting = absl::StrCat("--strategy ring --rendezvous file://", folder_, "/meet");
  StartedOnes killed;
  for (const char* rank : {"0", "1"}) {
    killed.push_back(
        StartTrainer(absl::StrCat(meeting, " --model mlp-small --data synthetic --steps 10000000 --no_eval"),
                     {absl::StrCat("RANK=", rank), "WORLD_SIZE=2", "LOCAL_WORLD_SIZE=2"}));
  }
  ASSERT_TRUE(WaitUntil(killed, [&] { return absl::StrContains(killed[0]->output(), "step "); }))
      << killed[0]->Story();
  for (const auto& rank : killed) rank->Signal(SIGKILL);
  EXPECT_TRUE(WaitForAll(killed));
  EXPECT_TRUE(std::filesystem::exists(Folder("meet")));
  StartedOnes ranks;
  for (const char* rank : {"0", "1"}) ranks.push_back(Rank(rank, "2", meeting));
  ExpectSuccess(ranks);
  EXPECT_FALSE(std::filesystem::exists(Folder("meet")));
}

// The first process of each rank joins. Differences between the runs are named, and no process waits long.
TEST_F(CulpritsTest, TwoRunsAtTheSameTimeOnOneFile) {
  const std::string meeting =
      absl::StrCat("--strategy ring --timeout 20 --rendezvous file://", folder_, "/meet");
  for (const bool alike : {true, false}) {
    SCOPED_TRACE(alike);
    StartedOnes ranks;
    for (const char* seed : {"3", "4"}) {
      for (const char* rank : {"0", "1"}) {
        ranks.push_back(Rank(rank, "2", absl::StrCat(meeting, " --seed ", alike ? "3" : seed)));
      }
    }
    EXPECT_TRUE(WaitForAll(ranks));
    int succeeded = 0, turned_away = 0, late = 0;
    for (const auto& rank : ranks) {
      const std::string& says = rank->errors();
      succeeded += rank->Succeeded();
      turned_away += absl::StrContains(says, "; concurrent runs need different files");
      if (rank->Succeeded()) continue;
      EXPECT_THAT(says, IsOneLine());
      // On a busy machine a rank may start after its partner was rejected and the others have ended.
      const bool never_met = absl::StrContains(says, " never joined");
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
  if (why.empty()) {
    auto made = Namespaces::Create(1, /*bits_per_s=*/0, interrupt);
    ASSERT_TRUE(made.ok()) << made.status();
    machines = *std::move(made);
  }
  std::map<std::string, StartedOnes> jobs;
  for (const std::string& master : {std::string("127.0.0.1"), Namespaces::Address(77)}) {
    if (master != "127.0.0.1" && machines == nullptr) continue;
    for (const char* rank : {"1", "2"}) {
      jobs[master].push_back(
          StartTrainer(absl::StrCat("--progress none --strategy ring --timeout 3", kCulpritSteps),
                       {absl::StrCat("RANK=", rank), "WORLD_SIZE=3",
                        "LOCAL_WORLD_SIZE=", "MASTER_ADDR=" + master, absl::StrCat("MASTER_PORT=", port_)},
                       master == "127.0.0.1" ? ChildNetwork() : machines->node(0)));
    }
  }
  for (auto& [master, ranks] : jobs) {
    ExpectOneLineEach(ranks, {absl::StrCat(master, ":", port_), "waited 3 s", "check MASTER_ADDR"});
  }
  if (machines == nullptr) GTEST_SKIP() << why;
}

TEST_F(CulpritsTest, RankZeroOnAnotherMachineThanMasterAddr) {
  StartedOnes ranks;
  ranks.push_back(StartTrainer(
      absl::StrCat("--progress none --bind 127.0.0.1 --strategy ring --timeout 3", kCulpritSteps),
      {"RANK=0", "WORLD_SIZE=3", "LOCAL_WORLD_SIZE=", "MASTER_ADDR=no-such-host.invalid",
       "MASTER_PORT=29500"}));
  ExpectOneLineEach(ranks, {"no-such-host.invalid"});
}

TEST_F(CulpritsTest, AServerBesideRankZeroEndsWithItsTrainer) {
  StartedOnes ranks;
  for (const char* rank : {"0", "1"}) {
    ranks.push_back(
        StartTrainer("--strategy ps-sync --model mlp-small --data synthetic --steps 1000000 --no_eval "
                     "--timeout 20",
                     {absl::StrCat("RANK=", rank), "WORLD_SIZE=2", "LOCAL_WORLD_SIZE=2",
                      "MASTER_ADDR=127.0.0.1", absl::StrCat("MASTER_PORT=", port_)}));
  }
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
