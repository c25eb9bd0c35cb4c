// What goes wrong when ranks are started by hand, or by a launcher that was told nonsense: every process ends
// within its timeout, with one line that names the culprit. The real trainer.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "absl/strings/match.h"
#include "experiments/processes/interrupt.h"
#include "experiments/virtual_cluster/namespaces.h"
#include "tests/experiments/started.h"

namespace psring {
namespace {

constexpr char kShort[] = " --model mlp-small --data synthetic --steps 4 --batch 16 --no_eval";

class CulpritsTest : public LaunchTest {
 protected:
  // As it would be started by torchrun, meeting in a file or at a port.
  std::unique_ptr<Started> Rank(const std::string& rank, const std::string& world_size,
                                const std::string& flags, const std::vector<std::string>& more = {}) {
    std::vector<std::string> environment = {
        "RANK=" + rank,          "WORLD_SIZE=" + world_size,          "LOCAL_WORLD_SIZE=",   "LOCAL_RANK=",
        "MASTER_ADDR=127.0.0.1", absl::StrCat("MASTER_PORT=", port_), "PSRING_STORE_HOSTED="};
    environment.insert(environment.begin(), more.begin(), more.end());
    return std::make_unique<Started>(Command(PSRING_TRAINER, absl::StrCat("--progress none ", flags, kShort)),
                                     environment);
  }

  // All end in time, badly, each with one line, in which `parts` stand.
  static void ExpectOneLineEach(StartedOnes& ranks, const std::vector<std::string>& parts) {
    EXPECT_TRUE(WaitForAll(ranks));
    for (const auto& rank : ranks) {
      EXPECT_FALSE(rank->Succeeded());
      const std::string& says = rank->errors();
      EXPECT_EQ(std::count(says.begin(), says.end(), '\n'), 1) << says;
      for (const std::string& part : parts) EXPECT_TRUE(absl::StrContains(says, part)) << says;
    }
  }

  const int port_ = FreePort();
};

// {rendezvous}: at a port, and in a file.
class CulpritsEverywhereTest : public CulpritsTest, public testing::WithParamInterface<std::string> {
 protected:
  std::string Meeting() const {
    return GetParam() == "file" ? absl::StrCat("--rendezvous file://", folder_, "/meet")
                                : "--rendezvous env://";
  }
};

TEST_P(CulpritsEverywhereTest, ATrainingThatIsStartedWellEndsWell) {
  StartedOnes ranks;
  for (const char* rank : {"0", "1"}) ranks.push_back(Rank(rank, "2", Meeting() + " --strategy ring"));
  EXPECT_TRUE(WaitForAll(ranks));
  for (const auto& rank : ranks) EXPECT_TRUE(rank->Succeeded()) << rank->Story();
  EXPECT_FALSE(std::filesystem::exists(Folder("meet")));
}

TEST_P(CulpritsEverywhereTest, AMissingRank) {
  StartedOnes ranks;
  for (const char* rank : {"0", "2"}) {
    ranks.push_back(Rank(rank, "3", Meeting() + " --strategy ring --timeout 3"));
  }
  ExpectOneLineEach(ranks, {"waited 3 s for rank 1", "rank 1 never joined"});
}

TEST_P(CulpritsEverywhereTest, TwoProcessesWithTheSameRank) {
  StartedOnes ranks;
  for (const char* rank : {"0", "1", "1"}) {
    ranks.push_back(Rank(rank, "3", Meeting() + " --strategy ring --timeout 4"));
  }
  ExpectOneLineEach(ranks, {"says that it is rank 1, which is taken by"});
}

TEST_P(CulpritsEverywhereTest, AWorldSizeThatDiffers) {
  StartedOnes ranks;
  ranks.push_back(Rank("0", "2", Meeting() + " --strategy ring --timeout 10"));
  ranks.push_back(Rank("1", "3", Meeting() + " --strategy ring --timeout 10"));
  EXPECT_TRUE(WaitForAll(ranks));
  for (const auto& rank : ranks) {
    EXPECT_FALSE(rank->Succeeded());
    for (const char* part : {"the world size of rank ", " is 2", " is 3"}) {
      EXPECT_TRUE(absl::StrContains(rank->errors(), part)) << rank->errors();
    }
  }
}

TEST_P(CulpritsEverywhereTest, AnotherModelOrOtherFlagsOnOneRank) {
  for (const std::string other : {"--model mlp", "--lr 0.5", "--seed 7"}) {
    SCOPED_TRACE(other);
    StartedOnes ranks;
    for (const char* rank : {"0", "1", "2"}) {
      const bool odd = std::string(rank) == "2";
      ranks.push_back(std::make_unique<Started>(
          Command(
              PSRING_TRAINER,
              absl::StrCat("--progress none ", Meeting(),
                           " --strategy ring --data synthetic --steps 4 --batch 16 --no_eval --timeout 20 ",
                           odd                      ? other
                           : other == "--model mlp" ? "--model mlp-small"
                                                    : "")),
          std::vector<std::string>{absl::StrCat("RANK=", rank), "WORLD_SIZE=3", "LOCAL_WORLD_SIZE=",
                                   "MASTER_ADDR=127.0.0.1", absl::StrCat("MASTER_PORT=", port_)}));
    }
    ExpectOneLineEach(ranks, {"rank 2 was started with "});
  }
}

TEST_P(CulpritsEverywhereTest, AClockThatIsOffByAnHourDoesNoHarm) {
  for (const bool complete : {true, false}) {
    StartedOnes ranks;
    const std::vector<std::string> off = {absl::StrCat("LD_PRELOAD=", PSRING_CLOCK_OFF)};
    ranks.push_back(Rank("0", "3", Meeting() + " --strategy ring --timeout 5"));
    ranks.push_back(Rank("1", "3", Meeting() + " --strategy ring --timeout 5", off));
    if (complete) {
      ranks.push_back(Rank("2", "3", Meeting() + " --strategy ring --timeout 5"));
      EXPECT_TRUE(WaitForAll(ranks));
      for (const auto& rank : ranks) EXPECT_TRUE(rank->Succeeded()) << rank->Story();
    } else {
      ExpectOneLineEach(ranks, {"rank 2 never joined"});
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Meeting, CulpritsEverywhereTest, testing::Values("port", "file"),
                         [](const auto& info) { return info.param; });

// On a machine of two, whose other one is not there; and where nobody listens at a port of this one.
TEST_F(CulpritsTest, AMasterThatCannotBeReached) {
  const Interrupt interrupt;
  const std::string why = WhyNoNamespaces(interrupt);
  std::unique_ptr<Namespaces> machines;
  if (why.empty()) {
    auto made = Namespaces::Create(1, /*bits_per_s=*/0, interrupt);
    ASSERT_TRUE(made.ok()) << made.status();
    machines = *std::move(made);
  }
  for (const std::string& master : {std::string("127.0.0.1"), Namespaces::Address(77)}) {
    if (master != "127.0.0.1" && machines == nullptr) GTEST_SKIP() << why;
    StartedOnes ranks;
    for (const char* rank : {"1", "2"}) {
      ranks.push_back(std::make_unique<Started>(
          Command(PSRING_TRAINER, absl::StrCat("--progress none --strategy ring --timeout 3", kShort)),
          std::vector<std::string>{absl::StrCat("RANK=", rank), "WORLD_SIZE=3", "LOCAL_WORLD_SIZE=",
                                   "MASTER_ADDR=" + master, absl::StrCat("MASTER_PORT=", port_)},
          master == "127.0.0.1" ? NetworkPlace() : machines->node(0)));
    }
    ExpectOneLineEach(ranks, {absl::StrCat(master, ":", port_), "waited 3 s", "check MASTER_ADDR"});
  }
}

TEST_F(CulpritsTest, RankZeroOnAnotherMachineThanItsMasterAddr) {
  StartedOnes ranks;
  ranks.push_back(std::make_unique<Started>(
      Command(PSRING_TRAINER,
              absl::StrCat("--progress none --bind 127.0.0.1 --strategy ring --timeout 3", kShort)),
      std::vector<std::string>{"RANK=0", "WORLD_SIZE=3", "LOCAL_WORLD_SIZE=",
                               "MASTER_ADDR=no-such-host.invalid", "MASTER_PORT=29500"}));
  ExpectOneLineEach(ranks, {"no-such-host.invalid"});
}

TEST_F(CulpritsTest, AServerBesideRankZeroIsGoneWithItsTrainer) {
  StartedOnes ranks;
  for (const char* rank : {"0", "1"}) {
    ranks.push_back(std::make_unique<Started>(
        Command(PSRING_TRAINER,
                "--strategy ps-sync --model mlp-small --data synthetic --steps 1000000 --no_eval "
                "--timeout 20"),
        std::vector<std::string>{absl::StrCat("RANK=", rank), "WORLD_SIZE=2", "LOCAL_WORLD_SIZE=2",
                                 "MASTER_ADDR=127.0.0.1", absl::StrCat("MASTER_PORT=", port_)}));
  }
  const auto trains = [&] {
    ranks[0]->Look();
    return absl::StrContains(ranks[0]->output(), "step ");
  };
  for (int i = 0; i < 3000 && !trains(); ++i) absl::SleepFor(absl::Milliseconds(10));
  ASSERT_TRUE(trains()) << ranks[0]->Story();
  const std::string children =
      ReadFile(absl::StrCat("/proc/", ranks[0]->pid(), "/task/", ranks[0]->pid(), "/children")).value_or("");
  ASSERT_FALSE(Words(children).empty());
  ranks[0]->Signal(SIGKILL);
  EXPECT_TRUE(WaitForAll(ranks));
  EXPECT_FALSE(ranks[1]->Succeeded());
  const std::string server = absl::StrCat("/proc/", Words(children).front(), "/stat");
  for (int i = 0; i < 1000 && std::filesystem::exists(server); ++i) absl::SleepFor(absl::Milliseconds(10));
  EXPECT_FALSE(std::filesystem::exists(server));
}

}  // namespace
}  // namespace psring
