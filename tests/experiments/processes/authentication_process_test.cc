// Processes with and without the job's secret: the real binaries, on the loopback.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <atomic>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/time/clock.h"
#include "common/net/address.h"
#include "common/net/authentication.h"
#include "common/rendezvous/rendezvous.h"
#include "tests/experiments/started.h"
#include "tests/experiments/training_processes.h"
#include "tests/test_secret.h"

namespace psring {
namespace {

using testing::HasSubstr;

constexpr char kTraining[] =
    "--strategy ps-sync --deterministic --model mlp-small --data synthetic --steps 20 --batch 16 --no_eval "
    "--timeout 30";

class AuthenticationTest : public LaunchTest {
 protected:
  // A trainer of two, whose rank 0 hosts the store at `port`.
  std::unique_ptr<Started> Trainer(int rank, int port, const std::vector<std::string>& environment,
                                   const std::string& flags = kTraining) {
    std::vector<std::string> variables = {absl::StrCat("RANK=", rank), "WORLD_SIZE=2"};
    variables.insert(variables.end(), environment.begin(), environment.end());
    return std::make_unique<Started>(
        Command(PSRING_TRAINER,
                absl::StrCat(flags, " --rendezvous tcp://127.0.0.1:", port, " --record ", Folder("records"))),
        variables);
  }
  void ExpectBothTrain(StartedOnes& ranks) {
    EXPECT_TRUE(WaitForAll(ranks));
    for (const auto& rank : ranks) EXPECT_TRUE(rank->Succeeded()) << rank->Story();
  }
  // As if the user had configured nothing.
  std::vector<std::string> OnlyAHome() const {
    return {"PSRING_SECRET=", "PSRING_SECRET_FILE=", "XDG_CONFIG_HOME=", absl::StrCat("HOME=", folder_)};
  }
};

// Connects to `address` in every way that a stranger could, until `stop`.
void Attack(const std::string& address, Purpose purpose, const std::atomic<bool>& stop) {
  const HostPort to = *ParseAddress(address);
  std::vector<FileDescriptor> silent;
  const std::string texts[] = {"", std::string(100, 'x'), "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
                               "GET / HTTP/1.1\r\n\r\n"};
  const absl::Time deadline = absl::Now() + absl::Seconds(30);
  for (int i = 0; !stop && absl::Now() < deadline; ++i) {
    auto socket = ConnectTcp(to.host, to.port, absl::Now() + absl::Seconds(1));
    if (!socket.ok()) return;  // the job has ended
    if (i % 5 == 4) {
      const absl::Status status = AuthenticateTo(socket->get(), {.secret = OtherSecret(), .purpose = purpose},
                                                 "it", absl::Now() + absl::Seconds(5));
      EXPECT_FALSE(status.ok());
    } else {
      (void)WriteAll(socket->get(), texts[i % 5].data(), texts[i % 5].size(), absl::Now() + absl::Seconds(1));
      if (silent.size() < 300) silent.push_back(*std::move(socket));
    }
  }
}

TEST_F(AuthenticationTest, AJobUnderAttackEndsWithItsUsualWeights) {
  std::vector<std::string> weights[2];
  for (const bool attacked : {false, true}) {
    std::filesystem::remove_all(Folder("records"));
    const int port = FreePort();
    StartedOnes ranks;
    ranks.push_back(Trainer(0, port, {}));
    // Rank 0 waits for rank 1, and its server is up.
    RendezvousOptions member{
        .host = "127.0.0.1", .port = port, .hosted_elsewhere = true, .secret = TestSecret()};
    absl::StatusOr<std::string> server = "";
    std::atomic<bool> stop = false;
    std::vector<std::thread> attacks;
    if (attacked) {
      const auto store = Rendezvous::Connect(member);
      ASSERT_TRUE(store.ok()) << store.status();
      attacks.emplace_back([&] { Attack(absl::StrCat("127.0.0.1:", port), Purpose::kRendezvous, stop); });
      ranks.push_back(Trainer(1, port, {}));
      server = (*store)->Get("ps/0", "the server");
      ASSERT_TRUE(server.ok()) << server.status();
      attacks.emplace_back([&] { Attack(*server, Purpose::kParameterServer, stop); });
    } else {
      ranks.push_back(Trainer(1, port, {}));
    }
    ExpectBothTrain(ranks);
    stop = true;
    for (std::thread& attack : attacks) attack.join();
    weights[attacked] = Weights(Folder("records"));
    if (attacked) {
      EXPECT_THAT(ranks[0]->errors(), HasSubstr("without the job's secret, last from 127.0.0.1:"));
    }
  }
  EXPECT_EQ(weights[0].size(), 2u);
  EXPECT_EQ(weights[0], weights[1]);
}

TEST_F(AuthenticationTest, ARankWithAnotherSecretGetsOneLine) {
  const int port = FreePort();
  StartedOnes ranks;
  ranks.push_back(Trainer(0, port, {}));
  StartedOnes other;
  other.push_back(Trainer(1, port, {SecretEnvironment(OtherSecret())}));
  EXPECT_TRUE(WaitForAll(other));
  EXPECT_FALSE(other[0]->Succeeded());
  EXPECT_EQ(
      other[0]->errors(),
      absl::StrCat("trainer: rank 1: the rendezvous store at 127.0.0.1:", port,
                   " does not have this job's secret; give all processes the same PSRING_SECRET_FILE\n"));
  ranks.push_back(Trainer(1, port, {}));  // the rank is still free
  ExpectBothTrain(ranks);
}

TEST_F(AuthenticationTest, WithoutConfigurationTheUsersOwnFileIsUsed) {
  const int port = FreePort();
  StartedOnes ranks;
  for (const int rank : {1, 0}) ranks.push_back(Trainer(rank, port, OnlyAHome()));
  ExpectBothTrain(ranks);
  struct stat made = {};
  ASSERT_EQ(stat(Folder(".config/psring/secret").c_str(), &made), 0);
  EXPECT_EQ(made.st_mode & 07777, 0600u);

  ASSERT_EQ(chmod(Folder(".config/psring/secret").c_str(), 0644), 0);
  StartedOnes refused;
  refused.push_back(Trainer(0, FreePort(), OnlyAHome()));
  EXPECT_TRUE(WaitForAll(refused));
  EXPECT_FALSE(refused[0]->Succeeded());
  EXPECT_THAT(refused[0]->errors(), HasSubstr("is accessible to other users; run: chmod 600"));
  EXPECT_EQ(std::count(refused[0]->errors().begin(), refused[0]->errors().end(), '\n'), 1);
}

TEST_F(AuthenticationTest, TheLauncherCreatesASecretThatIsNotOnACommandLine) {
  StartedOnes psring;
  psring.push_back(std::make_unique<Started>(
      Command(PSRING_BINARY,
              absl::StrCat("train --strategy ring --model mlp-small --data synthetic --workers 2 "
                           "--steps 100000000 --batch 16 --no_eval --out ",
                           Folder("run"))),
      std::vector<std::string>()));
  std::vector<std::pair<std::string, pid_t>> processes;
  ASSERT_TRUE(WaitUntil(*psring[0], [&] {
    processes = TrainingProcesses(Folder("run"));
    return processes.size() == 2;
  })) << psring[0]->Story();
  std::vector<std::string> secrets;
  for (const auto& [role, pid] : processes) {
    const std::string environment = Slurp(absl::StrCat("/proc/", pid, "/environ"));
    const size_t at = environment.find("PSRING_SECRET=");
    ASSERT_NE(at, std::string::npos);
    secrets.push_back(environment.substr(at + 14, 32));
    EXPECT_FALSE(absl::StrContains(Slurp(absl::StrCat("/proc/", pid, "/cmdline")), secrets.back()));
  }
  EXPECT_EQ(secrets[0], secrets[1]);
  EXPECT_NE(secrets[0], kTestSecret) << "a new one, although the environment has one";
}

}  // namespace
}  // namespace psring
